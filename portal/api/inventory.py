"""Pools, nodes, GPUs and profiles over REST; read only.

Unknown is null, never 0 or free. Who holds a slice is told only to those who
may see that reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.queries import access, processes
from pool.queries import inventory as queries
from pool.queries.fragmentation import Now
from portal.api import paging
from portal.api.auth import bound_team, user_of
from portal.api.door import Door
from portal.api.problems import answer
from portal.api.times import instant

if TYPE_CHECKING:
    from pool.models import Gpu as GpuRow
    from pool.models import Node as NodeRow
    from pool.models import Pool as PoolRow
    from pool.queries.fragmentation import Figure
    from pool.queries.inventory import CapacityRow, Cell, ProfileRow
    from pool.queries.processes import Activity, Running

BY_NAME = paging.Order(("name", "pk"))
BY_PLACE = paging.Order(("node__name", "index", "pk"))


class Pools(Door):
    parameters = paging.PARAMETERS

    def get(self, request: Request) -> HttpResponse:
        return paging.listing(request, queries.pools_visible_to(user_of(request)), BY_NAME, _pools)


class Nodes(Door):
    parameters = paging.PARAMETERS | {"pool"}

    def get(self, request: Request) -> HttpResponse:
        rows = queries.nodes_visible_to(user_of(request))
        if "pool" in request.query_params:
            rows = rows.filter(pool=access.pool(user_of(request), request.query_params["pool"]))
        rows, now = rows.prefetch_related("gpus"), Now()
        return paging.listing(
            request, rows, BY_NAME, lambda page: [_node(row, list(row.gpus.all()), now) for row in page]
        )


class Node(Door):
    """A node with its GPUs."""

    def get(self, request: Request, name: str) -> HttpResponse:
        node = access.node(user_of(request), name)
        gpus = list(queries.gpus_visible_to(user_of(request)).filter(node=node))
        now = Now()
        return answer(_node(node, gpus, now) | {"gpus": [_gpu(gpu, now) for gpu in gpus]})


class Gpus(Door):
    parameters = paging.PARAMETERS | {"pool", "node"}

    def get(self, request: Request) -> HttpResponse:
        rows = queries.gpus_visible_to(user_of(request))
        if "pool" in request.query_params:
            rows = rows.filter(node__pool=access.pool(user_of(request), request.query_params["pool"]))
        if "node" in request.query_params:
            rows = rows.filter(node=access.node(user_of(request), request.query_params["node"]))
        now = Now()
        return paging.listing(request, rows, BY_PLACE, lambda page: [_gpu(row, now) for row in page])


class Gpu(Door):
    """A GPU with what it shall hold, what it was last seen to hold, and what runs there.

    Processes are told to those who see all, and to a holder's team those of its own slices.
    """

    def get(self, request: Request, uuid: str) -> HttpResponse:
        gpu = access.gpu(user_of(request), uuid)
        seen = queries.gpu_grid(gpu, user_of(request), only=bound_team(request))
        running = processes.of_gpu(gpu, user_of(request), only=bound_team(request))
        return answer(
            _gpu(gpu, Now())
            | {
                "mig": seen.mig,
                "wanted": _cells(seen.wanted),
                "observed": _cells(seen.observed),
                "blockers": _cells(seen.blockers),
                "links": gpu.links,
                "processes": None if running is None else [_process(one) for one in running],
                "activity": [_activity(one) for one in processes.activities(gpu)],
            }
        )


class Profiles(Door):
    """What can be asked for by name, in one pool or in all."""

    parameters = frozenset({"pool"})

    def get(self, request: Request) -> HttpResponse:
        name = request.query_params.get("pool")
        pool = None if name is None else access.pool(user_of(request), name)
        return answer({"results": [_profile(row) for row in queries.profiles(pool)], "next": None})


def _pools(page: Sequence[PoolRow]) -> list[dict[str, Any]]:
    now = Now()
    return [
        {
            "name": pool.name,
            "title": pool.title,
            "zone": pool.zone,
            "frozen": pool.frozen,
            "version": pool.version,
            "capacity": [_capacity(row) for row in queries.capacity(pool)],
            "fragmentation": _fragmentation(now.of_pool(pool)) | {"blocks": now.blocks(pool)},
        }
        for pool in page
    ]


def _capacity(row: CapacityRow) -> dict[str, Any]:
    return {
        "model": row.model,
        "use": row.use,
        "gpus": row.total_gpus,
        "usable": row.usable,
        "unknown": row.unknown,
        "lost": row.lost,
        "observed": row.observed,
        "frozen": row.frozen,
        "retired": row.retired,
        "held": row.held_milli_now / 1000,
        "blocked": row.usable_blocked_milli / 1000,
    }


def _fragmentation(figure: Figure) -> dict[str, Any]:
    """GPUs that are free, and what of them the usual asks cannot use; null where it is not known."""
    return {
        "free": round(figure.free / 1000, 6) if figure.known else None,
        "unusable": round(figure.lost / 1000, 6) if figure.known else None,
        "share": None if figure.share is None else round(figure.share, 6),
    }


def _node(node: NodeRow, gpus: Sequence[GpuRow], now: Now) -> dict[str, Any]:
    """A node with what `gpus` of it are known; a retired one is silent for good, and not unknown."""
    retired = queries.node_retired(node, gpus)
    return {
        "name": node.name,
        "pool": node.pool.name,
        "unknown": not retired and queries.node_unknown(node),
        "unknown_since": None if retired else instant(node.unknown_since),
        "retired": retired,
        "received_at": instant(node.received_at),
        "agent": node.agent or None,
        "driver": node.driver or None,
        "update_needed": queries.update_needed(node),
        "wire": node.wire or None,
        "access": node.access,
        "access_offered": node.access_offered,
        "sharing_offered": node.sharing_offered,
        "managed_by": node.managed_by,
        "imex": node.imex or None,
        "exporter_port": node.exporter_port,
        "skew_ms": node.skew_ms,
        "dropped_reports": node.dropped_reports,
        "frozen": node.frozen,
        "agent_frozen": node.agent_frozen,
        "dropped_values": node.dropped_values,
        "fragmentation": _fragmentation(now.of_node(node)),
        "version": node.version,
    }


def _gpu(gpu: GpuRow, now: Now) -> dict[str, Any]:
    why = queries.why_unusable(gpu)
    state = getattr(gpu, "state", None)
    heard = queries.is_heard(gpu)
    return {
        "uuid": gpu.uuid,
        "node": gpu.node.name,
        "pool": gpu.node.pool.name,
        "index": gpu.index,
        "name": gpu.name,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "grid": gpu.grid,
        "mig_capable": gpu.mig_capable,
        "use": gpu.use,
        "sharing": gpu.sharing or None,
        "managed": gpu.managed,
        "excluded": gpu.excluded,
        "numa": gpu.numa,
        "usable": why is None,
        "why": why,
        "fragmentation": _fragmentation(now.of_gpu(gpu)),
        "sampled_at": instant(_when(state)),
        "readings": state.readings if state is not None and heard else None,
        "health": state.health if state is not None and heard else None,
    }


def _when(state: Any) -> datetime | None:
    return None if state is None else state.sampled_at


def _cells(cells: Sequence[Cell] | None) -> list[dict[str, Any]] | None:
    return None if cells is None else [_cell(cell) for cell in cells]


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "span": {"start": cell.start, "size": cell.size},
        "kind": cell.kind,
        "profile": cell.profile or None,
        "mig_uuid": cell.mig_uuid or None,
        "owned": cell.owned,
        "busy": cell.busy,
        "reservation": str(cell.reservation_id) if cell.reservation_id else None,
        "team": cell.team or None,
        "detail": cell.detail or None,
    }


def _process(one: Running) -> dict[str, Any]:
    """A process; `unattributed`: it is known to be nobody's, or that cannot be told."""
    process = one.process
    return {
        "pid": process.pid,
        "user": process.user,
        "name": process.name,
        "command": process.command,
        "container": process.container,
        "memory_mib": process.memory_mib,
        "started_at": instant(process.started_at),
        "cpu_s": process.cpu_s,
        "read_bytes": process.read_bytes,
        "written_bytes": process.written_bytes,
        "session": process.session,
        "first_busy_at": instant(process.first_busy_at),
        "system": process.system,
        "span": None if one.span is None else {"start": one.span[0], "size": one.span[1]},
        "reservation": str(one.reservation_id) if one.reservation_id else None,
        "by": process.by,
        "unattributed": one.unattributed,
    }


def _activity(one: Activity) -> dict[str, Any]:
    """How busy one instance is; null is not measured. `source`: gpm or dcgm."""
    return {
        "span": {"start": one.start, "size": one.size},
        "profile": one.profile or None,
        "activity_pct": one.activity,
        "memory_activity_pct": one.memory_activity,
        "memory_used_mib": one.memory_used_mib,
        "memory_total_mib": one.memory_total_mib,
    }


def _profile(row: ProfileRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "model": row.model,
        "grid": row.grid,
        "size": row.size,
        "compute_slices": row.compute_slices,
        "memory_mib": row.memory_mib,
        "sm": row.sm,
        "capacity": row.capacity,
    }
