"""What lies on the desk while one report is taken: the report, and the rows that it concerns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection
from django.db.models import QuerySet, TextField, Value
from django.db.models.functions import MD5, Cast, Coalesce

from pool.core import wire
from pool.core.observed import Seen
from pool.core.states import State
from pool.models import Allocation, Blocker, Command, Event, Fault, Gpu, GpuState, Node, Pool
from pool.queries import commands as command_queries
from pool.services import events, locks


class NeedsPool(Exception):
    """This report changes what the pool's lock guards; nothing was written, take it anew under the lock."""


@dataclass(slots=True)
class Desk:
    """`dropped` values of the report made no sense; `odd` counts those that were found later.

    `pool` is None while its lock is not held; `received` is real time, `now` the portal's clock.

    By GPU id: states, open commands, allocations that hold and are on the GPU
    or on their way, blockers, open faults. GPUs are by UUID.
    """

    report: wire.Report
    seen: tuple[Seen, ...]
    dropped: int
    received: datetime
    now: datetime
    node: Node = field(init=False)
    pool: Pool | None = field(init=False)
    gpus: dict[str, Gpu] = field(init=False)
    states: dict[int, GpuState] = field(init=False)
    commands: dict[int, Command] = field(init=False)
    allocations: dict[int, list[Allocation]] = field(init=False)
    blockers: dict[int, list[Blocker]] = field(init=False)
    faults: dict[int, list[Fault]] = field(init=False)
    drafts: list[Event] = field(init=False)
    odd: int = field(init=False)

    def open(self, node: Node, pool: Pool | None) -> None:
        """Read the rows: within the transaction, after the locks."""
        self.node, self.pool, self.drafts, self.odd = node, pool, [], 0
        ids = Gpu.objects.filter(node=node).values_list("pk", flat=True)
        rows = locks.gpus(ids) if pool is not None else _gpus(node)
        self.gpus = {row.uuid: row for row in rows}
        for row in rows:
            row.node = node
        self.commands, self.blockers, self.allocations = {}, defaultdict(list), defaultdict(list)
        self.faults = defaultdict(list)
        # Most nodes have none of some of these: one look instead of three readings.
        with connection.cursor() as cursor:
            cursor.execute(_WHAT_IS_THERE, {"node": node.pk})
            has_commands, has_blockers, has_allocations, has_faults = cursor.fetchone()
        if has_commands:
            self.commands = {one.gpu_id: one for one in command_queries.open_of_node(node.pk)}
        self.states = {state.gpu_id: state for state in _states(node, self.commands.values())}
        if has_blockers:
            for blocker in Blocker.objects.filter(gpu__node=node).exclude(kind=Blocker.Kind.HEALTH):
                self.blockers[blocker.gpu_id].append(blocker)
        if has_allocations:
            for allocation in _allocations(node):
                self.allocations[allocation.gpu_id].append(allocation)
        if has_faults:
            for fault in Fault.objects.filter(gpu__node=node, cleared_at=None).order_by("pk"):
                self.faults[fault.gpu_id].append(fault)

    def need_pool(self) -> None:
        """Go on only under the pool's lock."""
        if self.pool is None:
            raise NeedsPool

    def commandable(self, gpu: Gpu) -> bool:
        """As queries.commands.COMMANDABLE, from the rows at hand."""
        node = self.node
        frozen = gpu.frozen or node.frozen or node.agent_frozen or node.pool.frozen
        return self.ours(gpu) and not frozen

    def ours(self, gpu: Gpu) -> bool:
        """Whether the portal may carve it, freezes aside: managed, and nobody else gives it out."""
        elsewhere = bool(self.node.managed_by) and not gpu.excluded
        return gpu.managed and gpu.retired_at is None and not elsewhere

    def has_open(self) -> bool:
        """Whether anything is still to be carried out by the node."""
        return any(self.commandable(gpu) for gpu in self.gpus.values() if gpu.pk in self.commands)

    def tell(
        self,
        verb: str,
        gpu: Gpu | None = None,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """Put down an event in the node's name, written at the end."""
        self.drafts.append(
            events.draft(
                verb,
                actor=None,
                now=self.now,
                label=f"node:{self.node.name}",
                pool_id=self.node.pool_id,
                node_id=self.node.pk,
                gpu_id=gpu.pk if gpu else None,
                before=before,
                after=after,
            )
        )


_WHAT_IS_THERE = """
SELECT EXISTS (SELECT 1 FROM pool_command WHERE node_id = %(node)s AND state = 'open'),
    EXISTS (SELECT 1 FROM pool_blocker b JOIN pool_gpu gpu ON gpu.id = b.gpu_id WHERE gpu.node_id = %(node)s),
    EXISTS (SELECT 1 FROM pool_allocation a JOIN pool_gpu gpu ON gpu.id = a.gpu_id
        WHERE gpu.node_id = %(node)s AND a.holds AND a.wanted_at IS NOT NULL),
    EXISTS (SELECT 1 FROM pool_fault f JOIN pool_gpu gpu ON gpu.id = f.gpu_id
        WHERE gpu.node_id = %(node)s AND f.cleared_at IS NULL)
"""


def _gpus(node: Node) -> list[Gpu]:
    """Without the long list of offers, but with a mark by which to know them again (`offers_mark`)."""
    mark = MD5(Cast("profiles", TextField()))
    rows = Gpu.objects.filter(node=node).order_by("pk").defer("profiles")
    return list(rows.annotate(offers_mark=Coalesce(mark, Value(""), output_field=TextField())))


def _states(node: Node, open_commands: Iterable[Command]) -> QuerySet[GpuState]:
    """What was known before this report; what was on the GPUs only where a slice was in use."""
    in_use = any((one.trouble or {}).get("code") == "in_use" for one in open_commands)
    unread = ("processes", "readings", "held", "shares", *(() if in_use else ("instances",)))
    return GpuState.objects.filter(gpu__node=node).defer(*unread)


def _allocations(node: Node) -> QuerySet[Allocation]:
    """What is on the node's GPUs, or on its way there or away."""
    moving = (State.STARTING, State.ACTIVE, State.ENDING)
    rows = Allocation.objects.filter(gpu__node=node, holds=True, wanted_at__isnull=False)
    rows = rows.filter(reservation__state__in=moving).select_related("reservation").order_by("pk")
    own = ("gpu_id", "kind", "span", "ready_at", "mig_uuid")
    return rows.only(*own, "reservation__state", "reservation__state_reason")


def layout_of(gpu: Gpu) -> wire.Layout | None:
    """What the GPU was last commanded to look like."""
    return msgspec.convert(gpu.wanted, wire.Layout) if gpu.wanted else None
