"""One reading of what a pool can give in a period: its fleet, and where its teams stand.

A decision is taken on one snapshot. It still stands if the pool's change number
is the same under the lock. Nothing is decided here; how a fleet is read, and kept, is
in fleets.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from uuid import UUID

from pool.core.fleet import BLOCKER, BOOKED, Bools, Fleet
from pool.core.fleet_window import Window
from pool.core.period import Period
from pool.core.placement import GpuView, Policy, Use
from pool.core.placement_mode import wide
from pool.core.standing import Standing
from pool.models import Gpu, Pool
from pool.queries import fleets, mixes, standing, waiting
from pool.queries.fleet_reading import profiles_of

__all__ = ["BLOCKER", "BOOKED", "Snapshot", "blocked_gpus", "change_of", "profiles_of", "take"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The pool at change number `change`, for `period`, as it is at `now`.

    `fleet` has all of the pool, or the GPUs asked for. `gpus` are the same one by one, with what
    is in the way in the period; in `clean_gpus` a span is busy, too, while the slice of a
    booking that is over is still on the GPU: what is placed there has to wait for the
    clean-up, so it comes second. Where there is no such span they are `gpus` themselves.
    `window` tells what is free over the whole period, of many GPUs a hundred times as fast.
    `whole` and `standing` are always of the whole pool and all its teams. `without` is left out everywhere.
    `barred` are places of `fleet` that others' guarantees need.
    """

    fleet: Fleet
    period: Period
    now: datetime
    window: Window
    whole: Fleet
    standing: Standing
    without: UUID | None = None
    #: How this pool is placed; None: as one of which nothing is known.
    policy: Policy | None = None
    #: Models in which nothing is borrowed, because a holder of a guarantee waits there.
    stopped: Container[str] = frozenset()
    barred: Bools | None = None

    @property
    def change(self) -> int:
        return self.fleet.change

    @cached_property
    def clean_window(self) -> Window:
        """`window` with what is over but not clean, too; itself where there is nothing of it."""
        clean = self.fleet.window(self.period, self.now, without=self.without, clean=True)
        return clean if len(clean.at) > len(self.window.at) else self.window

    @cached_property
    def gpus(self) -> tuple[GpuView, ...]:
        """In the order of their ids."""
        return tuple(self.view(gpu_id) for gpu_id in sorted(self.fleet.places))

    @cached_property
    def clean_gpus(self) -> tuple[GpuView, ...]:
        """In the order of their ids."""
        if self.clean_window is self.window:
            return self.gpus
        return tuple(self.view(gpu_id, clean=True) for gpu_id in sorted(self.fleet.places))

    def within(self, period: Period) -> Snapshot:
        """The same reading for a period that lies in this one."""
        window = self.fleet.window(period, self.now, without=self.without)
        return replace(self, period=period, window=window)

    def view(self, gpu_id: int, *, clean: bool = False) -> GpuView:
        """One GPU for exact checks. Raises KeyError when it is not in the fleet."""
        auto = self.fleet.cards[self.fleet.places[gpu_id]].use is Use.AUTO
        # A GPU of any use is judged by what is just before and after, too.
        period = wide(self.period) if auto else self.period
        return self.fleet.view(gpu_id, self.now, period, without=self.without, clean=clean)


@dataclass(frozen=True, eq=False)
class _Stopped(Container[str]):
    """Looked for once something would be borrowed: most often nothing is.

    That is later than the rest is read; but what those who wait do changes the pool's change number, too.
    """

    pool_id: int
    fleet: Fleet
    standing: Standing
    now: datetime
    without: UUID | None

    def __contains__(self, model: object) -> bool:
        return model in self._models

    @cached_property
    def _models(self) -> frozenset[str]:
        return waiting.guaranteed_waiting(
            self.pool_id, self.fleet, self.standing, self.now, without=self.without
        )


def take(
    pool_id: int,
    period: Period,
    *,
    team_id: int,
    now: datetime,
    gpu_ids: Collection[int] | None = None,
    whole_nodes: bool = False,
    without: UUID | None = None,
) -> Snapshot:
    """Read the pool as far as `period` is concerned.

    `gpu_ids` narrows it to these GPUs (where the teams stand stays whole), or with `whole_nodes` to
    all on their nodes, so that what is left of the nodes is known, too. `without` leaves out the
    allocations of one reservation, which is to be placed anew.
    """
    whole = fleets.current(pool_id)
    fleet = whole
    if gpu_ids is not None:
        if whole_nodes:
            gpu_ids = list(Gpu.objects.filter(node__gpus__in=gpu_ids).values_list("pk", flat=True).distinct())
        fleet = fleets.fresh(pool_id, gpu_ids)
    window = fleet.window(period, now, without=without)
    stand, somebody = standing.with_line(pool_id, whole, period, without=without)
    stopped: Container[str] = _Stopped(pool_id, whole, stand, now, without) if somebody else frozenset()
    return Snapshot(fleet, period, now, window, whole, stand, without, mixes.policy(pool_id), stopped)


def blocked_gpus(pool_id: int, gpu_ids: Collection[int], *, now: datetime) -> dict[int, GpuView]:
    """These GPUs by id with what makes them unusable, and their blockers as all that is busy."""
    fleet = fleets.fresh(pool_id, gpu_ids)
    views = (fleet.view(gpu_id, now) for gpu_id in fleet.places)
    return {v.id: replace(v, busy=tuple(b for b in v.busy if b.tenancy == BLOCKER)) for v in views}


def change_of(pool_id: int) -> int:
    """The pool's change number now: an earlier reading with the same one was of one moment."""
    return Pool.objects.values_list("change", flat=True).get(pk=pool_id)
