"""What a report settles: slices that are there, bookings that are active, what is clean and over.

Steps of the transaction that takes the report, under the locks of pool and
GPUs. The report's words are read in core.observed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from pool.core import observed, wire
from pool.core.states import Reason, State
from pool.models import Allocation, Event, Gpu, Pool, Reservation
from pool.services import commands, events, locks, reservations, starts

if TYPE_CHECKING:
    from pool.core.observed import Seen

#: What the agent says it could not do -> why the booking waits. Anything else: the driver refused.
_TROUBLE = {
    "in_use": Reason.IN_USE,
    "reset_required": Reason.RESET_REQUIRED,
    "gpu_is_lost": Reason.GPU_LOST,
    "foreign": Reason.BLOCKED,
    "frozen": Reason.FROZEN,
    "observe": Reason.FROZEN,
}


def settle_gpu(*, pool: Pool, gpu: Gpu, seen: Seen, now: datetime, label: str) -> None:
    """Take over what `seen` shows of the allocations on `gpu`.

    A starting booking is active once all its slices are in force; an ending one
    is over once nothing of it is left, and then what waited for it starts.
    `label` names the node in the audit.
    """
    rows = list(
        Allocation.objects.filter(gpu=gpu, holds=True, wanted_at__isnull=False).select_related("reservation")
    )
    _share(rows)
    layout = (
        msgspec.convert(gpu.wanted, wire.Layout) if gpu.wanted else wire.Layout(mig=gpu.use == Gpu.Use.MIG)
    )
    going = [row for row in rows if row.reservation.state == State.ENDING]
    staying = [row for row in rows if row.reservation.state in (State.STARTING, State.ACTIVE)]
    if observed.readable(layout, seen):
        _see(staying, observed.in_force(layout, seen), now)
        _activate(staying, going, gpu, now, label)
    reservations.note(_newly_lost(staying, seen), Reason.GPU_LOST, now=now, label=label)
    _say_why(staying, gpu, seen, now, label)
    held_up = _held_up(going, gpu, layout, seen)
    _finish(pool, gpu, going, seen, now, label)
    _say_held_up(held_up, now, label)


def unsaid(rows: Sequence[Allocation], gpu: Gpu, layout: wire.Layout, seen: Seen) -> bool:
    """Whether holders are still to be told: their GPU is lost, it is back, or what they left is in use."""
    staying = [row for row in rows if row.reservation.state != State.ENDING]
    going = [row for row in rows if row.reservation.state == State.ENDING]
    if _newly_lost(staying, seen) or _held_up(going, gpu, layout, seen):
        return True
    active = [row.reservation for row in staying if row.reservation.state == State.ACTIVE]
    told = {row.pk for row in active if row.state_reason == Reason.GPU_LOST}
    return observed.readable(layout, seen) and bool(told - _lost_elsewhere(told, gpu))


def _share(rows: Sequence[Allocation]) -> None:
    """One object a reservation, so that steps see one another's changes."""
    known = reservations.by_id(rows)
    for row in rows:
        row.reservation = known[row.reservation_id]


def _see(rows: Sequence[Allocation], in_force: Mapping[str, str], now: datetime) -> None:
    """Note which slices are usable, and under which UUID; what is not there any more is not ready."""
    changed = []
    for row in rows:
        uuid = in_force.get(str(row.pk))
        was = (row.ready_at is not None, row.mig_uuid)
        row.ready_at = None if uuid is None else row.ready_at or now
        row.mig_uuid = uuid or ""
        if was != (row.ready_at is not None, row.mig_uuid):
            changed.append(row)
    if changed:
        Allocation.objects.bulk_update(changed, ["ready_at", "mig_uuid"])


def _activate(
    staying: Sequence[Allocation], going: Sequence[Allocation], gpu: Gpu, now: datetime, label: str
) -> None:
    owners = reservations.by_id(staying)
    lacking = set(
        Allocation.objects.filter(reservation__in=owners, holds=True, ready_at=None).values_list(
            "reservation_id", flat=True
        )
    )
    whole = [row for pk, row in owners.items() if pk not in lacking]
    taken_over = {row.mig_uuid for row in going if row.mig_uuid}
    heirs = {row.reservation_id for row in staying if row.mig_uuid in taken_over}
    new = [row for row in whole if row.state == State.STARTING]
    for reason, some in (
        (Reason.APPLIED, [row for row in new if row.pk not in heirs]),
        (Reason.HANDED_OVER, [row for row in new if row.pk in heirs]),
    ):
        reservations.activate(some, reason, now=now, label=label)
    old = [row for row in owners.values() if row.state == State.ACTIVE and row not in new]
    lost = _lost_elsewhere({row.pk for row in old if row.state_reason == Reason.GPU_LOST}, gpu)
    old = [row for row in old if row.pk not in lost]
    not_there = (Reason.WAITING_FOR_NODE, Reason.GPU_LOST)
    back = [row for row in old if row.pk not in lacking and row.state_reason in not_there]
    reservations.note(back, Reason.APPLIED, now=now, label=label)
    reservations.note(
        [row for row in old if row.pk in lacking], Reason.WAITING_FOR_NODE, now=now, label=label
    )


def _newly_lost(staying: Sequence[Allocation], seen: Seen) -> list[Reservation]:
    """Active ones on a GPU that is lost and that do not say so yet. They stay active: it may come back."""
    if not seen.lost:
        return []
    active = [row for row in staying if row.reservation.state == State.ACTIVE]
    owners = reservations.by_id(active).values()
    return [row for row in owners if row.state_reason != Reason.GPU_LOST]


def _lost_elsewhere(ids: Collection[UUID], gpu: Gpu) -> set[UUID]:
    """Those of these reservations that hold another GPU which is lost."""
    if not ids:
        return set()
    others = Allocation.objects.filter(reservation__in=ids, holds=True, gpu__state__lost=True)
    return set(others.exclude(gpu=gpu).values_list("reservation_id", flat=True))


def _held_up(going: Sequence[Allocation], gpu: Gpu, layout: wire.Layout, seen: Seen) -> list[Reservation]:
    """Ending ones that cannot go because a process still runs, and that have not been told so."""
    spans = observed.overruns(layout, seen) if going else []
    if not spans:
        return []
    gone = observed.gone([str(row.pk) for row in going], gpu.generation, seen)
    left = [row for row in going if str(row.pk) not in gone and _is_held_up(row, spans, gpu, seen)]
    owners = reservations.by_id(left)
    said = Event.objects.filter(reservation_id__in=owners, verb="reservation.noted")
    said = said.filter(after__state=State.ENDING.value, after__reason=Reason.IN_USE.value)
    told = set(said.values_list("reservation_id", flat=True)) if owners else set()
    return [row for pk, row in owners.items() if pk not in told]


def _is_held_up(row: Allocation, spans: Sequence[tuple[int, int]], gpu: Gpu, seen: Seen) -> bool:
    if not any(start < row.span.upper and row.span.lower < start + size for start, size in spans):
        return False
    users = observed.users(str(row.pk), kind=row.kind, instances=seen.instances, processes=seen.processes)
    return observed.held_up(users, seen.trouble, gpu.generation)


def _say_held_up(rows: Sequence[Reservation], now: datetime, label: str) -> None:
    """Put it down once. Why it ends stays its reason, since that is what it will have ended for."""
    events.write(
        events.draft(
            "reservation.noted",
            actor=None,
            now=now,
            label=label,
            team_id=row.team_id,
            pool_id=row.pool_id,
            reservation_id=row.pk,
            after={"state": str(row.state), "reason": Reason.IN_USE.value, "version": row.version},
        )
        for row in rows
    )


def _say_why(staying: Sequence[Allocation], gpu: Gpu, seen: Seen, now: datetime, label: str) -> None:
    """Tell those who wait what the agent could not do with the newest command."""
    if seen.trouble is None or seen.trouble.generation < gpu.generation:
        return
    reason = _TROUBLE.get(seen.trouble.code, Reason.DRIVER_REFUSED)
    waiting = [row for row in staying if row.ready_at is None and row.reservation.state == State.STARTING]
    reservations.note(list(reservations.by_id(waiting).values()), reason, now=now, label=label)


def _finish(pool: Pool, gpu: Gpu, going: Sequence[Allocation], seen: Seen, now: datetime, label: str) -> None:
    gone = observed.gone([str(row.pk) for row in going], gpu.generation, seen)
    clean = [row for row in going if str(row.pk) in gone]
    if not clean:
        return
    reservations.clean([row.pk for row in clean], now=now)
    reservations.close(list(reservations.by_id(clean).values()), now=now, label=label)
    locks.changed(pool)
    _start_next(pool, gpu, now)


def _start_next(pool: Pool, gpu: Gpu, now: datetime) -> None:
    """Start what waited for this GPU alone; what needs locks on other GPUs, too, is left to the lane."""
    waiting = starts.waiting_on([gpu.pk])
    wide = set(
        Allocation.objects.filter(reservation__in=waiting, holds=True)
        .exclude(gpu=gpu)
        .values_list("reservation_id", flat=True)
    )
    touched = starts.start(pool, [row for row in waiting if row.pk not in wide], now, moves=0)
    if gpu.pk in touched:
        commands.issue([gpu], now)
