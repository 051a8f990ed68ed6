"""The line of those who wait for room: what failed is at its head, and each has its turn when something fits.

Steps under the lock on the pool; the due lane calls them. What waits holds
nothing and counts in no quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Min
from psycopg.types.range import TimestamptzRange

from pool.core.states import Reason, State
from pool.models import Allocation, Reservation
from pool.services import events, grants, reservations, starts, wishes


def restart(
    old: Reservation, since: datetime, *, now: datetime, reason: Reason = Reason.GPU_LOST
) -> Reservation | None:
    """What was left of `old` at `since` is a new reservation at the head of the line; None: too little was.

    It is the same owner's, and asks for the same on the same terms. `reason`: what ended the old one.
    """
    left = None if old.period.upper is None else old.period.upper - since
    if left is not None and left < wishes.SHORTEST:
        return None
    row = _rest(old, TimestamptzRange(now, None if left is None else now + left), reason, now)
    row.save(force_insert=True)
    events.record(
        "reservation.restarted",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        after=grants.facts(row, []) | {"continues": str(old.pk)},
    )
    return row


def _rest(old: Reservation, period: TimestamptzRange, reason: Reason, now: datetime) -> Reservation:
    """The same on the same terms for another time, at the head of the line."""
    return Reservation(
        team_id=old.team_id,
        pool_id=old.pool_id,
        owner_id=old.owner_id,
        booked_by_id=old.booked_by_id,
        title=old.title,
        ask=old.ask,
        klass=old.klass,
        state=State.WAITING,
        state_reason=reason,
        period=period,
        created_at=now,
        charge_milli=old.charge_milli,
        visibility=old.visibility,
        restartable=old.restartable,
        preemptible=old.preemptible,
        priority=old.priority,
        preempt_signal=old.preempt_signal,
        preempt_grace_s=old.preempt_grace_s,
        justification=old.justification,
        waiting_since=now,
        continues=old,
        waiting_order=_head(old.pool_id),
    )


def queue_up(rows: Sequence[Reservation], *, now: datetime) -> None:
    """What still meets a blocker after the fence, and fits nowhere else, joins the line at its head.

    Earliest start first, each with what is left of its time. `rows` are starts
    that were tried; none of their slices was ever wanted, so they go without a trace.
    """
    stuck = [row for row in rows if _is_stuck(row, now)]
    for row in sorted(stuck, key=lambda row: (row.period.lower, row.pk), reverse=True):
        Allocation.objects.filter(reservation=row, wanted_at=None).delete()
        row.period = TimestamptzRange(now, row.period.upper)
        row.waiting_order, row.waiting_since = _head(row.pool_id), now
        row.save(update_fields=["period", "waiting_order", "waiting_since"])
        reservations.queue(row, now=now)


def _is_stuck(row: Reservation, now: datetime) -> bool:
    waits = row.state == State.STARTING and row.state_reason == Reason.BLOCKED
    if not waits or now - row.period.lower < starts.FENCE:
        return False
    return row.period.upper is None or row.period.upper - now >= wishes.SHORTEST


def _head(pool_id: int) -> int:
    """A place before all who wait."""
    first = Reservation.objects.filter(pool=pool_id, state=State.WAITING).aggregate(at=Min("waiting_order"))
    return min(first["at"] or 0, 0) - 1
