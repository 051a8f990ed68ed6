"""The line of those who wait for room: what failed is at its head, and each has its turn when something fits.

Steps under the lock on the pool; the due lane calls them. What waits holds
nothing and counts in no quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Min, QuerySet
from psycopg.types.range import TimestamptzRange

from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.states import Reason, State
from pool.models import Allocation, Pool, Reservation
from pool.queries import snapshot
from pool.services import events, grants, plans, reservations, starts, wishes
from pool.services.plans import NoRoom, Plan

#: What has waited for so long is over.
LONGEST = timedelta(days=7)

#: By pool: its change number, and who waited, when nothing was found. Without a change nothing will be.
_in_vain: dict[int, tuple[int, tuple[UUID, ...]]] = {}


def restart(old: Reservation, since: datetime, *, now: datetime) -> Reservation | None:
    """What was left of `old` at `since` is a new reservation at the head of the line; None: too little was.

    It is the same owner's, and asks for the same.
    """
    left = None if old.period.upper is None else old.period.upper - since
    if left is not None and left < wishes.SHORTEST:
        return None
    row = Reservation(
        team_id=old.team_id,
        pool_id=old.pool_id,
        owner_id=old.owner_id,
        booked_by_id=old.booked_by_id,
        title=old.title,
        ask=old.ask,
        klass=old.klass,
        state=State.WAITING,
        state_reason=Reason.GPU_LOST,
        period=TimestamptzRange(now, None if left is None else now + left),
        created_at=now,
        charge_milli=old.charge_milli,
        visibility=old.visibility,
        restartable=old.restartable,
        continues=old,
        waiting_order=_head(old.pool_id),
    )
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


def queue_up(rows: Sequence[Reservation], *, now: datetime) -> None:
    """What still meets a blocker after the fence, and fits nowhere else, joins the line at its head.

    Earliest start first, each with what is left of its time. `rows` are starts
    that were tried; none of their slices was ever wanted, so they go without a trace.
    """
    stuck = [row for row in rows if _is_stuck(row, now)]
    for row in sorted(stuck, key=lambda row: (row.period.lower, row.pk), reverse=True):
        Allocation.objects.filter(reservation=row, wanted_at=None).delete()
        row.period = TimestamptzRange(now, row.period.upper)
        row.waiting_order = _head(row.pool_id)
        row.save(update_fields=["period", "waiting_order"])
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


def line(pool_id: int) -> QuerySet[Reservation]:
    """Those who wait in this pool, first to last."""
    rows = Reservation.objects.filter(pool=pool_id, state=State.WAITING)
    return rows.select_related("team", "owner").order_by("waiting_order", "pk")


def next_tries(pool_id: int, now: datetime) -> list[UUID]:
    """Those whose turn it is: the head always, of the others some at a time, and who has waited for too long.

    Only the last while the pool is frozen, or has not changed since nothing was found.
    """
    rows = list(line(pool_id).values_list("pk", "created_at"))
    if not rows:
        return []
    ids = [pk for pk, _ in rows]
    turn = {pk for pk, since in rows if now - since >= LONGEST}
    is_vain = _in_vain.get(pool_id) == (snapshot.change_of(pool_id), tuple(ids))
    if not is_vain and not Pool.objects.filter(pk=pool_id, frozen=True).exists():
        turn |= {ids[0], *starts.in_turn(ids[1:], starts.MOST_MOVES - 1, now)}
    return [pk for pk in ids if pk in turn]


def serve(pool: Pool, rows: Sequence[Reservation], now: datetime) -> set[int]:
    """Give each of these, in order, its whole time from now, where that fits; the GPUs to be commanded.

    What has waited for too long is over.
    """
    late = [row for row in rows if now - row.created_at >= LONGEST]
    reservations.lapse(late, Reason.WAIT_LAPSED, now=now)
    touched: set[int] = set()
    for row in rows:
        if row.state == State.WAITING:
            touched |= _try(pool, row, now)
    if rows and not touched and not late:
        _note_vain(pool, rows)
    return touched


def _note_vain(pool: Pool, tried: Sequence[Reservation]) -> None:
    ids = tuple(line(pool.pk).values_list("pk", flat=True))
    if len(tried) == len(ids):
        _in_vain[pool.pk] = (pool.change, ids)


def _try(pool: Pool, row: Reservation, now: datetime) -> set[int]:
    lasts = None if row.period.upper is None else row.period.upper - row.period.lower
    wanted = wishes.again(row, pool, Period(now, None if lasts is None else now + lasts))
    snap = snapshot.take(pool.pk, wanted.blocked, team_id=row.team_id, now=now)
    try:
        plan = plans.choose(snap, wanted)[0]
    except NoRoom:
        reservations.note([row], Reason.NO_CAPACITY, now=now)
        return set()
    except Refusal:
        reservations.note([row], Reason.NO_QUOTA, now=now)
        return set()
    return _grant(row, plan, wanted, now)


def _grant(row: Reservation, plan: Plan, wanted: plans.Wanted, now: datetime) -> set[int]:
    """Write its places, and start it: at once, or when what is there has been taken down."""
    slices = grants.allocate(row, plan, wanted, wanted_at=None)
    row.period = TimestamptzRange(wanted.period.start, wanted.period.end)
    row.charge_milli = sum(one.charge_milli for one in slices)
    row.waiting_order = None
    row.save(update_fields=["period", "charge_milli", "waiting_order"])
    events.record(
        "reservation.placed",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        after=grants.facts(row, slices),
    )
    if not plan.clean:
        reservations.wait([row], Reason.WAITING_FOR_CLEANUP, now=now)
        return set()
    return reservations.begin([row], Reason.WAITING_FOR_NODE, now=now)
