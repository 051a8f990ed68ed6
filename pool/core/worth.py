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

from pool.core.mix import Mix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model of the pool: `memory_mib` that can be given away, None if not known; GPUs there are."""

    name: str
    gpus: int
    memory_mib: int | None = None


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

    The unit is that of a mix's weighted kinds: a wholly free GPU that every kind can use
    is worth 1 (plus `balance`). All losses of one `Worth` can be compared and added.
    """

    def __init__(self, mix: Mix, models: Sequence[Model]) -> None:
        raise NotImplementedError

    def of(self, nodes: Nodes) -> Floats:
        """[rows] what is free there is worth."""
        raise NotImplementedError

    def share(
        self,
        nodes: Nodes,
        memory: int | Ints,
        compute: int | Ints = 0,
        cpu: float = 0,
        ram: float = 0,
    ) -> Floats:
        """[rows, GPUs] what is lost by a share of that GPU; inf where it does not fit.

        `memory` and `compute` in thousandths, one number or one a row (a share in MiB is
        another part of each model); `cpu` and `ram` what it takes of its node.
        """
        raise NotImplementedError

    def whole(self, nodes: Nodes, gpus: int | Ints = 1, cpu: float = 0, ram: float = 0) -> Floats:
        """[rows] what is lost by taking so many wholly free GPUs there; 0 GPUs: only cpu and memory."""
        raise NotImplementedError

    def pressure(self, fullness: float) -> Floats:
        """[models] what a whole GPU of each costs beyond its loss, because asks bound to it need it.

        `fullness` 0..1: how much of the pool is given away. An ask that can run on one
        model only need not care; all others add it times the GPUs that they take.
        """
        raise NotImplementedError
