"""Requests for quota over REST: list, ask, read, comment, withdraw, and decide; and the bookings that wait.

The rules are in pool.services.quota_requests and approvals; what a body may hold is in quota_wishes.py.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period
from pool.core.roles import Action
from pool.queries import access, clock
from pool.queries import quota_requests as queries
from pool.services import approvals
from pool.services import quota_requests as services
from portal.api import paging, quota_wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.quota import unbound
from portal.api.reservations import claim_of, only_of
from portal.api.times import instant

if TYPE_CHECKING:
    from pool.models import QuotaComment, QuotaRequest, Reservation

NEWEST_FIRST = paging.Order(("created_at", "pk"), descending=True)
BY_LAPSE = paging.Order(("approve_by", "pk"))
OLDEST_FIRST = paging.Order(("pk",))
STATES = ("submitted", "approved", "denied", "withdrawn", "active", "expired")


class Requests(Door):
    """GET lists what the caller may see, newest first; POST asks, and takes an Idempotency-Key."""

    parameters = paging.PARAMETERS | {"state"}

    def get(self, request: Request) -> HttpResponse:
        rows = queries.visible_to(user_of(request))
        team = bound_team(request)
        rows = rows if team is None else rows.filter(team=team)
        state = request.query_params.get("state")
        if state is not None:
            if state not in STATES:
                raise invalid("?state", "not_a_choice", choices=list(STATES))
            rows = rows.filter(state=state)
        return paging.listing(request, rows, NEWEST_FIRST, lambda page: [_request(row) for row in page])

    def post(self, request: Request) -> HttpResponse:
        body = json_object(request)
        wish = quota_wishes.request(body)
        only_of(request, wish.team)
        user = user_of(request)
        row = services.submit(
            actor=user,
            team=access.team(user, wish.team),
            pool=access.pool(user, wish.pool),
            model=wish.model,
            amounts=wish.amounts,
            valid=Period(wish.start, wish.end),
            justification=wish.justification,
            renews=queries.one(user, wish.renews) if wish.renews is not None else None,
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return answer(_request(queries.one(user, row.pk)), 201)


class OneRequest(Door):
    """A request with what was decided; `renews` is what it prolongs."""

    def get(self, request: Request, pk: int) -> HttpResponse:
        return answer(_request(_seen(request, pk)))


class Comments(Door):
    """GET lists what was said about a request, oldest first; POST says something.

    POST takes an Idempotency-Key.
    """

    parameters = paging.PARAMETERS

    def get(self, request: Request, pk: int) -> HttpResponse:
        rows = queries.comments(_seen(request, pk))
        return paging.listing(request, rows, OLDEST_FIRST, lambda page: [_comment(one) for one in page])

    def post(self, request: Request, pk: int) -> HttpResponse:
        row = _seen(request, pk)
        body = json_object(request)
        said = services.comment(
            actor=user_of(request),
            request_id=row.pk,
            text=quota_wishes.comment(body),
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return answer(_comment(said), 201)


class Withdraw(Door):
    def post(self, request: Request, pk: int) -> HttpResponse:
        row = _seen(request, pk)
        version = quota_wishes.version(json_object(request))
        services.withdraw(actor=user_of(request), request_id=row.pk, version=version, now=clock.now())
        return answer(_request(_seen(request, pk)))


class Approve(Door):
    """Grant it; amounts and times that the body names stand instead of those that were asked."""

    def post(self, request: Request, pk: int) -> HttpResponse:
        row = _to_decide(request, pk)
        wish = quota_wishes.decision(json_object(request))
        services.approve(
            actor=user_of(request),
            request_id=row.pk,
            amounts=replace(services.asked(row), **wish.amounts),
            valid=Period(wish.start or row.valid.lower, wish.end or row.valid.upper),
            answer=wish.answer,
            version=wish.version,
            now=clock.now(),
        )
        return answer(_request(queries.one(user_of(request), pk)))


class Deny(Door):
    """Say no; `answer` says why."""

    def post(self, request: Request, pk: int) -> HttpResponse:
        row = _to_decide(request, pk)
        text, version = quota_wishes.denial(json_object(request))
        services.deny(
            actor=user_of(request), request_id=row.pk, answer=text, version=version, now=clock.now()
        )
        return answer(_request(queries.one(user_of(request), pk)))


class Pending(Door):
    """Bookings that wait for an approver, by when they lapse; for approvers."""

    parameters = paging.PARAMETERS

    def get(self, request: Request) -> HttpResponse:
        unbound(request)
        access.require(user_of(request), Action.DECIDE)
        rows = queries.pending(user_of(request))
        return paging.listing(request, rows, BY_LAPSE, lambda page: [_booking(row) for row in page])


class ApproveBooking(Door):
    def post(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        _may_decide(request, pk)
        version = quota_wishes.version(json_object(request))
        row = approvals.approve(actor=user_of(request), reservation_id=pk, version=version, now=clock.now())
        return answer(_booking(row))


class DenyBooking(Door):
    def post(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        _may_decide(request, pk)
        text, version = quota_wishes.denial(json_object(request))
        row = approvals.deny(
            actor=user_of(request), reservation_id=pk, answer=text, version=version, now=clock.now()
        )
        return answer(_booking(row))


def _seen(request: Request, pk: int) -> QuotaRequest:
    """The request, if the caller may see it and a token that is bound to a team is bound to its."""
    row = queries.one(user_of(request), pk)
    team = bound_team(request)
    if team is not None and row.team_id != team.pk:
        raise Refusal(Code.NOT_FOUND)
    return row


def _to_decide(request: Request, pk: int) -> QuotaRequest:
    row = _seen(request, pk)
    unbound(request)
    return row


def _may_decide(request: Request, pk: uuid.UUID) -> None:
    """A token that is bound to a team decides nothing; of what it does not reach it learns nothing."""
    team = bound_team(request)
    if team is not None:
        row = access.reservation(user_of(request), pk)
        raise Refusal(Code.FORBIDDEN if row.team_id == team.pk else Code.NOT_FOUND)
    approvals.seen(user_of(request), pk)


def _request(row: QuotaRequest) -> dict[str, Any]:
    grant = getattr(row, "grant", None)
    return {
        "id": row.pk,
        "team": row.team.name,
        "pool": row.pool.name,
        "model": row.model or None,
        "state": str(row.state),
        **_amounts(row),
        "start": instant(row.valid.lower),
        "end": instant(row.valid.upper),
        "justification": row.justification,
        "requested_by": row.requested_by.get_username(),
        "created_at": instant(row.created_at),
        "decided_by": row.decided_by.get_username() if row.decided_by else None,
        "decided_at": instant(row.decided_at),
        "answer": row.answer or None,
        "renews": row.renews_id,
        "granted": None
        if grant is None
        else _amounts(grant) | {"start": instant(grant.valid.lower), "end": instant(grant.valid.upper)},
        "version": row.version,
    }


def _amounts(row: Any) -> dict[str, int]:
    return {
        "guaranteed_milli": row.guaranteed_milli,
        "cap_milli": row.cap_milli,
        "memory_mib": row.memory_mib or 0,
        "budget_milli_hours": row.budget_milli_hours or 0,
    }


def _comment(one: QuotaComment) -> dict[str, Any]:
    return {"id": one.pk, "at": instant(one.at), "author": one.author.get_username(), "text": one.text}


def _booking(row: Reservation) -> dict[str, Any]:
    """A booking as an approver sees it, who need not see the team's others."""
    return {
        "id": str(row.pk),
        "state": str(row.state),
        "team": row.team.name,
        "pool": row.pool.name,
        "title": row.title,
        "ask": row.ask,
        "class": row.klass,
        "charge_milli": row.charge_milli,
        "start": instant(row.period.lower),
        "end": instant(row.period.upper),
        "owner": row.owner.get_username(),
        "booked_by": row.booked_by.get_username(),
        "justification": row.justification,
        "approve_by": instant(row.approve_by),
        "version": row.version,
    }
