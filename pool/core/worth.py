"""What the free capacity of nodes is worth to the asks that a pool usually gets, and what taking some costs.

Whole GPUs, shares and node cpu; arrays throughout, a row a node. The worth of
MIG slices is in worth_mig.py. Nothing here says what is allowed: a loss is only
a reason to go elsewhere, and is infinite where the ask does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pool.core.mix import WHOLE, Mix
from pool.core.usual import MOST_PRESSURE, Floats, Ints, Model, Usual, bound_demand, gpus_per_cpu

Bools = NDArray[np.bool_]
#: Sums of floats may be so much too large.
_HAIR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """What is free, a row a node; a node with GPUs of two models is two rows.

    `memory` [rows, GPUs]: thousandths of each GPU, 0 where there is none; `compute` the
    same, or None where only one dimension is counted. `model` [rows]: index into the
    models. `cpu` (milli) and `ram` (MiB) [rows]: inf where not known or not limited.
    """

    memory: Ints
    model: Ints
    cpu: Floats
    ram: Floats
    compute: Ints | None = None

    def rows(self, which: Ints | slice) -> Nodes:
        """Only these rows."""
        compute = None if self.compute is None else self.compute[which]
        return Nodes(self.memory[which], self.model[which], self.cpu[which], self.ram[which], compute)


class Worth:
    """The worth of free capacity to one mix in one pool. Build once a mix; calls are cheap.

    For each kind, what free GPUs it can still use: a part of a GPU that is large enough,
    as many wholly free GPUs of a node as it wants; but no more than the node's free cpu
    serves. Summed over the kinds with their weights. A wholly free GPU that every kind can
    use is worth 1 (plus `balance`). All losses of one `Worth` can be compared and added.
    """

    def __init__(self, mix: Mix, models: Sequence[Model]) -> None:
        self.models = tuple(models)
        self.parameters = mix.parameters
        usual = Usual.of(mix, self.models)
        single = usual.gpus == 1
        self._parts = _Parts(usual.pick(single), self.parameters.slack)
        self._sets = _Sets(usual.pick(~single))
        self._balance = self.parameters.balance
        self._per_cpu = gpus_per_cpu(mix, self.models)
        self._pressure = np.minimum(bound_demand(mix, self.models), MOST_PRESSURE) * self.parameters.pressure

    def of(self, nodes: Nodes) -> Floats:
        """[rows] what is free there is worth."""
        parts = self._parts.usable(nodes.memory, nodes.compute).sum(1)
        return self._sum(parts, wholly_free(nodes).sum(1), nodes.memory.sum(1), _Node.of(nodes))

    def share(
        self, nodes: Nodes, memory: int | Ints, compute: int | Ints = 0, cpu: float = 0, ram: float = 0
    ) -> Floats:
        """[rows, GPUs] what is lost by a share of that GPU; inf where it does not fit.

        `memory` and `compute` in thousandths, one number or one a row (a share in MiB is
        another part of each model); `cpu` and `ram` what it takes of its node.
        """
        memory, compute = _a_row(memory, nodes), _a_row(compute, nodes)
        fits = (nodes.memory >= memory[:, None]) & _has(nodes, cpu, ram)[:, None]
        if nodes.compute is not None:
            fits &= nodes.compute >= compute[:, None]
        loss = np.full(nodes.memory.shape, np.inf)
        rows = np.flatnonzero(fits.any(1))
        if len(rows):
            loss[rows] = self._shares(nodes.rows(rows), fits[rows], memory[rows], compute[rows], (cpu, ram))
        return loss

    def whole(self, nodes: Nodes, gpus: int | Ints = 1, cpu: float = 0, ram: float = 0) -> Floats:
        """[rows] what is lost by taking so many wholly free GPUs there; 0 GPUs: only cpu and memory."""
        gpus = _a_row(gpus, nodes)
        loss = np.full(len(nodes.model), np.inf)
        rows = np.flatnonzero((wholly_free(nodes).sum(1) >= gpus) & _has(nodes, cpu, ram))
        if not len(rows):
            return loss
        nodes, gpus = nodes.rows(rows), gpus[rows]
        parts = self._parts.usable(nodes.memory, nodes.compute).sum(1)
        count, free = wholly_free(nodes).sum(1), nodes.memory.sum(1)
        node = _Node.of(nodes)
        was = self._sum(parts, count, free, node)
        parts -= gpus[:, None] * self._parts.whole
        now = self._sum(parts, count - gpus, free - WHOLE * gpus, node.without(cpu, ram))
        loss[rows] = was - now
        return loss

    def pressure(self, fullness: float) -> Floats:
        """[models] what a whole GPU of each costs beyond its loss, because asks bound to it need it.

        `fullness` 0..1: how much of the pool is given away. An ask that can run on one
        model only need not care; all others add it times the GPUs that they take.
        """
        fade = self.parameters.fade
        return self._pressure * max(0.0, 1 - fullness / fade if fade else 0.0)

    def _shares(
        self, nodes: Nodes, fits: Bools, memory: Ints, compute: Ints, node: tuple[float, float]
    ) -> Floats:
        """[rows, GPUs] the losses where it `fits`; GPUs like the one before them are not rated again."""
        usable = self._parts.usable(nodes.memory, nodes.compute)
        whole = wholly_free(nodes)
        parts, count, total = usable.sum(1), whole.sum(1), nodes.memory.sum(1)
        beside = _Node.of(nodes)
        was = self._sum(parts, count, total, beside)
        first = fits & ~_as_before(nodes)
        at, gpu = np.nonzero(first)
        left = None if nodes.compute is None else nodes.compute[at, gpu] - compute[at]
        after = self._parts.usable(nodes.memory[at, gpu] - memory[at], left)
        after += parts[at] - usable[at, gpu]
        count = count[at] - whole[at, gpu]
        rest = beside.rows(at).without(*node)
        each = was[at] - self._sum(after, count, total[at] - memory[at], rest)
        loss = np.full(fits.shape, np.inf)
        loss[fits] = each[np.cumsum(first)[fits.ravel()] - 1]
        return loss

    def _sum(self, parts: Floats, whole: Ints, free: Ints, node: _Node) -> Floats:
        """[rows] the worth, from what the GPUs serve of each kind, how many are whole, and what is free."""
        worth = self._parts.worth(parts, node) + self._sets.worth(whole, node)
        return worth + self._even(free, node.cpu) if self._balance else worth

    def _even(self, free: Ints, cpu: Floats) -> Floats:
        """What is free in the proportion in which it is asked: cpu beside GPUs, and GPUs beside cpu."""
        gpus = free / WHOLE
        return self._balance * (gpus if self._per_cpu is None else np.minimum(gpus, cpu * self._per_cpu))


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """What belongs to the node: [rows] each."""

    model: Ints
    cpu: Floats
    ram: Floats

    @classmethod
    def of(cls, nodes: Nodes) -> _Node:
        return cls(nodes.model, nodes.cpu, nodes.ram)

    def rows(self, which: Ints) -> _Node:
        return _Node(self.model[which], self.cpu[which], self.ram[which])

    def without(self, cpu: float, ram: float) -> _Node:
        """With so much less."""
        return _Node(self.model, self.cpu - cpu, self.ram - ram)


class _Weights:
    """Sums over the kinds, by the weights of each row's model; simpler where no kind is bound to one."""

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        self._alike = bool((weights == weights[:1]).all())

    def __call__(self, served: Floats, model: Ints) -> Floats:
        if self._alike:
            alike: Floats = np.einsum("rk,k->r", served, self._weights[0])
            return alike
        each: Floats = np.einsum("rk,rk->r", served, self._weights[model])
        return each


class _Parts:
    """Kinds that take one GPU or a part of it: what a GPU still serves of each, read from tables."""

    def __init__(self, usual: Usual, slack: float) -> None:
        levels = np.arange(WHOLE + 1)[:, None]
        size = np.maximum(usual.memory, usual.compute)
        self._memory = _served(levels, usual.memory, size)
        self._compute = _served(levels, usual.compute, size)
        self._weigh = _Weights(usual.weights)
        self._per_cpu = slack * size / WHOLE / np.maximum(usual.cpu, 1.0)
        #: [kinds] what a wholly free GPU serves.
        self.whole = np.minimum(self._memory[WHOLE], self._compute[WHOLE])

    def usable(self, memory: Ints, compute: Ints | None) -> Floats:
        """[..., kinds] what of GPUs with so much free (thousandths) each kind can use, in GPUs."""
        usable: Floats = self._memory[memory]
        return usable if compute is None else np.minimum(usable, self._compute[compute])

    def worth(self, usable: Floats, node: _Node) -> Floats:
        """[rows] from what all GPUs of the row serve of each kind."""
        return self._weigh(np.minimum(usable, node.cpu[:, None] * self._per_cpu), node.model)


class _Sets:
    """Kinds that take several wholly free GPUs of one node, with the cpu and memory of it that each wants."""

    def __init__(self, usual: Usual) -> None:
        self._gpus = usual.gpus
        self._cpu = usual.cpu - _HAIR
        self._ram = usual.ram - _HAIR
        self._weigh = _Weights(usual.weights)

    def worth(self, whole: Ints, node: _Node) -> Floats:
        """[rows] from how many GPUs of the row are wholly free."""
        if not len(self._gpus):
            return np.zeros(len(whole))
        served = (whole[:, None] >= self._gpus) & (node.cpu[:, None] >= self._cpu)
        served &= node.ram[:, None] >= self._ram
        return whole * self._weigh(served.astype(np.float64), node.model)


def _served(levels: Ints, least: Ints, size: Ints) -> Floats:
    """[levels, kinds] the GPUs that a kind can use of so much free: as many of it as fit, and a fraction."""
    whole = np.full(np.broadcast_shapes(levels.shape, least.shape), float(WHOLE))
    shared = levels * (size / np.maximum(least, 1))
    return np.where(levels >= least, np.where(least > 0, shared, whole), 0.0) / WHOLE


def wholly_free(nodes: Nodes) -> Bools:
    """[rows, GPUs] which are wholly free."""
    whole: Bools = nodes.memory == WHOLE
    return whole if nodes.compute is None else whole & (nodes.compute == WHOLE)


def _as_before(nodes: Nodes) -> Bools:
    """[rows, GPUs] where a GPU has the same free as the one before it, so that it need not be rated again."""
    same = np.zeros(nodes.memory.shape, dtype=bool)
    same[:, 1:] = nodes.memory[:, 1:] == nodes.memory[:, :-1]
    if nodes.compute is not None:
        same[:, 1:] &= nodes.compute[:, 1:] == nodes.compute[:, :-1]
    return same


def _has(nodes: Nodes, cpu: float, ram: float) -> NDArray[np.bool_]:
    enough: Bools = (nodes.cpu >= cpu) & (nodes.ram >= ram)
    return enough


def _a_row(value: int | Ints, nodes: Nodes) -> Ints:
    return value if isinstance(value, np.ndarray) else np.full(len(nodes.model), value, dtype=np.int64)
