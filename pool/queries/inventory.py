"""Pools, nodes and GPUs as they are, what is offered, and how much there is.

Everybody who is signed in sees the inventory. What one GPU holds: gpus.py,
whose names doors reach through this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import connection
from django.db.models import Prefetch, QuerySet

from pool.core import health, mig, wire
from pool.core.shares import RESERVE_MIB
from pool.models import Blocker, Gpu, Node, Pool
from pool.queries import clock, snapshot
from pool.queries.gpus import (
    Cell,
    GpuGrid,
    Holding,
    Preview,
    gpu_grid,
    gpu_grids,
    holdings,
    managed_elsewhere,
    preview_manage,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import User

__all__ = [
    "CapacityRow",
    "Cell",
    "GpuGrid",
    "Holding",
    "Preview",
    "ProfileRow",
    "capacity",
    "gpu_grid",
    "gpu_grids",
    "gpus_visible_to",
    "holdings",
    "is_heard",
    "managed_elsewhere",
    "node_retired",
    "node_unknown",
    "nodes_visible_to",
    "pools_visible_to",
    "preview_manage",
    "profiles",
    "update_needed",
    "why_unusable",
]


def pools_visible_to(user: User | AnonymousUser) -> QuerySet[Pool]:
    """Every pool, for whoever is signed in and active."""
    return Pool.objects.order_by("name") if user.is_active else Pool.objects.none()


def nodes_visible_to(user: User | AnonymousUser) -> QuerySet[Node]:
    """Every node with its pool."""
    nodes = Node.objects.select_related("pool").order_by("name")
    return nodes if user.is_active else nodes.none()


def gpus_visible_to(user: User | AnonymousUser) -> QuerySet[Gpu]:
    """Every GPU with node, pool, state and blockers; those retired come last on their node."""
    gpus = Gpu.objects.select_related("node__pool", "state").order_by("node__name", "retired_at", "index")
    gpus = gpus.prefetch_related(Prefetch("blockers", Blocker.objects.order_by("span", "kind")))
    return gpus if user.is_active else gpus.none()


# --- How it is ----------------------------------------------------------------


def node_unknown(node: Node) -> bool:
    """Whether what the node last said no longer counts: three reports are missing, or it is not back yet."""
    return node.unknown_since is not None or health.stale(
        node.received_at, clock.real_now(), settings.REPORT_SECONDS
    )


def node_retired(node: Node, gpus: Sequence[Gpu]) -> bool:
    """Whether it is silent because it was taken out of the inventory: of all its `gpus` none is left."""
    return node_unknown(node) and bool(gpus) and all(gpu.retired_at is not None for gpu in gpus)


def update_needed(node: Node) -> bool:
    """Whether the node's agent speaks a version that is not accepted any more."""
    return node.wire not in wire.ACCEPTED and bool(node.agent)


def why_unusable(gpu: Gpu) -> str | None:
    """Why no booking is placed on it, the first that holds, in the words and the order of the snapshot.

    retired, lost, observe, managed_elsewhere, update_needed (its agent knows no
    shares), frozen, unknown, unhealthy, and blocked: foreign use leaves no room at
    all. None: bookings are placed on it. Takes a GPU with its node, pool, state
    and blockers (`gpus_visible_to`).
    """
    state = getattr(gpu, "state", None)
    if gpu.retired_at is not None:
        return "retired"
    if state is not None and state.lost:
        return "lost"
    if not gpu.managed:
        return "observe"
    if managed_elsewhere(gpu):
        return "managed_elsewhere"
    if gpu.use == Gpu.Use.SHARE and 0 < gpu.node.wire < wire.WIRE:
        return "update_needed"
    if gpu.frozen or gpu.node.frozen or gpu.node.agent_frozen or gpu.node.pool.frozen:
        return "frozen"
    kinds = {one.kind for one in gpu.blockers.all()}
    if state is None or Blocker.Kind.UNKNOWN in kinds or node_unknown(gpu.node):
        return "unknown"
    if Blocker.Kind.HEALTH in kinds:
        return "unhealthy"
    return "blocked" if _is_full_of_foreign(gpu) else None


def _is_full_of_foreign(gpu: Gpu) -> bool:
    spans = [one.span for one in gpu.blockers.all() if one.kind == Blocker.Kind.FOREIGN]
    return bool(gpu.grid) and len({i for span in spans for i in range(span.lower, span.upper)}) >= gpu.grid


def is_heard(gpu: Gpu) -> bool:
    """Whether what was last reported of it is of now. Takes what `why_unusable` takes."""
    state = getattr(gpu, "state", None)
    if gpu.retired_at is not None or state is None or state.lost or node_unknown(gpu.node):
        return False
    return all(one.kind != Blocker.Kind.UNKNOWN for one in gpu.blockers.all())


# --- What is offered ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile of one model. `capacity`: how many of it alone all its GPUs could hold.

    Counted are GPUs that have been reported, are managed for MIG and not
    retired. Memory and SMs are None where neither driver nor catalogue says.
    """

    name: str
    model: str
    grid: int
    size: int
    compute_slices: int
    memory_mib: int | None
    sm: int | None
    capacity: int


_OFFERS = """
SELECT gpu.model, gpu.grid, gpu.profiles::text, count(*)
FROM pool_gpu gpu JOIN pool_node node ON node.id = gpu.node_id
WHERE gpu.use = 'mig' AND gpu.managed AND gpu.retired_at IS NULL AND gpu.profiles IS NOT NULL
    AND (%(pool)s::bigint IS NULL OR node.pool_id = %(pool)s)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def profiles(pool: Pool | None) -> list[ProfileRow]:
    """What can be asked for by name, by model and size; of one pool or of all."""
    with connection.cursor() as cursor:
        cursor.execute(_OFFERS, {"pool": None if pool is None else pool.pk})
        groups = cursor.fetchall()
    found: dict[tuple[str, str], ProfileRow] = {}
    for model, grid, offers, count in groups:
        for profile in snapshot.profiles_of(model, offers, grid):
            row = _profile_row(profile, model, grid, count * mig.most(profile))
            key = (model, profile.name)
            found[key] = _both(found[key], row) if key in found else row
    return sorted(found.values(), key=lambda row: (row.model, row.size, row.name))


def reported_names() -> frozenset[str]:
    """The names of all profiles that GPUs offer now, also of those that the catalogue lacks."""
    return frozenset(row.name for row in profiles(None))


def _profile_row(profile: mig.Profile, model: str, grid: int, capacity: int) -> ProfileRow:
    return ProfileRow(
        name=profile.name,
        model=model,
        grid=grid,
        size=profile.size,
        compute_slices=profile.compute_slices,
        memory_mib=profile.memory_mib,
        sm=profile.sm,
        capacity=capacity,
    )


def _both(one: ProfileRow, other: ProfileRow) -> ProfileRow:
    """The same profile under two drivers: what both have at least."""
    figures = [
        min((v for v in pair if v is not None), default=None)
        for pair in ((one.memory_mib, other.memory_mib), (one.sm, other.sm))
    ]
    capacity = one.capacity + other.capacity
    return ProfileRow(
        one.name, one.model, one.grid, one.size, one.compute_slices, figures[0], figures[1], capacity
    )


# --- How much -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """GPUs of one model and use, each counted once: usable, or under the first thing that is against it.

    `total_gpus` leaves out the retired; observed are also those that somebody
    else on their node gives out. `held_milli_now` is what bookings block at this
    moment, from their spans and the ledgers of shares, in thousandths of a GPU;
    `usable_held_milli` is the part of it on usable GPUs, and
    `usable_blocked_milli` what is occupied there without being booked.
    """

    model: str
    use: str
    total_gpus: int
    usable: int
    unknown: int
    lost: int
    observed: int
    frozen: int
    retired: int
    held_milli_now: int
    usable_held_milli: int
    usable_blocked_milli: int


_CAPACITY = """
WITH spans AS (
    SELECT alloc.gpu_id, alloc.span, alloc.kind, alloc.share_memory_mib AS mib, alloc.share_compute_pct AS pct
    FROM pool_allocation alloc JOIN pool_reservation booked ON booked.id = alloc.reservation_id
    WHERE alloc.holds AND booked.pool_id = %(pool)s AND alloc.blocked @> %(now)s::timestamptz
    UNION ALL
    SELECT blocker.gpu_id, blocker.span, 'blocker', NULL, NULL FROM pool_blocker blocker
), held AS (
    SELECT gpu_id, sum(mib) AS mib, sum(pct) AS pct,
        coalesce(sum(upper(span) - lower(span)) FILTER (WHERE kind IN ('mig', 'gpu')), 0) AS slices,
        (SELECT sum(upper(one) - lower(one))
         FROM unnest(range_agg(span) FILTER (WHERE kind <> 'share')) AS one) AS taken
    FROM spans GROUP BY gpu_id
), seen AS (
    SELECT gpu.model, gpu.use, share.milli + 1000 * coalesce(held.slices, 0) / gpu.grid AS milli,
        least(1000 - share.milli, 1000 * greatest(coalesce(held.taken - held.slices, 0), 0) / gpu.grid)
            AS blocked_milli,
        CASE WHEN gpu.retired_at IS NOT NULL THEN 'retired'
             WHEN state.lost THEN 'lost'
             WHEN NOT gpu.managed THEN 'observe'
             WHEN node.managed_by <> '[]'::jsonb AND NOT gpu.excluded THEN 'observe'
             WHEN gpu.frozen OR node.frozen OR node.agent_frozen OR pool.frozen THEN 'frozen'
             WHEN state.gpu_id IS NULL OR node.unknown_since IS NOT NULL
                 OR coalesce(node.received_at < %(fresh)s, true)
                 OR EXISTS (SELECT 1 FROM pool_blocker b WHERE b.gpu_id = gpu.id AND b.kind = 'unknown')
                 THEN 'unknown'
             ELSE 'usable' END AS status
    FROM pool_gpu gpu
    JOIN pool_node node ON node.id = gpu.node_id
    JOIN pool_pool pool ON pool.id = node.pool_id
    LEFT JOIN pool_gpustate state ON state.gpu_id = gpu.id
    LEFT JOIN held ON held.gpu_id = gpu.id
    CROSS JOIN LATERAL (SELECT least(1000, greatest(0, 10 * held.pct,
        ceil(1000.0 * held.mib / nullif(gpu.memory_mib - %(reserve)s, 0))))::bigint AS milli) share
    WHERE node.pool_id = %(pool)s
)
SELECT model, use, count(*) FILTER (WHERE status <> 'retired'),
    count(*) FILTER (WHERE status = 'usable'), count(*) FILTER (WHERE status = 'unknown'),
    count(*) FILTER (WHERE status = 'lost'), count(*) FILTER (WHERE status = 'observe'),
    count(*) FILTER (WHERE status = 'frozen'), count(*) FILTER (WHERE status = 'retired'),
    coalesce(sum(milli), 0)::bigint,
    coalesce(sum(milli) FILTER (WHERE status = 'usable'), 0)::bigint,
    coalesce(sum(blocked_milli) FILTER (WHERE status = 'usable'), 0)::bigint
FROM seen GROUP BY model, use ORDER BY model, use
"""


def capacity(pool: Pool) -> list[CapacityRow]:
    """What the pool has, by model and use, in one reading."""
    fresh = clock.real_now() - timedelta(seconds=settings.REPORT_SECONDS * health.MISSED)
    with connection.cursor() as cursor:
        cursor.execute(
            _CAPACITY, {"pool": pool.pk, "now": clock.now(), "fresh": fresh, "reserve": RESERVE_MIB}
        )
        return [CapacityRow(*row) for row in cursor.fetchall()]
