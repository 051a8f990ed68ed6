"""Reservations over REST: book, hold, confirm, list, read, extend, release, and what happened.

The rules are in pool.services.reservations; what a body may hold is in wishes.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from django.urls import reverse
from rest_framework.request import Request

from pool.core.admission import Loan
from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period, duration_text, parse_instant
from pool.core.shapes import Sharing
from pool.core.shares import ISOLATION
from pool.core.states import State
from pool.queries import access, clock, inventory, reclaimable
from pool.queries import reservations as queries
from pool.services import reservations as services
from pool.services.idempotency import Claim, fingerprint
from portal.api import paging, wishes
from portal.api.auth import bound_team, principal, user_of, within_token
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.times import instant, loans

if TYPE_CHECKING:
    from pool.models import Reservation as Row
    from pool.queries.reservations import AllocationView, ReservationView, ShareView
    from pool.queries.troubles import Process
    from pool.queries.waiting import Wait

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
        return paging.listing(request, rows, OLDEST_FIRST, lambda page: [_event(e, row) for e in page])


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


def resource(view: ReservationView, borrowed: Iterable[Loan] | None = None) -> dict[str, Any]:
    """A reservation as REST shows it; times in UTC.

    `unknown_since`: those of its nodes that are not heard from, null for one that never was.
    `trouble` of an allocation: gpu_lost, gpu_unknown (its node does not report it), gpu_faulty (`xid`, and
    what is done about it: `action`), share_degraded, share_over, or in_use (it is to go, and a process
    still runs); before its start gpu_lost and gpu_faulty alone, and then it is placed elsewhere as soon as
    something fits; `trouble_since` when that is known, `trouble_until` when the booking fails if it stays so.
    `processes` null: not known, or not to be told to the caller.
    Of one that waits `start` and `end` say only for how long it is wanted.
    `hold_until`: when it is let go, of one that is held; `approve_by`: when one lapses that nobody approved.
    `continues` is the booking whose rest this is, `continued_by` the rest of this one.
    `recall_at`: when it is taken back, once that is settled. `retained_milli_hours`: what giving it back
    late has cost. `justification` is told to the team alone. `wait`: the window of one that waits or has an
    offer from the wait list.
    """
    return {
        "id": str(view.id),
        "state": view.state,
        "state_reason": view.state_reason,
        "start": instant(view.start),
        "end": instant(view.end),
        "version": view.version,
        "team": view.team,
        "pool": view.pool,
        "title": view.title,
        "class": view.klass,
        "restartable": view.restartable,
        "preemptible": view.preemptible,
        "priority": view.priority,
        "preempt": _preempt(view),
        "justification": view.justification,
        "owner": view.owner,
        "booked_by": view.booked_by,
        "ask": view.ask,
        "continues": str(view.continues) if view.continues else None,
        "continued_by": str(view.continued_by) if view.continued_by else None,
        "notice_until": instant(view.notice_until),
        "hold_until": instant(view.hold_until),
        "approve_by": instant(view.approve_by),
        "recall_at": instant(view.recall_at),
        "retained_milli_hours": view.retained_milli_hours,
        "reclaimable": None if borrowed is None else loans(borrowed),
        "wait": _wait(view.wait) if view.wait else None,
        "unknown_since": {node: instant(since) for node, since in view.unknown_since.items()},
        "allocations": [_allocation(a) for a in view.allocations],
    }


def _preempt(view: ReservationView) -> dict[str, Any] | None:
    """The word before it is taken back, as its body asked for it."""
    if not view.preempt_signal:
        return None
    grace = timedelta(seconds=view.preempt_grace_s or 0)
    return {"signal": view.preempt_signal, "grace": duration_text(grace)}


def _wait(wait: Wait) -> dict[str, Any]:
    return {
        "since": instant(wait.since),
        "earliest": instant(wait.earliest),
        "latest": instant(wait.latest),
        "partial_ok": wait.partial_ok,
        "asks_first": wait.asks_first,
    }


def _allocation(view: AllocationView) -> dict[str, Any]:
    trouble = view.trouble
    processes = trouble.processes if trouble else None
    return {
        "id": str(view.id),
        "node": view.node,
        "gpu": view.gpu,
        "gpu_uuid": view.gpu_uuid,
        "kind": view.kind,
        "model": view.model,
        "profile": view.profile or None,
        "span": {"start": view.start, "size": view.size},
        "mig_uuid": view.mig_uuid or None,
        "share": _share(view.share) if view.share else None,
        "env": view.env,
        "trouble": trouble.code if trouble else None,
        "trouble_since": instant(trouble.since) if trouble else None,
        "trouble_until": instant(trouble.until) if trouble else None,
        "xid": trouble.xid if trouble else None,
        "action": (trouble.action or None) if trouble else None,
        "processes": None if processes is None else [_process(one) for one in processes],
    }


def _share(share: ShareView) -> dict[str, Any]:
    """`isolation`: what keeps it apart from the others on the GPU: driver, library or none."""
    return {
        "memory_mib": share.memory_mib,
        "compute": {"guaranteed": share.guaranteed, "limit": share.limit},
        "sharing": share.sharing,
        "isolation": ISOLATION[Sharing(share.sharing)],
    }


def _process(one: Process) -> dict[str, Any]:
    return {"pid": one.pid, "name": one.name or None, "user": one.user or None}


def _event(event: Any, row: Row) -> dict[str, Any]:
    return {
        "id": event.pk,
        "at": instant(event.at),
        "actor": event.actor_label,
        "verb": event.verb,
        "request_id": event.request_id,
        "before": event.before,
        "after": queries.facts_of(event, row),
    }


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
