"""Who asks: a bearer token of ours, or a browser's session with its CSRF token.

A token yields its user, and may be bound to one team. Node tokens open only
the agents' door (reports.py), and nothing else opens that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request

from pool.core.errors import Code, Refusal
from pool.queries import clock
from pool.services import tokens
from portal.api.problems import DoorRefusal
from portal.errors import DoorCode
from portal.logs import acts

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from pool.models import Reservation, Team, Token, User


def bearer(request: HttpRequest | Request) -> str | None:
    """What the Authorization header carries as a bearer; None if it is another scheme, or there is none."""
    scheme, _, raw = request.META.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
    return raw.strip() if scheme.lower() == "bearer" else None


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer gpp_<id>_<secret>`; a wrong one is refused, even beside a session."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        raw = bearer(request)
        if raw is None:
            return None
        token = tokens.authenticate(raw, now=clock.real_now())
        if token is None:
            raise Refusal(Code.BAD_TOKEN)
        acts(f"user:{token.user_id}")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="gpupool"'


class BrowserSession(SessionAuthentication):
    """The session of the pages; writing needs the CSRF token."""

    def enforce_csrf(self, request: Any) -> None:
        try:
            super().enforce_csrf(request)
        except Exception as error:
            raise DoorRefusal(DoorCode.CSRF) from error


def user_of(request: Request) -> User:
    """Who asks; views behind the door are never reached by nobody."""
    return cast("User", request.user)


def bound_team(request: Request) -> Team | None:
    """The one team that the request's token is for; None: no token, or one that is not bound."""
    token = _token(request)
    return token.team if token else None


def within_token(request: Request, rows: QuerySet[Reservation]) -> QuerySet[Reservation]:
    """Of these reservations, those that the request's token reaches."""
    team = bound_team(request)
    return rows if team is None else rows.filter(team=team)


def principal(request: Request) -> str:
    """Whose idempotency keys these are: each token has its own, and so has each user's browser."""
    token = _token(request)
    return f"token:{token.public_id}" if token else f"user:{request.user.pk}"


def _token(request: Request) -> Token | None:
    return cast("Token | None", request.auth)
