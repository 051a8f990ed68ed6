"""Holds: a booking that is set aside for some minutes while somebody looks at it, then booked or let go.

Doors reach these as services.reservations.hold and confirm. A hold holds its
GPUs and counts in quota; each person has one at most. The due lane lets go
what has lapsed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import IntegrityError

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.roles import Action
from pool.core.shapes import Ask, Class
from pool.core.states import Reason, State
from pool.core.terms import ORDINARILY, Terms
from pool.models import Pool, Reservation
from pool.queries import access
from pool.services import (
    booking,
    commands,
    idempotency,
    locks,
    notices,
    reservations,
    starts,
    thresholds,
    turns,
)
from pool.services.idempotency import Claim
from pool.services.wishes import Asked

if TYPE_CHECKING:
    from pool.models import User

LASTS = timedelta(minutes=5)
#: The partial unique index: one hold per person, in whatever pool.
_ONE_HOLD = "reservation_one_hold"


def hold(
    *,
    actor: User,
    team: str,
    pool: str,
    title: str = "",
    ask: Ask,
    start: datetime | None = None,
    end: datetime | None = None,
    duration: timedelta | None = None,
    klass: Class = Class.INTERACTIVE,
    owner: str | None = None,
    visibility: str = Reservation.Visibility.TEAM,
    restartable: bool | None = None,
    now: datetime,
    claim: Claim | None = None,
    free_until: datetime | None = None,
    terms: Terms = ORDINARILY,
) -> Reservation:
    """As `book`, but only set aside: until `hold_until`, which is in 5 minutes, or its own end.

    Refuses as `book` does, and with ONE_HOLD (reservation, hold_until) while its actor holds another.
    """
    what, when = (actor, team, pool, title, ask), (start, end, duration)
    asked = Asked(*what, *when, klass, owner, visibility, restartable, now, free_until, LASTS, terms)
    _let_go(actor, now)
    try:
        return booking.grant(asked, claim)
    except IntegrityError as error:
        if _ONE_HOLD not in str(error):
            raise
        raise _one_hold(actor) from error


def confirm(
    *,
    actor: User,
    reservation_id: UUID,
    version: int | None = None,
    now: datetime,
    claim: Claim | None = None,
) -> Reservation:
    """Book what is held, by whom it is held for; it starts at once if its start has come.

    A `claim` that was carried out before answers the reservation as it is now (`replayed`). Refuses
    with NOT_FOUND, FORBIDDEN, STALE, LAPSED (hold_until), WRONG_STATE (state, doing), NEEDS_APPROVAL,
    KEY_REUSED, IN_PROGRESS, BUSY.
    """
    return _confirm(actor=actor, reservation_id=reservation_id, version=version, now=now, claim=claim)


@locks.use_case
def _confirm(
    *, actor: User, reservation_id: UUID, version: int | None, now: datetime, claim: Claim | None
) -> Reservation:
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    seen = access.reservation(actor, reservation_id)
    access.require(actor, Action.BOOK, seen.team)
    if actor.pk not in _for_whom(seen):
        raise Refusal(Code.FORBIDDEN, action=Action.BOOK.value)
    pool = locks.pool(seen.pool_id)
    row = locks.reservation(reservation_id, version)
    _check_held(row, now)
    _book(pool, row, actor, now)
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=row.pk, now=now, status=200)
    return row


def _book(pool: Pool, row: Reservation, actor: User, now: datetime) -> None:
    """Above the threshold it waits for an approver, from now on."""
    if row.from_wait:
        turns.accept(pool, row, now)
    if thresholds.needs(pool, row.charge_milli):
        period = Period(row.period.lower, row.period.upper)
        row.approve_by = thresholds.approve_by(pool, row.charge_milli, period, team_id=row.team_id, now=now)
        row.save(update_fields=["approve_by"])
        reservations.submit([row], now=now, actor=actor)
        notices.ask_approvers(row, now=now)
        return
    reservations.schedule([row], now=now, actor=actor)
    if row.period.lower <= now:
        commands.issue(locks.gpus(starts.start(pool, [row], now)), now)


def _for_whom(row: Reservation) -> tuple[int, ...]:
    """Who may book it: whoever holds it; what the wait list offers, its owner, too."""
    return (row.booked_by_id, row.owner_id) if row.from_wait else (row.booked_by_id,)


def _check_held(row: Reservation, now: datetime) -> None:
    lapsed = row.state == State.EXPIRED and row.state_reason == Reason.HOLD_LAPSED
    if row.state != State.HELD and not lapsed:
        raise Refusal(Code.WRONG_STATE, state=row.state, doing="confirm")
    if lapsed or row.hold_until is None or row.hold_until <= now:
        raise Refusal(Code.LAPSED, hold_until=row.hold_until.isoformat() if row.hold_until else None)


def _one_hold(actor: User) -> Refusal:
    """What its actor holds already; it may be gone by now, then the same can be asked again."""
    held = Reservation.objects.filter(booked_by=actor, state=State.HELD, from_wait=False).first()
    if held is None or held.hold_until is None:
        return Refusal(Code.BUSY)
    return Refusal(Code.ONE_HOLD, reservation=str(held.pk), hold_until=held.hold_until.isoformat())


def _let_go(actor: User, now: datetime) -> None:
    """The actor's hold that has lapsed, and that no lane has seen yet, is not in the way of a new one."""
    rows = Reservation.objects.filter(booked_by=actor, state=State.HELD, from_wait=False, hold_until__lte=now)
    for pk, pool_id in rows.values_list("pk", "pool"):
        _lapse(pk=pk, pool_id=pool_id, now=now)


@locks.use_case
def _lapse(*, pk: UUID, pool_id: int, now: datetime) -> None:
    pool = locks.pool(pool_id)
    row = locks.reservation(pk, None)
    if row.state == State.HELD:
        reservations.lapse([row], Reason.HOLD_LAPSED, now=now)
        locks.changed(pool)
