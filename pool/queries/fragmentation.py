"""How fragmented pools, nodes and GPUs are now, by what each pool is usually asked for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core.fragmentation import Figure, Fragmentation, fragmentation
from pool.core.period import Period
from pool.queries import clock, fleets, mixes

if TYPE_CHECKING:
    from pool.models import Gpu, Node, Pool

__all__ = ["Figure", "Fragmentation", "Now"]

#: The least that a period lasts: what is free in it is free at this instant.
_INSTANT = timedelta(microseconds=1)


class Now:
    """The figures of one moment. Each pool is read once, however many of its nodes and GPUs are asked for."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or clock.now()
        self._pools: dict[int, Fragmentation] = {}

    def of_pool(self, pool: Pool) -> Figure:
        return self._of(pool.pk).of_pool()

    def blocks(self, pool: Pool) -> int | None:
        """Slurm's figure; None where no sizes of blocks are known."""
        return self._of(pool.pk).blocks

    def of_node(self, node: Node) -> Figure:
        return self._of(node.pool_id).of_node(node.pk)

    def of_gpu(self, gpu: Gpu) -> Figure:
        """Takes a GPU with its node."""
        return self._of(gpu.node.pool_id).of_gpu(gpu.pk)

    def _of(self, pool_id: int) -> Fragmentation:
        if pool_id not in self._pools:
            window = fleets.current(pool_id).window(Period(self._now, self._now + _INSTANT), self._now)
            self._pools[pool_id] = fragmentation(window, mixes.policy(pool_id).mix)
        return self._pools[pool_id]
