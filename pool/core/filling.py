"""A pool that only fills up: asks come one after the other and stay. What self-play and benchmarks play on.

Keeps the losses of each kind of ask and renews those of the nodes that have
changed since, so that a decision costs little. Knows no time and no slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pool.core.mix import WHOLE, Form, Kind
from pool.core.usual import Floats, Ints, Model
from pool.core.worth import Nodes, wholly_free

#: Losses are compared in steps of this, so that rounding errors never decide between equal nodes.
_STEP = 1e-10
#: Equal losses go to the GPU that has the least free; so little that it decides nothing else.
BEST_FIT = 1e-7


@dataclass(frozen=True, slots=True)
class Place:
    """A row of the nodes, and its GPU for a share; -1 for whole GPUs, of which the first free are taken."""

    row: int
    gpu: int = -1


class Rating(Protocol):
    """What a place costs: a `Worth`, or another policy to compare with; see there."""

    def share(
        self, nodes: Nodes, memory: int | Ints, compute: int | Ints = 0, cpu: float = 0, ram: float = 0
    ) -> Floats: ...

    def whole(self, nodes: Nodes, gpus: int | Ints = 1, cpu: float = 0, ram: float = 0) -> Floats: ...

    def pressure(self, fullness: float) -> Floats: ...


class Known:
    """What is known of one kind of ask: losses and GPUs by row, as of so many changes."""

    def __init__(self, loss: Floats, gpu: Ints, changes: int) -> None:
        self.loss = loss
        self.gpu = gpu
        self.changes = changes


class Filling:
    """The nodes of a pool and what is still free there. Equal input gives equal choices."""

    def __init__(self, nodes: Nodes, models: Sequence[Model], rating: Rating, ties: float = BEST_FIT) -> None:
        self.nodes = Nodes(
            nodes.memory.copy(),
            nodes.model,
            nodes.cpu.copy(),
            nodes.ram.copy(),
            None if nodes.compute is None else nodes.compute.copy(),
        )
        self.models = tuple(models)
        self.total = int(nodes.memory.sum())
        self.given = 0
        self._rating = rating
        self._ties = ties
        self._changes: list[int] = []
        self._known: dict[Kind, Known] = {}
        self._of_kind: dict[Kind, Ints] = {}

    @property
    def fullness(self) -> float:
        return self.given / max(1, self.total)

    def rate_by(self, rating: Rating) -> None:
        """From now on places are rated so."""
        self._rating = rating
        self._known.clear()

    def choose(self, kind: Kind) -> Place | None:
        """Where the ask goes: the least loss and pressure on its model; None only where it fits nowhere."""
        known = self.losses(kind)
        cost = known.loss
        pressure = self._rating.pressure(self.fullness)
        if kind.gpus and pressure.any():
            taken = np.minimum(self._parts(kind), WHOLE) * kind.gpus / WHOLE
            cost = cost + (pressure * taken)[self.nodes.model]
        row = int(np.argmin(np.rint(cost / _STEP)))
        return Place(row, int(known.gpu[row])) if np.isfinite(cost[row]) else None

    def take(self, kind: Kind, place: Place) -> None:
        """Give it away there; `choose` has said that it fits."""
        nodes, row = self.nodes, place.row
        nodes.cpu[row] -= kind.cpu_milli
        nodes.ram[row] -= kind.ram_mib
        if kind.form is Form.SHARE:
            part = int(self._parts(kind)[nodes.model[row]])
            nodes.memory[row, place.gpu] -= part
            self.given += part
            if nodes.compute is not None:
                nodes.compute[row, place.gpu] -= kind.compute_milli
        elif kind.gpus:
            free = np.flatnonzero(wholly_free(nodes.rows(slice(row, row + 1)))[0])[: kind.gpus]
            nodes.memory[row, free] = 0
            self.given += kind.gpus * WHOLE
            if nodes.compute is not None:
                nodes.compute[row, free] = 0
        self._changes.append(row)

    def losses(self, kind: Kind) -> Known:
        """What the ask costs on each row, brought up to date."""
        known = self._known.get(kind)
        if known is None:
            loss, gpu = self._rate(kind, self.nodes)
            known = self._known[kind] = Known(loss, gpu, len(self._changes))
        elif known.changes < len(self._changes):
            rows = np.array(sorted(set(self._changes[known.changes :])))
            known.loss[rows], known.gpu[rows] = self._rate(kind, self.nodes.rows(rows))
            known.changes = len(self._changes)
        return known

    def _rate(self, kind: Kind, nodes: Nodes) -> tuple[Floats, Ints]:
        """[rows] the loss of this ask, inf where it does not fit, and the GPU for it."""
        cpu, ram = float(kind.cpu_milli), float(kind.ram_mib)
        gpu = np.full(len(nodes.model), -1)
        parts = self._parts(kind)[nodes.model]
        if kind.form is Form.SHARE:
            each = self._rating.share(nodes, parts, kind.compute_milli, cpu, ram)
            each += self._ties * nodes.memory / WHOLE
            gpu = np.rint(each / _STEP).argmin(1)
            loss = each[np.arange(len(gpu)), gpu]
        else:
            loss = self._rating.whole(nodes, kind.gpus, cpu, ram)
        loss[parts > WHOLE] = np.inf
        return loss, gpu

    def _parts(self, kind: Kind) -> Ints:
        """[models] what it takes of one GPU's memory, in thousandths; above `WHOLE` where it may not be."""
        known = self._of_kind.get(kind)
        if known is None:
            names = kind.models
            known = np.array(
                [
                    kind.milli_on(model.memory_mib) if not names or model.name in names else WHOLE + 1
                    for model in self.models
                ]
            )
            self._of_kind[kind] = known
        return known
