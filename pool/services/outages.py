"""Time for which bookings could not use their GPU: begun, ended, and what fails after the pool's time.

What cannot be used is not charged. The steps need the lock on the pool. What
is done again elsewhere: waiting.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q, QuerySet
from psycopg.types.range import TimestamptzRange

from pool.core.health import Action
from pool.core.states import Reason, State
from pool.models import Allocation, Fault, Outage, Pool, Reservation
from pool.services import locks, reservations, starts, waiting

#: A GPU on which nothing can run now: it answers nothing, or it fell off and was not seen well since.
GONE = Q(gpu__state__lost=True) | Q(
    Exists(Fault.objects.filter(gpu=OuterRef("gpu"), cleared_at=None, action=Action.LOST, good=0))
)


def begin(gpu_ids: Collection[int], *, now: datetime) -> None:
    """From now on the active bookings on these GPUs cannot use them; what is known stays as it is."""
    known = Outage.objects.filter(reservation=OuterRef("reservation"), gpu=OuterRef("gpu"))
    using = Allocation.objects.filter(
        ~Exists(known.filter(period__endswith=None)),
        gpu__in=gpu_ids,
        holds=True,
        wanted_at__isnull=False,
        reservation__state=State.ACTIVE,
    )
    since, reason = TimestamptzRange(now, None), Reason.GPU_LOST.value
    Outage.objects.bulk_create(
        Outage(reservation_id=pk, gpu_id=gpu_id, period=since, reason=reason)
        for pk, gpu_id in using.values_list("reservation_id", "gpu_id").distinct()
    )


def end_over(*, pool_id: int, now: datetime) -> int:
    """End the outages whose booking is over, or has its GPU and its slices on it again; returns how many."""
    return _end_over(pool_id=pool_id, now=now) if _open(pool_id).exists() else 0


@locks.use_case
def _end_over(*, pool_id: int, now: datetime) -> int:
    held = Allocation.objects.filter(reservation=OuterRef("reservation"), gpu=OuterRef("gpu"), holds=True)
    usable = ~GONE & Q(Exists(held)) & ~Q(Exists(held.filter(ready_at=None)))
    over = ~Q(reservation__state=State.ACTIVE) | usable
    return _end(list(_open(pool_id).filter(over).select_related("reservation")), now)


def _end(rows: Sequence[Outage], now: datetime) -> int:
    for row in rows:
        until = min(row.reservation.ended_at or now, now)
        # A range is never empty: what began and ended in one instant lasted a microsecond.
        until = max(until, row.period.lower + timedelta(microseconds=1))
        row.period = TimestamptzRange(row.period.lower, until)
    return Outage.objects.bulk_update(rows, ["period"]) if rows else 0


def overdue(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Bookings of which a GPU has been gone for the pool's time: active, or starts that cannot be moved.

    A start is moved as long as none of its slices was seen (starts.stranded). A
    freeze keeps bookings as they are.
    """
    lost = Fault.objects.filter(gpu__node__pool=pool_id, cleared_at=None, action=Action.LOST)
    if not lost.exists():
        return Reservation.objects.none()
    late = now - timedelta(minutes=Pool.objects.values_list("lost_minutes", flat=True).get(pk=pool_id))
    long = _open(pool_id).filter(GONE, reservation=OuterRef("pk"), period__startswith__lte=late)
    held = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True)
    there = held.filter(GONE, Exists(lost.filter(gpu=OuterRef("gpu"), last_at__lte=late)))
    stuck = Exists(there.filter(wanted_at__lte=late)) & Exists(held.filter(ready_at__isnull=False))
    rows = Reservation.objects.filter(
        (Q(state=State.ACTIVE) & Exists(long)) | (Q(state=State.STARTING) & stuck),
        ~Exists(held.filter(starts.FROZEN)),
        pool=pool_id,
        pool__frozen=False,
    )
    return rows.order_by("pk")


def fail(pool: Pool, rows: Sequence[Reservation], *, now: datetime) -> set[int]:
    """They fail, and what may be done again is first in the line; the GPUs to be commanded.

    The unusable time ends here. What is left of a booking is counted from the
    moment at which its GPU went; of one that never began nothing is used.
    """
    if not rows:
        return set()
    opened = list(_open(pool.pk).filter(reservation__in=rows).select_related("reservation"))
    since = {row.pk: now if row.started_at else row.period.lower for row in rows}
    for one in opened:
        since[one.reservation_id] = min(one.period.lower, since[one.reservation_id])
    gone = Allocation.objects.filter(GONE, reservation__in=rows, holds=True)
    touched = reservations.fail(rows, set(gone.values_list("pk", flat=True)), Reason.GPU_LOST, now=now)
    _end(opened, now)
    for row in rows:
        if row.restartable:
            waiting.restart(row, since[row.pk], now=now)
    return touched


def _open(pool_id: int) -> QuerySet[Outage]:
    return Outage.objects.filter(reservation__pool=pool_id, period__endswith=None)
