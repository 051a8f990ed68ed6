"""One reading of what a pool can give in a period: its fleet, a team's lines and uses.

A decision is taken on one snapshot. It still stands if the pool's change number
is the same under the lock. Nothing is decided here; how a fleet is read, and kept, is
in fleets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

import numpy as np
from django.db import connection
from psycopg.types.range import TimestamptzRange

from pool.core.fleet import BLOCKER, BOOKED, CLASSES, NEVER, Fleet, instant
from pool.core.fleet_window import Window
from pool.core.period import Period
from pool.core.placement import GpuView, Policy, Use
from pool.core.placement_mode import wide
from pool.core.quota import Line
from pool.models import Gpu, Pool
from pool.queries import fleets, mixes
from pool.queries.fleet_reading import profiles_of

__all__ = ["BLOCKER", "BOOKED", "Snapshot", "TeamUse", "blocked_gpus", "change_of", "profiles_of", "take"]


@dataclass(frozen=True, slots=True)
class TeamUse:
    """What allocations of the team count in its quota: thousandths of a GPU, during their own period.

    Those that cover the whole period of the snapshot are one, with that period.
    """

    model: str
    klass: str
    period: Period
    milli: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The pool at change number `change`, for `period`, as it is at `now`.

    `fleet` has all of the pool, or the GPUs asked for. `gpus` are the same one by one, with what
    is in the way in the period; in `clean_gpus` a span is busy, too, while the slice of a
    booking that is over is still on the GPU: what is placed there has to wait for the
    clean-up, so it comes second. Where there is no such span they are `gpus` themselves.
    `window` tells what is free over the whole period, of many GPUs a hundred times as fast.
    `without` is left out everywhere.
    """

    fleet: Fleet
    period: Period
    now: datetime
    window: Window
    lines: tuple[Line, ...]
    uses: tuple[TeamUse, ...]
    without: UUID | None = None
    #: How this pool is placed; None: as one of which nothing is known.
    policy: Policy | None = None

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
        return Snapshot(self.fleet, period, self.now, window, self.lines, self.uses, self.without)

    def view(self, gpu_id: int, *, clean: bool = False) -> GpuView:
        """One GPU for exact checks. Raises KeyError when it is not in the fleet."""
        auto = self.fleet.cards[self.fleet.places[gpu_id]].use is Use.AUTO
        # A GPU of any use is judged by what is just before and after, too.
        period = wide(self.period) if auto else self.period
        return self.fleet.view(gpu_id, self.now, period, without=self.without, clean=clean)


# What covers the whole period is added up; only the rest has its times.
_USES = """
SELECT alloc.model, booked.klass, sum(alloc.charge_milli),
    CASE WHEN booked.period @> %(period)s THEN NULL
         ELSE (extract(epoch FROM lower(booked.period)) * 1000000)::bigint END AS since,
    CASE WHEN booked.period @> %(period)s THEN NULL
         ELSE (extract(epoch FROM upper(booked.period)) * 1000000)::bigint END AS until
FROM pool_allocation alloc JOIN pool_reservation booked ON booked.id = alloc.reservation_id
WHERE alloc.holds AND alloc.blocked && %(period)s AND booked.period && %(period)s
    AND booked.pool_id = %(pool)s AND booked.team_id = %(team)s
    AND booked.id IS DISTINCT FROM %(without)s
GROUP BY alloc.model, booked.klass, since, until
"""

#: Stands for no time, among times.
_NO_TIME = -1

_LINES = """
SELECT id, model, guaranteed_milli, cap_milli FROM pool_quotaline
WHERE pool_id = %(pool)s AND team_id = %(team)s ORDER BY id
"""


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

    `gpu_ids` narrows it to these GPUs (the team's uses stay whole), or with `whole_nodes` to all
    on their nodes, so that what is left of the nodes is known, too. `without` leaves out the
    allocations of one reservation, which is to be placed anew.
    """
    wanted = {"pool": pool_id, "team": team_id, "without": without}
    if gpu_ids is None:
        fleet = fleets.current(pool_id)
        window = fleet.window(period, now, without=without)
        uses = _uses_in(window, team_id, period)
    else:
        if whole_nodes:
            gpu_ids = list(Gpu.objects.filter(node__gpus__in=gpu_ids).values_list("pk", flat=True).distinct())
        fleet = fleets.fresh(pool_id, gpu_ids)
        window = fleet.window(period, now, without=without)
        told = _rows(_USES, {**wanted, "period": TimestamptzRange(period.start, period.end)})
        uses = tuple(
            _use(model, klass, milli, since, until, period) for model, klass, milli, since, until in told
        )
    lines = tuple(Line(pk, model or None, firm, cap) for pk, model, firm, cap in _rows(_LINES, wanted))
    return Snapshot(fleet, period, now, window, lines, uses, without, mixes.policy(pool_id))


def blocked_gpus(pool_id: int, gpu_ids: Collection[int], *, now: datetime) -> dict[int, GpuView]:
    """These GPUs by id with what makes them unusable, and their blockers as all that is busy."""
    fleet = fleets.fresh(pool_id, gpu_ids)
    views = (fleet.view(gpu_id, now) for gpu_id in fleet.places)
    return {v.id: replace(v, busy=tuple(b for b in v.busy if b.tenancy == BLOCKER)) for v in views}


def change_of(pool_id: int) -> int:
    """The pool's change number now: an earlier reading with the same one was of one moment."""
    return Pool.objects.values_list("change", flat=True).get(pk=pool_id)


def _rows(sql: str, wanted: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        return list(cursor.fetchall())


def _uses_in(window: Window, team_id: int, period: Period) -> tuple[TeamUse, ...]:
    """What _USES tells, out of a fleet."""
    fleet = window.fleet
    mine = np.flatnonzero(fleet.on.field("team", window.which) == team_id)
    rows = fleet.on.records(window.which[mine])
    there = (rows["since"] < window.end) & (rows["until"] > window.start)
    whole = (rows["since"] <= window.start) & (rows["until"] >= window.end)
    times = [np.where(whole, _NO_TIME, rows[name]) for name in ("since", "until")]
    kinds = np.stack((fleet.model[window.at[mine]], rows["klass"], *times), axis=1)[there]
    found, which = np.unique(kinds, axis=0, return_inverse=True)
    sums = np.bincount(which.ravel(), rows["charge"][there], len(found))
    return tuple(
        _use(
            fleet.models[model],
            CLASSES[klass],
            milli,
            None if since == _NO_TIME else since,
            None if until == NEVER else until,
            period,
        )
        for (model, klass, since, until), milli in zip(found.tolist(), sums.tolist(), strict=True)
    )


def _use(model: str, klass: str, milli: int, since: int | None, until: int | None, whole: Period) -> TeamUse:
    if since is None:
        return TeamUse(model, klass, whole, int(milli))
    start = instant(since)
    assert start is not None
    return TeamUse(model, klass, Period(start, instant(NEVER if until is None else until)), int(milli))
