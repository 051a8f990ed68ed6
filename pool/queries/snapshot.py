"""One reading of what a pool can give in a period: GPUs, what is in their way, a team's lines and uses.

A decision is taken on one snapshot. It still stands if the pool's change number
is the same under the lock. Nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection
from psycopg.types.range import Range, TimestamptzRange

from pool.core import mig, wire
from pool.core.health import stale
from pool.core.mig import Media, Profile
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Use
from pool.core.quota import Line
from pool.models import Pool, QuotaLine
from pool.queries import clock

#: Tenancy of what occupies a GPU without being an allocation.
BLOCKER = "blocker"


@dataclass(frozen=True, slots=True)
class TeamUse:
    """What one allocation of the team counts in its quota: thousandths of a GPU, during its own period."""

    model: str
    klass: str
    period: Period
    milli: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool at change number `change`.

    `gpus` are all of the pool, or those asked for. In `clean_gpus` a span is
    busy, too, while the slice of a booking that is over is still on the GPU:
    what is placed there has to wait for the clean-up, so it comes second.
    """

    change: int
    gpus: tuple[GpuView, ...]
    clean_gpus: tuple[GpuView, ...]
    lines: tuple[Line, ...]
    uses: tuple[TeamUse, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """An allocation that holds, as far as a decision needs it."""

    gpu_id: int
    busy: Busy
    over: bool
    use: TeamUse | None


_GPUS = """
SELECT gpu.id, gpu.uuid, gpu.node_id, node.name, gpu.index, gpu.model, gpu.memory_mib, gpu.use, gpu.grid,
    CASE WHEN gpu.use = 'mig' THEN gpu.profiles::text END,
    CASE WHEN gpu.retired_at IS NOT NULL THEN 'retired'
         WHEN state.lost THEN 'lost'
         WHEN NOT gpu.managed THEN 'observe'
         WHEN gpu.frozen OR node.frozen OR node.agent_frozen THEN 'frozen'
         WHEN node.unknown_since IS NOT NULL OR state.received_at IS NULL THEN 'unknown' END,
    node.received_at
FROM pool_gpu gpu
JOIN pool_node node ON node.id = gpu.node_id
LEFT JOIN pool_gpustate state ON state.gpu_id = gpu.id
WHERE node.pool_id = %(pool)s AND (%(gpus)s::bigint[] IS NULL OR gpu.id = ANY(%(gpus)s))
ORDER BY gpu.id
"""

_BLOCKERS = """
SELECT blocker.gpu_id, lower(blocker.span), upper(blocker.span) - lower(blocker.span)
FROM pool_blocker blocker
JOIN pool_gpu gpu ON gpu.id = blocker.gpu_id
JOIN pool_node node ON node.id = gpu.node_id
WHERE node.pool_id = %(pool)s AND (%(gpus)s::bigint[] IS NULL OR gpu.id = ANY(%(gpus)s))
"""

# What is over but not clean lies strictly before the period; it is there now.
_HELD = """
SELECT alloc.gpu_id, lower(alloc.span), upper(alloc.span) - lower(alloc.span),
    lower(alloc.blocked), upper(alloc.blocked), alloc.blocked << %(period)s, alloc.tenancy,
    alloc.kind, alloc.profile_id, alloc.takes_media, alloc.media_group, alloc.model, alloc.charge_milli,
    booked.team_id, booked.klass, lower(booked.period), upper(booked.period)
FROM pool_allocation alloc
JOIN pool_reservation booked ON booked.id = alloc.reservation_id
WHERE alloc.holds AND booked.pool_id = %(pool)s AND booked.id IS DISTINCT FROM %(without)s
    AND (alloc.blocked && %(period)s OR (alloc.blocked << %(period)s AND upper(alloc.blocked) <= %(now)s))
    AND (%(gpus)s::bigint[] IS NULL OR alloc.gpu_id = ANY(%(gpus)s) OR booked.team_id = %(team)s)
"""


def take(
    pool_id: int,
    period: Period,
    *,
    team_id: int,
    now: datetime,
    gpu_ids: Collection[int] | None = None,
    without: UUID | None = None,
) -> Snapshot:
    """Read the pool as far as `period` is concerned.

    `gpu_ids` narrows it to these GPUs (the team's uses stay whole); `without`
    leaves out the allocations of one reservation, which is to be placed anew.
    """
    change = Pool.objects.values_list("change", flat=True).get(pk=pool_id)
    wanted = {
        "pool": pool_id,
        "team": team_id,
        "now": now,
        "gpus": None if gpu_ids is None else list(gpu_ids),
        "without": without,
        "period": _range(period),
    }
    held = [_held(row, team_id) for row in _rows(_HELD, wanted)]
    busy = _blockers(wanted)
    unclean: dict[int, list[Busy]] = defaultdict(list)
    for one in held:
        (unclean if one.over else busy)[one.gpu_id].append(one.busy)
    gpus = tuple(_view(row, busy) for row in _rows(_GPUS, wanted))
    return Snapshot(
        change=change,
        gpus=gpus,
        clean_gpus=_with(gpus, unclean, period) if unclean else gpus,
        lines=_lines(pool_id, team_id),
        uses=tuple(one.use for one in held if one.use and not one.over),
    )


def blocked_gpus(pool_id: int, gpu_ids: Collection[int], *, now: datetime) -> dict[int, GpuView]:
    """These GPUs by id with what makes them unusable, and their blockers as all that is busy."""
    wanted = {"pool": pool_id, "gpus": list(gpu_ids), "now": now}
    busy = _blockers(wanted)
    return {row[0]: _view(row, busy) for row in _rows(_GPUS, wanted)}


def change_of(pool_id: int) -> int:
    """The pool's change number now: an earlier reading with the same one was of one moment."""
    return Pool.objects.values_list("change", flat=True).get(pk=pool_id)


def _rows(sql: str, wanted: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        return list(cursor.fetchall())


def _blockers(wanted: Mapping[str, Any]) -> dict[int, list[Busy]]:
    """By GPU; masked from now until they are cleared."""
    busy: dict[int, list[Busy]] = defaultdict(list)
    for gpu_id, start, size in _rows(_BLOCKERS, wanted):
        busy[gpu_id].append(Busy(start, size, Period(wanted["now"], None), None, BLOCKER))
    return busy


def _range(period: Period) -> Range[datetime]:
    return TimestamptzRange(period.start, period.end)


def _held(row: tuple[Any, ...], team_id: int) -> _Held:
    gpu_id, start, size, since, until, over, tenancy, kind, profile_id, takes, group, *rest = row
    model, milli, team, klass, begin, end = rest
    media = None if kind == "gpu" else _media(takes, group)
    busy = Busy(start, size, Period(since, until), media, str(tenancy), profile_id)
    use = TeamUse(model, klass, Period(begin, end), milli) if team == team_id else None
    return _Held(gpu_id, busy, over, use)


def _with(
    gpus: tuple[GpuView, ...], unclean: Mapping[int, list[Busy]], period: Period
) -> tuple[GpuView, ...]:
    """The GPUs with the spans that are not clean yet shown as busy for the whole period."""
    more = {gpu_id: tuple(replace(one, period=period) for one in ones) for gpu_id, ones in unclean.items()}
    return tuple(replace(gpu, busy=gpu.busy + more[gpu.id]) if gpu.id in more else gpu for gpu in gpus)


def _lines(pool_id: int, team_id: int) -> tuple[Line, ...]:
    rows = QuotaLine.objects.filter(pool_id=pool_id, team_id=team_id).order_by("pk")
    found = rows.values_list("pk", "model", "guaranteed_milli", "cap_milli")
    return tuple(Line(pk, model or None, guaranteed, cap) for pk, model, guaranteed, cap in found)


def _media(takes: bool, group: int | None) -> Media:
    """The reverse of mig.takes_media and mig.media_group, which the columns keep."""
    if group is None:
        return Media.NONE
    if group == 1:
        return Media.ALL
    return Media.EXT if takes else Media.DEFAULT


def _view(row: tuple[Any, ...], busy: Mapping[int, list[Busy]]) -> GpuView:
    (gpu_id, uuid, node_id, node, index, model, memory_mib, use, grid, offers, why, received_at) = row
    if why is None and stale(received_at, clock.real_now(), settings.REPORT_SECONDS):
        why = "unknown"
    return GpuView(
        id=gpu_id,
        uuid=uuid,
        node_id=node_id,
        node=node,
        index=index,
        model=model,
        memory_mib=memory_mib,
        use=Use(use),
        grid=grid,
        profiles=profiles_of(model, offers or "null", grid),
        busy=tuple(busy.get(gpu_id, ())),
        usable=why is None,
        why=why,
    )


@lru_cache(maxsize=1024)
def profiles_of(model: str, offers: str, grid: int) -> tuple[Profile, ...]:
    """The profiles of a GPU out of its last report's offers (JSON text; "null": no report, so no profile).

    A report without offers (MIG mode is off) leaves the catalogue's.
    """
    known = mig.models().get(model)
    reported = msgspec.json.decode(offers, type=tuple[wire.Offer, ...] | None)
    return () if reported is None else mig.merged(known, reported, grid)
