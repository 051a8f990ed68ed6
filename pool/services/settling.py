"""What a report settles: slices that are there, bookings that are active, what is clean and over.

Steps of the transaction that takes the report, under the locks of pool and
GPUs. The report's words are read in core.observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from pool.core import observed, wire
from pool.core.states import Reason, State
from pool.models import Allocation, Gpu, Pool
from pool.services import commands, locks, reservations, starts

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
        _activate(staying, going, now, label)
    _say_why(staying, gpu, seen, now, label)
    _finish(pool, gpu, going, seen, now, label)


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


def _activate(staying: Sequence[Allocation], going: Sequence[Allocation], now: datetime, label: str) -> None:
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
    back = [row for row in old if row.pk not in lacking and row.state_reason == Reason.WAITING_FOR_NODE]
    reservations.note(back, Reason.APPLIED, now=now, label=label)
    reservations.note(
        [row for row in old if row.pk in lacking], Reason.WAITING_FOR_NODE, now=now, label=label
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
