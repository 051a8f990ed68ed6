"""Cards and rows of a fleet as the database has them, read as fast as it can tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg.pq import Format

from pool.core import mig, wire
from pool.core.fleet import Card, NodeCard, masks, node_domain
from pool.core.fleet_rows import ALWAYS, NEVER, ROW, Records
from pool.core.mig import Profile
from pool.core.placement import Use
from pool.core.shapes import Sharing

# Profiles are alike on most GPUs and long, so that only a hash of them is read, and each once.
_CARDS = """
SELECT gpu.id, gpu.uuid, gpu.node_id, node.name, node.block, node.cpu_milli, node.memory_mib, node.imex,
    gpu.index, gpu.model, gpu.memory_mib, gpu.use, gpu.grid,
    CASE WHEN gpu.use IN ('mig', 'auto') THEN jsonb_hash_extended(gpu.profiles, 0) END,
    CASE WHEN gpu.retired_at IS NOT NULL THEN 'retired'
         WHEN state.lost THEN 'lost'
         WHEN NOT gpu.managed THEN 'observe'
         WHEN node.managed_by <> '[]'::jsonb AND NOT gpu.excluded THEN 'managed_elsewhere'
         WHEN gpu.use = 'share' AND node.wire BETWEEN 1 AND %(shares_since)s - 1 THEN 'update_needed'
         WHEN gpu.frozen OR node.frozen OR node.agent_frozen THEN 'frozen'
         WHEN node.unknown_since IS NOT NULL OR state.received_at IS NULL THEN 'unknown'
         WHEN EXISTS (SELECT FROM pool_blocker ill WHERE ill.gpu_id = gpu.id AND ill.kind = 'health')
             THEN 'unhealthy' ELSE '' END,
    gpu.sharing, state.mig, gpu.mig_capable, gpu.fabric_cluster, gpu.fabric_clique, gpu.numa,
    CASE WHEN gpu.use <> 'mig' THEN gpu.links::text END
FROM pool_node node JOIN pool_gpu gpu ON gpu.node_id = node.id
LEFT JOIN LATERAL (
    SELECT lost, received_at, mig FROM pool_gpustate seen WHERE seen.gpu_id = gpu.id OFFSET 0) state ON true
WHERE node.pool_id = %(pool)s AND (%(gpus)s::bigint[] IS NULL OR gpu.id = ANY(%(gpus)s))
"""

_PROFILES = """
SELECT id, jsonb_hash_extended(profiles, 0), profiles::text FROM pool_gpu WHERE id = ANY(%(gpus)s)
"""

# All of one width and none NULL, so that the binary form is an array already: one value for all rows (up to
# 1 GB, some three million), and other than a COPY it is planned once. A share that runs on after its end
# still holds, so the ledgers know what it takes: it masks nobody else's.
_ROWS = """
SELECT string_agg(record_send(one), ''::bytea) FROM (
    SELECT alloc.gpu_id, lower(alloc.blocked), coalesce(upper(alloc.blocked), 'infinity'),
        lower(booked.period), coalesce(least(upper(booked.period), booked.recall_at), 'infinity'),
        lower(alloc.span), upper(alloc.span) - lower(alloc.span), coalesce(alloc.profile_id, -1),
        CASE WHEN alloc.profile_id IS NULL THEN 0 WHEN alloc.media_group IS NULL THEN 4
             WHEN alloc.media_group = 1 THEN 3 WHEN alloc.takes_media THEN 2 ELSE 1 END,
        CASE booked.klass WHEN 'online' THEN 1 WHEN 'interactive' THEN 2 WHEN 'batch' THEN 3 ELSE 0 END,
        alloc.wanted_at IS NULL AND booked.state = 'scheduled', false,
        coalesce(alloc.share_memory_mib, 0), coalesce(alloc.share_compute_pct, 0::int2),
        coalesce(alloc.share_limit_pct, 0::int2), coalesce(hashtextextended(alloc.mps_user, 0), 0),
        alloc.cpu_milli, alloc.ram_mib, alloc.charge_milli, booked.owner_id, booked.team_id, booked.id,
        booked.created_at, NOT booked.preemptible, booked.priority
    FROM pool_allocation alloc {booked}
    WHERE alloc.holds AND {these}
    UNION ALL
    SELECT alloc.gpu_id, '-infinity', 'infinity', '-infinity', 'infinity', lower(alloc.span),
        upper(alloc.span) - lower(alloc.span), -1, 0, 0, false, true, 0, 0::int2, 0::int2, 0::int8,
        0, 0, 0, 0::int8, 0::int8, '00000000-0000-0000-0000-000000000000'::uuid,
        '-infinity', true, 0::int2
    FROM pool_blocker alloc JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
    WHERE {these} AND NOT (gpu.use = 'share' AND alloc.kind = 'overrun' AND EXISTS (
        SELECT FROM pool_allocation late JOIN pool_reservation over ON over.id = late.reservation_id
        WHERE late.gpu_id = alloc.gpu_id AND late.holds AND over.state = 'ending'))
) one
"""
#: Of all rows at once; and of a few, which are looked up one by one, whatever the planner thinks (OFFSET).
_BOOKED = "JOIN pool_reservation booked ON booked.id = alloc.reservation_id"
_BOOKED_FEW = """CROSS JOIN LATERAL (
    SELECT * FROM pool_reservation one WHERE one.id = alloc.reservation_id OFFSET 0) booked"""
_ON_GPUS = "alloc.gpu_id = ANY(%(gpus)s::bigint[])"
_IN_POOL = """alloc.gpu_id IN (
    SELECT its.id FROM pool_gpu its JOIN pool_node node ON node.id = its.node_id
    WHERE node.pool_id = %(pool)s)"""
_POOLS_ROWS = _ROWS.format(these=_IN_POOL, booked=_BOOKED)
_ROWS_ON = _ROWS.format(these=_ON_GPUS, booked=_BOOKED_FEW)

#: The columns of _ROWS, as PostgreSQL sends them.
_SENT = (
    ("gpu", ">i8"),
    ("start", ">i8"),
    ("end", ">i8"),
    ("since", ">i8"),
    ("until", ">i8"),
    ("first", ">i4"),
    ("size", ">i4"),
    ("profile", ">i4"),
    ("media", ">i4"),
    ("klass", ">i4"),
    ("moved", "?"),
    ("blocker", "?"),
    ("memory", ">i4"),
    ("compute", ">i2"),
    ("limit", ">i2"),
    ("account", ">i8"),
    ("cpu", ">i4"),
    ("ram", ">i4"),
    ("charge", ">i4"),
    ("owner", ">i8"),
    ("team", ">i8"),
    ("reservation", ">i8", (2,)),
    ("created", ">i8"),
    ("firm", "?"),
    ("priority", ">i2"),
)
TIMES = ("start", "end", "since", "until", "created")
#: PostgreSQL counts from 2000, in microseconds.
EPOCH = 946_684_800_000_000

_ACCOUNTS = """
SELECT DISTINCT hashtextextended(mps_user, 0), mps_user FROM pool_allocation
WHERE holds AND gpu_id = ANY(%(gpus)s) AND mps_user IS NOT NULL
"""

#: (model, hash of its offers, grid).
_Key = tuple[str, int | None, int]
_profiles: dict[_Key, tuple[Profile, ...]] = {}
#: So many kinds of GPUs are known at once; a pool has a handful.
_MOST_KINDS = 4096


def cards_of(pool_id: int, gpu_ids: list[int] | None) -> list[Card]:
    """The GPUs of the pool, or those of them that are asked for."""
    wanted = {"pool": pool_id, "gpus": gpu_ids, "shares_since": wire.SHARES_SINCE}
    found = _fetch(_CARDS, wanted)
    offered = _offered([(row[0], (row[9], row[13], row[12])) for row in found if row[11] in ("mig", "auto")])
    nodes: dict[int, NodeCard] = {}
    return [_card(row, offered.get(row[0], ()), nodes) for row in found]


def rows_of(pool_id: int, gpu_ids: list[int] | None) -> Records:
    """What holds or stands in the way on the pool's GPUs, or on those asked for."""
    with connection.cursor() as cursor:
        cursor.cursor.format = Format.BINARY
        if gpu_ids is None:
            cursor.execute(_POOLS_ROWS, {"pool": pool_id})
        else:
            cursor.execute(_ROWS_ON, {"gpus": gpu_ids})
        return records(cursor.fetchone()[0] or b"")


def accounts_on(rows: Records, known: Mapping[int, str]) -> Mapping[int, str]:
    """The names of the accounts whose numbers are in these rows, beside those that are known."""
    strange = np.setdiff1d(rows["account"], [0, *known])
    if not len(strange):
        return known
    gpu_ids = np.unique(rows["gpu"][np.isin(rows["account"], strange)]).tolist()
    return {**known, **dict(_fetch(_ACCOUNTS, {"gpus": gpu_ids}))}


def _fetch(sql: str, wanted: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        return list(cursor.fetchall())


def _width() -> np.dtype[np.void]:
    fields: list[Any] = [("n", ">i4")]
    for name, *kind in _SENT:
        fields += [(f"{name} is", ">i8"), (name, *kind)]
    return np.dtype(fields)


#: One row as it is sent: how many columns it has, then each after its type and length.
SENT = _width()


def records(sent: bytes) -> Records:
    """The rows as record_send gives them, one after the other: columns that all have one width."""
    number, rest = divmod(len(sent), SENT.itemsize)
    if rest:
        raise ValueError("the rows are not as wide as expected")
    told = np.frombuffer(sent, dtype=SENT, count=number)
    rows = np.zeros(number, dtype=ROW)
    for name in ROW.names or ():
        if name != "mask":
            rows[name] = _since_1970(told[name]) if name in TIMES else told[name]
    rows["mask"] = masks(told["first"].astype(np.int64), told["size"].astype(np.int64))
    return rows


def _since_1970(told: NDArray[np.int64]) -> NDArray[np.int64]:
    times = told.astype(np.int64)
    return np.where((times == ALWAYS) | (times == NEVER), times, times + EPOCH)


# --- Cards --------------------------------------------------------------------


def _card(row: Sequence[Any], offered: tuple[Profile, ...], nodes: dict[int, NodeCard]) -> Card:
    (pk, uuid, node_id, name, block, cpu, ram, imex, index, model, memory_mib, use, grid, _, why, *rest) = row
    sharing, mig_now, mig_capable, cluster, clique, numa, links = rest
    if node_id not in nodes:
        nodes[node_id] = NodeCard(node_id, name, block, cpu, ram, imex)
    return Card(
        id=pk,
        uuid=uuid,
        node=nodes[node_id],
        index=index,
        model=model,
        memory_mib=memory_mib,
        use=Use(use),
        grid=grid,
        profiles=offered,
        why=why,
        sharing=Sharing(sharing) if sharing else None,
        mig_now=mig_now,
        mig_capable=mig_capable,
        domain=_domain(name, cluster, clique),
        numa=numa,
        links=_links(links) if links else (),
    )


def _domain(node: str, cluster: str, clique: int | None) -> str:
    """A cluster's UUID of nothing but zeros says that the NVLinks end at the node."""
    if not cluster.strip("0-") or clique is None:
        return node_domain(node)
    return f"{cluster}/{clique}"


@lru_cache(maxsize=4096)
def _links(text: str) -> tuple[tuple[str, int], ...]:
    links = msgspec.json.decode(text, type=tuple[wire.Link, ...] | None)
    return tuple((link.peer or "", link.count) for link in links or () if isinstance(link.count, int))


def _offered(wanted: list[tuple[int, _Key]]) -> dict[int, tuple[Profile, ...]]:
    """The profiles of each GPU, by its id."""
    missing = {key: pk for pk, key in wanted if key not in _profiles}
    replaced: dict[_Key, tuple[Profile, ...]] = {}
    if missing:
        if len(_profiles) > _MOST_KINDS:
            _profiles.clear()
        told = {pk: (number, text) for pk, number, text in _fetch(_PROFILES, {"gpus": [*missing.values()]})}
        for (model, number, grid), pk in missing.items():
            now, text = told.get(pk, (None, None))
            made = profiles_of(model, text or "null", grid)
            # Others came meanwhile: then the GPU is marked, and is read again.
            (_profiles if now == number else replaced)[model, number, grid] = made
    return {pk: replaced[key] if key in replaced else _profiles[key] for pk, key in wanted}


@lru_cache(maxsize=1024)
def profiles_of(model: str, offers: str, grid: int) -> tuple[Profile, ...]:
    """The profiles of a GPU out of its last report's offers (JSON text; "null": no report, so no profile).

    A report without offers (MIG mode is off) leaves the catalogue's.
    """
    known = mig.models().get(model)
    reported = msgspec.json.decode(offers, type=tuple[wire.Offer, ...] | None)
    return () if reported is None else mig.merged(known, reported, grid)
