"""Reservations over REST: book, hold, confirm, list, read, extend, release, and what happened.

The rules are in pool.services.reservations; what a body may hold is in wishes.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from django.urls import reverse
from rest_framework.request import Request

from pool.core.admission import Loan
from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period, parse_instant
from pool.core.states import State
from pool.queries import access, clock, inventory, reclaimable
from pool.queries import reservations as queries
from pool.services import reservations as services
from pool.services.idempotency import Claim, fingerprint
from portal.api import paging, wishes
from portal.api.auth import bound_team, principal, user_of, within_token
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.reservation_json import event_json
from portal.api.reservation_json import resource as resource

if TYPE_CHECKING:
    from pool.models import Reservation as Row
    from pool.queries.reservations import ReservationView

_KEY = re.compile(r"[!-~]{1,255}")
_ETAG = re.compile(r'"r(\d{1,9})"')
#: "+" of an offset arrives as a space when the client did not quote it.
_UNQUOTED = re.compile(r" (?=\d{2}:\d{2}$)")

NEWEST_FIRST = paging.Order(("created_at", "pk"), descending=True)
OLDEST_FIRST = paging.Order(("pk",))


class Reservations(Door):
    """GET lists what the caller may see, POST books."""

    parameters = paging.PARAMETERS | {"team", "state", "overlaps"}
    repeatable = frozenset({"state"})

    def get(self, request: Request) -> HttpResponse:
        rows = _filtered(within_token(request, queries.visible_to(user_of(request))), request)
        return paging.listing(request, rows, NEWEST_FIRST, _shown)

    def post(self, request: Request) -> HttpResponse:
        return created(request, _booked(request, json_object(request), services.book))


class Hold(Door):
    """Set it aside for five minutes; the body is that of a booking."""

    def post(self, request: Request) -> HttpResponse:
        return created(request, _booked(request, json_object(request), services.hold))


class Confirm(Door):
    """Book what is held."""

    def post(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        body = json_object(request)
        wishes.nothing(body)
        row = services.confirm(
            actor=user_of(request),
            reservation_id=seen(request, pk).pk,
            version=_known_version(request),
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return _changed(request, row)


class Reservation(Door):
    def get(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        row = seen(request, pk)
        return _one(queries.as_resource(row), reclaimable.of(row, clock.now()))


class Extend(Door):
    """Move the end: `end` is the new end, `duration` what is added to the present one.

    As for a booking, an Idempotency-Key keeps a second sending from adding it again.
    """

    def post(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        body = json_object(request)
        until = wishes.extension(body)
        row = services.extend(
            actor=user_of(request),
            reservation_id=seen(request, pk).pk,
            end=until.end,
            duration=until.duration,
            version=_known_version(request),
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return _changed(request, row)


class Release(Door):
    """End it now, or cancel it before its start; a second time is refused, since nothing is left to end.

    `waive`: without the price of giving it back late; for leads and approvers.
    """

    def post(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        body = json_object(request)
        row = services.release(
            actor=user_of(request),
            reservation_id=seen(request, pk).pk,
            version=_known_version(request),
            waive=wishes.release(body),
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return _changed(request, row)


class Events(Door):
    """What happened to it, oldest first."""

    parameters = paging.PARAMETERS

    def get(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        row = seen(request, pk)
        rows = queries.events(row)
        return paging.listing(request, rows, OLDEST_FIRST, lambda page: [event_json(e, row) for e in page])


def _booked(request: Request, body: dict[str, Any], book: Callable[..., Row]) -> Row:
    """What this body asks for, booked or held."""
    wish = wishes.booking(body, inventory.reported_names)
    only_of(request, wish.team)
    return book(
        actor=user_of(request),
        team=wish.team,
        pool=wish.pool,
        title=wish.title,
        ask=wish.ask,
        start=wish.start,
        end=wish.end,
        duration=wish.duration,
        klass=wish.klass,
        owner=wish.owner,
        restartable=wish.restartable,
        free_until=wish.free_until,
        terms=wish.terms,
        now=clock.now(),
        claim=claim_of(request, body),
    )


def only_of(request: Request, name: str) -> None:
    """A token that is bound to a team books for no other."""
    team = bound_team(request)
    if team is not None and team.name != name:
        raise Refusal(Code.FORBIDDEN, token_team=team.name)


def seen(request: Request, pk: uuid.UUID) -> Row:
    """The reservation, if the caller may see it and a token that is bound to a team is bound to this one."""
    row = access.reservation(user_of(request), pk)
    team = bound_team(request)
    if team is not None and row.team_id != team.pk:
        raise Refusal(Code.NOT_FOUND)
    return row


def _shown(page: Sequence[Row]) -> list[dict[str, Any]]:
    return [resource(queries.as_resource(row)) for row in page]


def _one(view: ReservationView, borrowed: Iterable[Loan], status: int = 200) -> HttpResponse:
    return answer(
        resource(view, borrowed), status, {"ETag": f'"r{view.version}"', "Cache-Control": "private, no-cache"}
    )


def created(request: Request, booked: Row) -> HttpResponse:
    """The reservation as it is now; for a key that was seen before, too, and then it says so."""
    if booked.replayed:
        row = access.reservation(user_of(request), booked.pk)
        view, borrowed = queries.as_resource(row), reclaimable.of(row, clock.now())
    else:
        view, borrowed = queries.as_new_resource(booked), booked.borrowed
    response = _one(view, borrowed, status=201)
    response["Location"] = request.build_absolute_uri(reverse("api-reservation", args=[booked.pk]))
    return _told_replay(response, booked)


def _changed(request: Request, row: Row) -> HttpResponse:
    """As `created`, for what was there before."""
    now_is = seen(request, row.pk)
    return _told_replay(_one(queries.as_resource(now_is), reclaimable.of(now_is, clock.now())), row)


def _told_replay(response: HttpResponse, row: Row) -> HttpResponse:
    if row.replayed:
        response["Idempotency-Replayed"] = "true"
    return response


def claim_of(request: Request, body: dict[str, Any]) -> Claim | None:
    """What the Idempotency-Key stands for: this caller, this address, this body."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Refusal(
            Code.MALFORMED, pointer="Idempotency-Key", why="1 to 255 visible characters are allowed"
        )
    return Claim(
        principal=principal(request),
        method="POST",
        path=request.path,
        key=key,
        fingerprint=fingerprint(body),
    )


def _known_version(request: Request) -> int | None:
    """The version that If-Match names; None without the header or for `*`."""
    known = request.headers.get("If-Match")
    if known is None or known.strip() == "*":
        return None
    found = _ETAG.fullmatch(known.strip())
    if found is None:
        raise Refusal(Code.MALFORMED, pointer="If-Match", why='it must look like "r17"')
    return int(found[1])


def _filtered(rows: Any, request: Request) -> Any:
    given = request.query_params
    if "team" in given:
        rows = rows.filter(team__name=_plain("team", given["team"]))
    if "state" in given:
        rows = rows.filter(state__in=_states(given.getlist("state")))
    if "overlaps" in given:
        window = _window(given["overlaps"])
        rows = rows.filter(period__overlap=(window.start, window.end))
    return rows


def _plain(name: str, value: str) -> str:
    if "\x00" in value:
        raise invalid(f"?{name}", "bad_characters")
    return value


def _states(values: list[str]) -> list[str]:
    """`state=a&state=b` or `state=a,b`."""
    wanted = [part for value in values for part in value.split(",")]
    choices = [s.value for s in State]
    if set(wanted) - set(choices):
        raise invalid("?state", "not_a_choice", choices=choices)
    return wanted


def _window(text: str) -> Period:
    """`from/to`, both with an offset."""
    start, slash, end = text.partition("/")
    if not slash:
        raise invalid("?overlaps", "malformed", why="it must be two instants joined by a slash")
    return Period(_instant(start), _instant(end))


def _instant(text: str) -> datetime:
    return parse_instant(_UNQUOTED.sub("+", text), "?overlaps")
