"""Steps for bookings above a pool's threshold: they are pending until an approver says yes, or lapse.

A pending one holds its GPUs and counts in quota. Saying yes or no is in approvals.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import QuerySet

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.states import Reason, State
from pool.models import Pool, Reservation
from pool.services import notices, reservations

#: So long an approver has at most, and so long before its start it is decided.
LASTS = timedelta(hours=24)
BEFORE_START = timedelta(hours=1)
#: What starts sooner leaves no time to ask.
SOONEST = timedelta(hours=2)
#: The first start that is told lies at such a time: who asks for it a moment later is not refused again.
STEP = timedelta(minutes=5)
#: So many of one team may be pending in a pool.
MOST_PENDING = 3


def needs(pool: Pool, milli: int) -> bool:
    """Whether a booking of so many thousandths of a GPU needs an approver."""
    return pool.approve_above_milli is not None and milli > pool.approve_above_milli


def approve_by(pool: Pool, milli: int, period: Period, *, team_id: int, now: datetime) -> datetime:
    """Until when one that needs it has to be approved: a day from now, an hour before its start at most.

    Refuses with NEEDS_APPROVAL: earliest (the first start that can still be approved), above_milli,
    asked_milli, for what starts in under 2 hours; reason too_many_pending and most for a fourth.
    """
    numbers = {"above_milli": pool.approve_above_milli, "asked_milli": milli}
    if period.start < now + SOONEST:
        raise Refusal(Code.NEEDS_APPROVAL, earliest=_earliest(now).isoformat(), **numbers)
    pending = Reservation.objects.filter(pool=pool, team=team_id, state=State.PENDING_APPROVAL)
    if pending.count() >= MOST_PENDING:
        raise Refusal(Code.NEEDS_APPROVAL, reason="too_many_pending", most=MOST_PENDING, **numbers)
    return min(now + LASTS, period.start - BEFORE_START)


def _earliest(now: datetime) -> datetime:
    first = now + SOONEST
    over = (first - datetime.min.replace(tzinfo=first.tzinfo)) % STEP
    return first + (STEP - over) if over else first


def check(pool: Pool, milli: int, period: Period, *, team_id: int, now: datetime) -> None:
    """Refuses as `approve_by` does what could not be approved in time, where it has to be."""
    if needs(pool, milli):
        approve_by(pool, milli, period, team_id=team_id, now=now)


def no_extension(pool: Pool, milli: int) -> None:
    """What needed an approver was approved for its own time: for more it is asked anew, as a new booking."""
    if needs(pool, milli):
        raise Refusal(
            Code.NEEDS_APPROVAL,
            reason="no_extension",
            above_milli=pool.approve_above_milli,
            asked_milli=milli,
        )


def undecided(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Those that nobody has approved in time."""
    rows = Reservation.objects.filter(pool=pool_id, state=State.PENDING_APPROVAL, approve_by__lte=now)
    return rows.order_by("approve_by", "pk")


def lapse(rows: Sequence[Reservation], *, now: datetime) -> None:
    """They are over, and whoever asked for them is told."""
    reservations.lapse(rows, Reason.APPROVAL_LAPSED, now=now)
    for row in rows:
        key = f"approval_lapsed:{row.pk}"
        notices.tell(notices.concerned(row), "approval_lapsed", key=key, now=now, reservation=row)
