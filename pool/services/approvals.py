"""Decisions on bookings above a pool's threshold: yes or no, by somebody else than who asked.

A pending booking holds its GPUs and counts in quota, so a yes gives it what it has already.
It is checked once more as things are then, and never evicts or delays what is confirmed.
When nobody decides it lapses (thresholds).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.core.states import Reason, State
from pool.models import Pool, Reservation
from pool.queries import access
from pool.queries import quota_requests as queries
from pool.services import commands, events, extension, locks, notices, reservations, starts

if TYPE_CHECKING:
    from pool.models import User

TEXT_LIMIT = 4000


@locks.use_case
def approve(*, actor: User, reservation_id: UUID, version: int | None = None, now: datetime) -> Reservation:
    """Let it have what it holds; it starts when its time comes.

    Refuses with NOT_FOUND, FORBIDDEN, OWN_REQUEST, LAPSED (its time to be approved is over), NO_CAPACITY
    and QUOTA_EXCEEDED (it could not be booked now), and STALE: it was changed since `version`, or
    another was first (decided_by, state).
    """
    row, pool = _to_decide(actor, reservation_id, version, now)
    extension.recheck(pool, row, now)
    _decide(row, actor)
    reservations.schedule([row], now=now, actor=actor, reason=Reason.APPROVED)
    if row.period.lower <= now:
        commands.issue(locks.gpus(starts.start(pool, [row], now)), now)
    locks.changed(pool)
    _tell(row, "booking_approved", actor, now)
    return row


@locks.use_case
def deny(
    *, actor: User, reservation_id: UUID, answer: str, version: int | None = None, now: datetime
) -> Reservation:
    """Say no, and why; what it held is free. Refuses as `approve` does; INVALID without an answer."""
    text = answer.strip()
    if not text:
        raise invalid("/answer", "blank")
    if len(text) > TEXT_LIMIT:
        raise invalid("/answer", "too_long", max=TEXT_LIMIT)
    row, pool = _to_decide(actor, reservation_id, version, now)
    _decide(row, actor)
    reservations.deny([row], now=now, actor=actor)
    events.record(
        "reservation.answered",
        actor=actor,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        after={"answer": text},
    )
    locks.changed(pool)
    _tell(row, "booking_denied", actor, now, answer=text)
    return row


def _to_decide(
    actor: User, reservation_id: UUID, version: int | None, now: datetime
) -> tuple[Reservation, Pool]:
    """The row, its pool locked, for who may decide on it and while nobody has."""
    known = seen(actor, reservation_id)
    if queries.is_own(actor, (known.owner, known.booked_by)):
        raise Refusal(Code.OWN_REQUEST)
    pool = locks.pool(known.pool_id)
    row = Reservation.objects.select_related("team", "owner", "booked_by", "decided_by").get(
        pk=reservation_id
    )
    if row.state != State.PENDING_APPROVAL:
        if row.decided_by is None:
            raise Refusal(Code.WRONG_STATE, state=row.state, doing="decide")
        by = row.decided_by.get_username()
        raise Refusal(Code.STALE, version=row.version, known=version, state=row.state, decided_by=by)
    if version is not None and version != row.version:
        raise Refusal(Code.STALE, version=row.version, known=version)
    if row.approve_by is not None and row.approve_by <= now:
        raise Refusal(Code.LAPSED, approve_by=row.approve_by.isoformat())
    return row, pool


def seen(actor: User, reservation_id: UUID) -> Reservation:
    """What an approver may decide on, or has to be told about.

    For all others NOT_FOUND where they see no such reservation, and FORBIDDEN where they do.
    """
    if not queries.decides(actor):
        access.reservation(actor, reservation_id)
        access.require(actor, Action.DECIDE)
    row = queries.asked_of(actor).filter(pk=reservation_id).first()
    if row is None:
        raise Refusal(Code.NOT_FOUND)
    return row


def _decide(row: Reservation, actor: User) -> None:
    row.decided_by = actor
    row.save(update_fields=["decided_by"])


def _tell(row: Reservation, kind: str, actor: User, now: datetime, **data: str) -> None:
    told = {"by": actor.get_username(), **data}
    key = f"{kind}:{row.pk}"
    notices.tell(notices.concerned(row), kind, key=key, now=now, reservation=row, data=told)
