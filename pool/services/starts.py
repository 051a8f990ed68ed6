"""Steps for bookings whose start has come: what is in the way, what may go, what goes elsewhere.

All of a booking starts together or waits together. Nothing is wanted on a GPU
before it may be there, so what waits can still be placed on another; so can
what is wanted where nobody answers and nothing was seen. The steps need the
lock on the pool; GPUs that are to be commanded come back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet

from pool.core import shares
from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.placement import GpuView
from pool.core.states import Reason, State
from pool.models import Allocation, Blocker, Fault, Pool, Reservation
from pool.queries import snapshot
from pool.services import commands, events, grants, plans, reservations, wishes
from pool.services.plans import NoRoom, Plan, Wanted

R = TypeVar("R")

#: How long a start waits for its own GPU to come free before it goes elsewhere.
FENCE = timedelta(seconds=60)
#: Placing anew takes some milliseconds each; the rest waits for the next run of the lane.
MOST_MOVES = 10

_UNUSABLE = {
    "unknown": Reason.NODE_UNKNOWN,
    "frozen": Reason.FROZEN,
    "observe": Reason.FROZEN,
    "managed_elsewhere": Reason.FROZEN,
    "lost": Reason.GPU_LOST,
    "retired": Reason.RETIRED,
}
#: There is nothing to wait for: go elsewhere at once. A freeze keeps bookings where they are.
_GONE = frozenset({Reason.NODE_UNKNOWN, Reason.GPU_LOST, Reason.RETIRED})
_OCCUPIED = frozenset({Reason.BLOCKED, Reason.WAITING_FOR_CLEANUP})

#: A freeze keeps bookings where they are. Of allocations.
FROZEN = Q(gpu__frozen=True) | Q(gpu__node__frozen=True) | Q(gpu__node__agent_frozen=True)

#: What is asked here of what is on a GPU: rows are wide, and ranges of time are slow to read.
_READ = (
    *("gpu", "kind", "profile", "profile_id", "span", "wanted_at"),
    *("share_memory_mib", "share_compute_pct", "share_limit_pct", "mps_user"),
    *("reservation", "reservation__state", "reservation__ask", "reservation__team", "reservation__owner"),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A GPU with its blockers (`view.busy`), and the allocations that are on it or on their way there."""

    view: GpuView
    there: Sequence[Allocation]


def start(pool: Pool, rows: Sequence[Reservation], now: datetime, *, moves: int = MOST_MOVES) -> set[int]:
    """Start what may start; the rest is `starting` and says why it waits.

    `rows` are scheduled, or starting without ever having been wanted; at most
    `moves` of them are placed elsewhere. Returns the ids of the GPUs whose
    wanted layout has changed.
    """
    if not rows:
        return set()
    slices = _slices(rows)
    places = _places(pool, {one.gpu_id for mine in slices.values() for one in mine}, now)
    reasons = {row.pk: Reason.FROZEN if pool.frozen else _in_the_way(slices[row.pk], places) for row in rows}
    for row in in_turn([row for row in rows if _goes_elsewhere(row, reasons[row.pk], now)], moves, now):
        reasons[row.pk] = _move_elsewhere(pool, row, slices[row.pk], now) or reasons[row.pk]
    outcome: dict[Reason | None, list[Reservation]] = defaultdict(list)
    for row in rows:
        outcome[reasons[row.pk]].append(row)
    for reason, waiting in outcome.items():
        if reason not in (None, Reason.MOVED):
            reservations.wait(waiting, reason, now=now)
    touched = reservations.begin(outcome[None], Reason.WAITING_FOR_NODE, now=now)
    return touched | reservations.begin(outcome[Reason.MOVED], Reason.MOVED, now=now)


def rescue(pool: Pool, rows: Sequence[Reservation], now: datetime) -> set[int]:
    """Place elsewhere what is `stranded`; where nothing fits, it stays as it is.

    All of a booking is placed anew. The GPUs it leaves are to be commanded,
    too: a node that returns destroys what it has made for it.
    """
    slices = _slices(rows)
    moved = [row for row in rows if _move_elsewhere(pool, row, slices[row.pk], now)]
    left = {one.gpu_id for row in moved for one in slices[row.pk]}
    return left | reservations.begin(moved, Reason.MOVED, now=now)


def stranded(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Starts that are wanted on a GPU out of reach, with no slice seen yet, by their start.

    Out of reach: lost, retired, on a node that is unknown, or missing from its
    node's reports for longer than the fence. A freeze keeps a booking where it is.
    """
    unseen = Q(gpu__blockers__kind=Blocker.Kind.UNKNOWN, gpu__blockers__since__lte=now - FENCE)
    unknown = Q(gpu__node__unknown_since__isnull=False) | Q(gpu__state__received_at=None) | unseen
    out_of_reach = unknown | Q(gpu__state__lost=True) | Q(gpu__retired_at__isnull=False)
    mine = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True)
    rows = Reservation.objects.filter(
        Exists(mine.filter(out_of_reach, wanted_at__isnull=False)),
        ~Exists(mine.filter(FROZEN | Q(ready_at__isnull=False))),
        pool=pool_id,
        pool__frozen=False,
        state=State.STARTING,
    )
    return rows.order_by("period__startswith", "pk")


def displaced(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Bookings yet to start, on a GPU that was out of use by a fault for the pool's time; by their start."""
    faulty = Fault.objects.filter(cleared_at=None, gpu__node__pool=pool_id)
    if not faulty.exists():
        return Reservation.objects.none()
    minutes = Pool.objects.values_list("lost_minutes", flat=True).get(pk=pool_id)
    there = faulty.filter(gpu=OuterRef("gpu"), since__lte=now - timedelta(minutes=minutes))
    mine = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True)
    rows = Reservation.objects.filter(
        Exists(mine.filter(Exists(there))),
        ~Exists(mine.filter(FROZEN)),
        pool=pool_id,
        pool__frozen=False,
        state=State.SCHEDULED,
    )
    return rows.order_by("period__startswith", "pk")


def relocate(pool: Pool, rows: Sequence[Reservation], now: datetime) -> bool:
    """Place these, which are `displaced`, elsewhere for their own time; where nothing fits, they stay.

    Whether any was.
    """
    slices = _slices(rows)
    moved = [row for row in rows if _move_elsewhere(pool, row, slices[row.pk], now)]
    reservations.note(moved, Reason.MOVED, now=now)
    return bool(moved)


def waiting_on(gpu_ids: Collection[int]) -> list[Reservation]:
    """Starts that wait, with a slice on one of these GPUs."""
    rows = Reservation.objects.filter(
        state=State.STARTING,
        allocations__gpu__in=gpu_ids,
        allocations__holds=True,
        allocations__wanted_at=None,
    )
    return list(rows.distinct().order_by("period__startswith", "pk"))


def _slices(rows: Sequence[Reservation]) -> dict[UUID, list[Allocation]]:
    found: dict[UUID, list[Allocation]] = defaultdict(list)
    if not rows:
        return found
    held = Allocation.objects.filter(reservation__in=rows, holds=True).select_related("reservation")
    for one in held.only(*_READ):
        found[one.reservation_id].append(one)
    return found


def _places(pool: Pool, gpu_ids: set[int], now: datetime) -> dict[int, _Place]:
    views = snapshot.blocked_gpus(pool.pk, gpu_ids, now=now)
    there: dict[int, list[Allocation]] = defaultdict(list)
    # Of shares also those that are to start: what is in the way is found by adding up.
    due = Q(wanted_at__isnull=False) | Q(kind=Allocation.Kind.SHARE, blocked__startswith__lte=now)
    held = Allocation.objects.filter(due, gpu__in=gpu_ids, holds=True)
    for one in held.select_related("reservation").only(*_READ):
        there[one.gpu_id].append(one)
    return {gpu_id: _Place(view, there[gpu_id]) for gpu_id, view in views.items()}


def _in_the_way(slices: Sequence[Allocation], places: dict[int, _Place]) -> Reason | None:
    """The first reason why one of the slices cannot be made now; None when all can."""
    for one in slices:
        place = places.get(one.gpu_id)
        reason = Reason.RETIRED if place is None else _on_one_gpu(one, place)
        if reason is not None:
            return reason
    return None


def _on_one_gpu(one: Allocation, place: _Place) -> Reason | None:
    if not place.view.usable:
        return _UNUSABLE.get(place.view.why or "", Reason.BLOCKED)
    if any(b.start < one.span.upper and one.span.lower < b.start + b.size for b in place.view.busy):
        return Reason.BLOCKED
    if one.kind == Allocation.Kind.SHARE:
        return Reason.WAITING_FOR_CLEANUP if _too_full(one, place) else None
    if any(_stands_before(other, one) for other in place.there):
        return Reason.WAITING_FOR_CLEANUP
    return None


def _too_full(one: Allocation, place: _Place) -> bool:
    """Whether shares that are over but still there leave too little for all that are to be there now."""
    beside = [other for other in place.there if other.pk != one.pk]
    ending = [other for other in beside if other.reservation.state == State.ENDING]
    if not ending:
        return False
    # Shares have one span in common: only the one that ends when this begins is the same stay.
    before = next((other for other in ending if _hands_over(other, one) and _meets(other, one)), None)
    there = [(shares.ALWAYS, grants.portion(other)) for other in beside if other is not before]
    return shares.overflow([grants.portion(one)], there, shares.ALWAYS, place.view.ledgers) is not None


def _stands_before(other: Allocation, one: Allocation) -> bool:
    """Whether an earlier booking is still on this span.

    Not when it is the same stay: same team, owner, ask and span (DESIGN 4), and
    the earlier one has ended. Then the instance goes from hand to hand.
    """
    if other.reservation_id == one.reservation_id:
        return False
    if other.span.lower >= one.span.upper or one.span.lower >= other.span.upper:
        return False
    return not _hands_over(other, one)


def _meets(other: Allocation, one: Allocation) -> bool:
    return bool(other.reservation.period.upper == one.reservation.period.lower)


def _hands_over(other: Allocation, one: Allocation) -> bool:
    return (
        other.reservation.state == State.ENDING
        and other.span == one.span
        and other.profile_id == one.profile_id
        and commands.chain(other) == commands.chain(one)
    )


# --- Elsewhere ----------------------------------------------------------------


def _goes_elsewhere(row: Reservation, reason: Reason | None, now: datetime) -> bool:
    return reason in _GONE or (reason in _OCCUPIED and now - row.period.lower >= FENCE)


def in_turn(rows: Sequence[R], most: int, now: datetime) -> Sequence[R]:
    """At most so many, others each time: those that fit nowhere must not keep the rest from a try."""
    if len(rows) <= most:
        return rows
    first = int(now.timestamp()) // 2 * most % len(rows)  # the lane comes every two seconds
    return [*rows[first:], *rows[:first]][:most]


def _move_elsewhere(
    pool: Pool, row: Reservation, slices: Sequence[Allocation], now: datetime
) -> Reason | None:
    """Place the same ask on other GPUs for what is left of its time; None when nothing fits."""
    period = Period(max(row.period.lower, now), row.period.upper)
    wanted = wishes.again(row, pool, period)
    snap = snapshot.take(pool.pk, wanted.blocked, team_id=row.team_id, now=now, without=row.pk)
    try:
        found = plans.choose(snap, wanted)
    except (NoRoom, Refusal):
        return None
    clean = next((plan for plan in found if plan.clean), None)
    if clean is None:
        return None
    _replace(row, slices, clean, wanted, now)
    return Reason.MOVED


def _replace(
    row: Reservation, slices: Sequence[Allocation], plan: Plan, wanted: Wanted, now: datetime
) -> None:
    """Slices that were never wanted go without a trace, the others are given up."""
    before = grants.facts(row, list(slices))
    reservations.leave([one.pk for one in slices if one.wanted_at is not None], now=now)
    Allocation.objects.filter(pk__in=[one.pk for one in slices if one.wanted_at is None]).delete()
    rows = grants.allocate(row, plan, wanted, wanted_at=None)
    row.charge_milli = sum(one.charge_milli for one in rows)
    row.imex_channel = grants.channel_of(row.pool, plan, wanted, own=row.pk)
    row.version += 1
    row.save(update_fields=["charge_milli", "imex_channel", "version"])
    events.record(
        "reservation.moved",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        before=before,
        after=grants.facts(row, rows),
    )
