"""One reading of what a pool can give in a period: GPUs, what is in their way, a team's lines and uses.

A decision is taken on one snapshot. It still stands if the pool's change number
is the same under the lock. Nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection
from psycopg.types.range import TimestamptzRange

from pool.core import mig, placement_room, wire
from pool.core.health import stale
from pool.core.mig import Media, Profile
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Portion, Use
from pool.core.quota import Line
from pool.core.shapes import Sharing
from pool.models import Pool
from pool.queries import clock

#: Tenancies: all that is booked excludes one another; the rest is no allocation at all.
BOOKED = "booked"
BLOCKER = placement_room.BLOCKER

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TeamUse:
    """What allocations of the team count in its quota: thousandths of a GPU, during their own period.

    Those that cover the whole period of the snapshot are one, with that period.
    """

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


# A share that runs on after its end still holds, so the ledgers know what it takes: it masks nobody else's.
# One statement for the pool's number and its GPUs, so that the number is as old as what is read after it.
_GPUS = """
SELECT pool.change, gpu.id, gpu.uuid, gpu.node_id, node.name, gpu.index, gpu.model, gpu.memory_mib,
    gpu.use, gpu.grid, CASE WHEN gpu.use = 'mig' THEN gpu.profiles::text END,
    CASE WHEN gpu.retired_at IS NOT NULL THEN 'retired'
         WHEN state.lost THEN 'lost'
         WHEN NOT gpu.managed THEN 'observe'
         WHEN node.managed_by <> '[]'::jsonb AND NOT gpu.excluded THEN 'managed_elsewhere'
         WHEN gpu.use = 'share' AND node.wire BETWEEN 1 AND %(shares_since)s - 1 THEN 'update_needed'
         WHEN gpu.frozen OR node.frozen OR node.agent_frozen THEN 'frozen'
         WHEN node.unknown_since IS NOT NULL OR state.received_at IS NULL THEN 'unknown'
         WHEN EXISTS (SELECT FROM pool_blocker ill WHERE ill.gpu_id = gpu.id AND ill.kind = 'health')
             THEN 'unhealthy' END,
    node.received_at, gpu.sharing, pool.most_shares, gpu.sharing = 'mps' AND NOT pool.mps_multi_user,
    (SELECT array_agg(ARRAY[lower(blocker.span), upper(blocker.span)])
     FROM pool_blocker blocker WHERE blocker.gpu_id = gpu.id
         AND NOT (gpu.use = 'share' AND blocker.kind = 'overrun' AND EXISTS (
             SELECT FROM pool_allocation late JOIN pool_reservation over ON over.id = late.reservation_id
             WHERE late.gpu_id = gpu.id AND late.holds AND over.state = 'ending')))
FROM pool_pool pool
LEFT JOIN (pool_node node JOIN pool_gpu gpu ON gpu.node_id = node.id)
    ON node.pool_id = pool.id AND (%(gpus)s::bigint[] IS NULL OR gpu.id = ANY(%(gpus)s))
LEFT JOIN pool_gpustate state ON state.gpu_id = gpu.id
WHERE pool.id = %(pool)s
ORDER BY gpu.id
"""

# Instants come as microseconds: reading hundreds of them as time stamps costs more than all the rest.
_BUSY = """
SELECT gpu_id, lower(span), upper(span) - lower(span), profile_id, media_group, takes_media,
    (extract(epoch FROM lower(blocked)) * 1000000)::bigint,
    (extract(epoch FROM upper(blocked)) * 1000000)::bigint,
    blocked << %(period)s, share_memory_mib, share_compute_pct, share_limit_pct, mps_user
FROM pool_allocation
WHERE holds AND gpu_id = ANY(%(gpus)s) AND reservation_id IS DISTINCT FROM %(without)s
    AND (blocked && %(period)s OR (blocked << %(period)s AND upper(blocked) <= %(now)s))
"""

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
    without: UUID | None = None,
) -> Snapshot:
    """Read the pool as far as `period` is concerned.

    `gpu_ids` narrows it to these GPUs (the team's uses stay whole); `without`
    leaves out the allocations of one reservation, which is to be placed anew.
    """
    wanted = {
        "pool": pool_id,
        "team": team_id,
        "now": now,
        "gpus": None if gpu_ids is None else list(gpu_ids),
        "shares_since": wire.SHARES_SINCE,
        "without": without,
        "period": TimestamptzRange(period.start, period.end),
    }
    rows = _rows(_GPUS, wanted)
    found = [row for row in rows if row[1] is not None]
    busy, unclean = _busy(wanted | {"gpus": [row[1] for row in found]})
    gpus = tuple(_view(row, busy, now) for row in found)
    return Snapshot(
        change=rows[0][0],
        gpus=gpus,
        clean_gpus=_with(gpus, unclean, period) if unclean else gpus,
        lines=tuple(Line(pk, model or None, firm, cap) for pk, model, firm, cap in _rows(_LINES, wanted)),
        uses=tuple(_use(row, period) for row in _rows(_USES, wanted)),
    )


def blocked_gpus(pool_id: int, gpu_ids: Collection[int], *, now: datetime) -> dict[int, GpuView]:
    """These GPUs by id with what makes them unusable, and their blockers as all that is busy."""
    rows = _rows(_GPUS, {"pool": pool_id, "gpus": list(gpu_ids), "shares_since": wire.SHARES_SINCE})
    return {row[1]: _view(row, {}, now) for row in rows if row[1] is not None}


def change_of(pool_id: int) -> int:
    """The pool's change number now: an earlier reading with the same one was of one moment."""
    return Pool.objects.values_list("change", flat=True).get(pk=pool_id)


def _rows(sql: str, wanted: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        return list(cursor.fetchall())


def _busy(wanted: Mapping[str, Any]) -> tuple[dict[int, list[Busy]], dict[int, list[Busy]]]:
    """By GPU: what is booked, and what is over but not clean (before the period, and there now)."""
    busy: dict[int, list[Busy]] = defaultdict(list)
    unclean: dict[int, list[Busy]] = defaultdict(list)
    for gpu_id, start, size, profile_id, group, takes, since, until, over, *share in _rows(_BUSY, wanted):
        media = None if profile_id is None else _media(takes, group)
        period = Period(_instant(since), None if until is None else _instant(until))
        portion = None if share[0] is None else Portion(*share)
        one = Busy(start, size, period, media, BOOKED, profile_id, portion)
        (unclean if over else busy)[gpu_id].append(one)
    return busy, unclean


def _instant(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _use(row: tuple[Any, ...], period: Period) -> TeamUse:
    model, klass, milli, since, until = row
    if since is None:
        return TeamUse(model, klass, period, int(milli))
    own = Period(_instant(since), None if until is None else _instant(until))
    return TeamUse(model, klass, own, int(milli))


def _with(
    gpus: tuple[GpuView, ...], unclean: Mapping[int, list[Busy]], period: Period
) -> tuple[GpuView, ...]:
    """The GPUs with the spans that are not clean yet shown as busy for the whole period."""
    more = {gpu_id: tuple(replace(one, period=period) for one in ones) for gpu_id, ones in unclean.items()}
    return tuple(replace(gpu, busy=gpu.busy + more[gpu.id]) if gpu.id in more else gpu for gpu in gpus)


def _media(takes: bool, group: int | None) -> Media:
    """The reverse of mig.takes_media and mig.media_group, which the columns keep."""
    if group is None:
        return Media.NONE
    if group == 1:
        return Media.ALL
    return Media.EXT if takes else Media.DEFAULT


def _view(row: tuple[Any, ...], busy: Mapping[int, list[Busy]], now: datetime) -> GpuView:
    (_, gpu_id, uuid, node_id, node, index, model, memory_mib, use, grid, offers, why, *rest) = row
    received_at, sharing, most_shares, one_user, blockers = rest
    if why is None and stale(received_at, clock.real_now(), settings.REPORT_SECONDS):
        why = "unknown"
    # Masked from now until they are cleared.
    masked = [Busy(a, b - a, Period(now, None), None, BLOCKER) for a, b in blockers or ()]
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
        busy=(*busy.get(gpu_id, ()), *masked),
        usable=why is None,
        why=why,
        sharing=Sharing(sharing) if sharing else None,
        most_shares=most_shares,
        one_user=one_user,
    )


@lru_cache(maxsize=1024)
def profiles_of(model: str, offers: str, grid: int) -> tuple[Profile, ...]:
    """The profiles of a GPU out of its last report's offers (JSON text; "null": no report, so no profile).

    A report without offers (MIG mode is off) leaves the catalogue's.
    """
    known = mig.models().get(model)
    reported = msgspec.json.decode(offers, type=tuple[wire.Offer, ...] | None)
    return () if reported is None else mig.merged(known, reported, grid)
