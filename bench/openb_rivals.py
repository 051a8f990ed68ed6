"""The policies that the openb benchmark compares with: FGD, best fit, and any place by chance.

Written from their published descriptions: FGD (USENIX ATC'23) takes the node whose
expected fragmentation grows least, in scores of whole numbers 0..100, ties to the
first node; best fit takes the node that is left with the least.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from pool.core.filling import Filling, Place, Rating
from pool.core.mix import WHOLE, Kind, Mix
from pool.core.usual import Floats, Ints, Model
from pool.core.worth import Nodes

_SCORES = 100


class Fgd:
    """Per kind of the mix: GPUs too small for it are fragments, all GPUs where the node cannot take it."""

    def __init__(self, mix: Mix, models: Sequence[Model]) -> None:
        self._weights = np.array(mix.weights)
        self._gpus = np.array([kind.gpus for kind in mix.kinds])
        self._cpu = np.array([float(kind.cpu_milli) for kind in mix.kinds])
        self._ram = np.array([float(kind.ram_mib) for kind in mix.kinds])
        milli = np.array([kind.memory_milli if kind.gpus else WHOLE + 1 for kind in mix.kinds])
        levels = np.arange(WHOLE + 1)[:, None]
        self._large = (levels >= milli).astype(np.int64)
        self._waste = np.where(levels >= milli, 0, levels)
        self._on = np.array(
            [[not kind.models or model.name in kind.models for kind in mix.kinds] for model in models]
        )

    def pressure(self, fullness: float) -> Floats:
        return np.zeros(len(self._on))

    def share(
        self, nodes: Nodes, memory: int | Ints, compute: int | Ints = 0, cpu: float = 0, ram: float = 0
    ) -> Floats:
        loss = np.full(nodes.memory.shape, np.inf)
        fits = (nodes.memory >= np.reshape(memory, (-1, 1))) & ((nodes.cpu >= cpu) & (nodes.ram >= ram))[
            :, None
        ]
        at, gpu = np.nonzero(fits)
        large, waste = self._large[nodes.memory].sum(1), self._waste[nodes.memory].sum(1)
        was = nodes.memory[at, gpu]
        left = was - np.broadcast_to(memory, nodes.model.shape)[at]
        now = self._fragments(
            large[at] - self._large[was] + self._large[left],
            waste[at] - self._waste[was] + self._waste[left],
            nodes.memory.sum(1)[at] - was + left,
            (nodes.cpu[at] - cpu, nodes.ram[at] - ram, nodes.model[at]),
        )
        loss[at, gpu] = self._scored(self._before(nodes)[at], now)
        return loss

    def whole(self, nodes: Nodes, gpus: int | Ints = 1, cpu: float = 0, ram: float = 0) -> Floats:
        free = nodes.memory == WHOLE
        fits = (free.sum(1) >= gpus) & (nodes.cpu >= cpu) & (nodes.ram >= ram)
        rest = np.where(free & (np.cumsum(free, axis=1) <= gpus), 0, nodes.memory)
        after = Nodes(rest, nodes.model, nodes.cpu - cpu, nodes.ram - ram)
        return np.where(fits, self._scored(self._before(nodes), self._before(after)), np.inf)

    def _before(self, nodes: Nodes) -> Floats:
        large, waste = self._large[nodes.memory].sum(1), self._waste[nodes.memory].sum(1)
        return self._fragments(large, waste, nodes.memory.sum(1), (nodes.cpu, nodes.ram, nodes.model))

    def _fragments(self, large: Ints, waste: Ints, total: Ints, node: tuple[Floats, Floats, Ints]) -> Floats:
        """[rows] expected thousandths of GPUs that the next task could not use."""
        cpu, ram, model = node
        served = (large >= self._gpus) & (self._gpus > 0) & self._on[model]
        served &= (cpu[:, None] >= self._cpu) & (ram[:, None] >= self._ram)
        return np.asarray(np.where(served, waste, total[:, None]) @ self._weights)

    def _scored(self, before: Floats, after: Floats) -> Floats:
        score = _SCORES / (1 + np.exp((after - before) / WHOLE))
        return -np.floor(np.round(score, 9))


class BestFit:
    """Least of the node's cpu and GPUs left, each as a part of the most that a node has; then of the GPU."""

    def __init__(self, models: Sequence[Model], nodes: Nodes) -> None:
        self._models = len(models)
        self._most_cpu = float(nodes.cpu.max())
        self._most_gpus = float(nodes.memory.sum(1).max())

    def pressure(self, fullness: float) -> Floats:
        return np.zeros(self._models)

    def share(
        self, nodes: Nodes, memory: int | Ints, compute: int | Ints = 0, cpu: float = 0, ram: float = 0
    ) -> Floats:
        fits = (nodes.memory >= np.reshape(memory, (-1, 1))) & ((nodes.cpu >= cpu) & (nodes.ram >= ram))[
            :, None
        ]
        return np.where(fits, self._left(nodes)[:, None] + nodes.memory / WHOLE * 1e-3, np.inf)

    def whole(self, nodes: Nodes, gpus: int | Ints = 1, cpu: float = 0, ram: float = 0) -> Floats:
        fits = ((nodes.memory == WHOLE).sum(1) >= gpus) & (nodes.cpu >= cpu) & (nodes.ram >= ram)
        return np.where(fits, self._left(nodes), np.inf)

    def _left(self, nodes: Nodes) -> Floats:
        left: Floats = nodes.cpu / self._most_cpu + nodes.memory.sum(1) / self._most_gpus
        return left


class Anywhere(Filling):
    """Any node that can take the task, and any of its GPUs, by chance."""

    def __init__(self, nodes: Nodes, models: Sequence[Model], rating: Rating, seed: int) -> None:
        super().__init__(nodes, models, rating)
        self._chance = random.Random(seed)

    def choose(self, kind: Kind) -> Place | None:
        rows = np.flatnonzero(np.isfinite(self.losses(kind).loss))
        if not len(rows):
            return None
        row = int(self._chance.choice(rows))
        if kind.gpus != 1 or kind.memory_milli == WHOLE:
            return Place(row)
        return Place(
            row, int(self._chance.choice(np.flatnonzero(self.nodes.memory[row] >= kind.memory_milli)))
        )
