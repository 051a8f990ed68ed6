"""The kinds of a mix as columns: what each takes of a GPU, how it weighs on each model, what it needs of cpu.

Kinds that placement cannot tell apart are one column. What that makes of free
capacity is in worth.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pool.core.mix import WHOLE, Form, Kind, Mix, Parameters

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Beyond this nothing is won by keeping a model free: it will not be enough anyway.
MOST_PRESSURE = 1.5

#: (GPUs, thousandths of each GPU's memory and of its compute, cpu and memory of the node). The last
#: two only of several GPUs: those want most of a node, so that one cannot stand for another.
_Size = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model of the pool: `memory_mib` that can be given away, None if not known; GPUs there are."""

    name: str
    gpus: int
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """[kinds] each; `weights` [models, kinds] sum to about 1 on a model that every kind can use.

    `memory` and `compute` in thousandths of each GPU, `cpu` (thousandths) and `ram` (MiB)
    what one of them takes: of kinds that take one GPU, or a part of it, the mean.
    """

    gpus: Ints
    memory: Ints
    compute: Ints
    cpu: Floats
    ram: Floats
    weights: Floats

    @classmethod
    def of(cls, mix: Mix, models: Sequence[Model]) -> Usual:
        """The kinds of whole GPUs and shares; slices and what takes no GPU are not among them."""
        count: dict[_Size, Floats] = {}
        need: dict[_Size, Floats] = {}
        norm = 0.0
        for kind, weight in map(piece, mix.kinds, mix.weights):
            sizes = _sizes(kind, models)
            for at, size in sizes:
                norm += weight * _emphasis(size, mix.parameters) / len(sizes)
                share = weight * models[at].gpus / max(1, sum(model.gpus for model in models))
                count.setdefault(size, np.zeros(len(models)))[at] += weight
                node = np.array([kind.cpu_milli, kind.ram_mib], dtype=float)
                need[size] = need.get(size, np.zeros(2)) + share * node
        order = sorted(count)
        columns = np.array(order, dtype=np.int64).reshape(-1, 5)
        gpus, memory, compute, _, _ = columns.T
        counts = np.array([count[size] for size in order]).reshape(-1, len(models)).T
        weights = counts * np.array([_emphasis(size, mix.parameters) for size in order]) / (norm or 1.0)
        there = np.array([model.gpus for model in models], dtype=float)
        asked = (there / max(1.0, there.sum())) @ counts
        cpu, ram = np.array([need[size] for size in order]).reshape(-1, 2).T / np.maximum(asked, 1e-12)
        return cls(gpus, memory, compute, cpu, ram, weights)

    def pick(self, which: NDArray[np.bool_]) -> Usual:
        """Only these kinds."""
        return Usual(
            self.gpus[which],
            self.memory[which],
            self.compute[which],
            self.cpu[which],
            self.ram[which],
            self.weights[:, which],
        )


def piece(kind: Kind, weight: float) -> tuple[Kind, float]:
    """Several shares are as many asks for one; any other kind is what it is."""
    if kind.form is not Form.SHARE or kind.gpus < 2:
        return kind, weight
    cpu, ram = kind.cpu_milli // kind.gpus, kind.ram_mib // kind.gpus
    return replace(kind, gpus=1, cpu_milli=cpu, ram_mib=ram), weight * kind.gpus


def asked_milli(kind: Kind, models: Sequence[Model]) -> float:
    """What it asks of GPUs, in thousandths: the mean over those on which it can be; 0 where there is none."""
    sizes = _sizes(kind, models)
    there = sum(models[at].gpus for at, _ in sizes)
    if not there:
        return 0.0
    taken = sum(models[at].gpus * size[0] * max(size[1:3]) for at, size in sizes)
    return taken / there


def _emphasis(size: _Size, parameters: Parameters) -> float:
    """How much more than by its frequency a kind counts."""
    gpus, memory, compute, _, _ = size
    part = max(memory, compute, 1) / WHOLE
    return float(part**parameters.gamma * gpus**parameters.alpha)


def _sizes(kind: Kind, models: Sequence[Model]) -> list[tuple[int, _Size]]:
    """The models on which a kind can be, with what it takes there."""
    if kind.form not in (Form.SHARE, Form.WHOLE):
        return []
    found = []
    for at, model in enumerate(models):
        memory = kind.milli_on(model.memory_mib)
        if memory <= WHOLE and kind.gpus and (not kind.models or model.name in kind.models):
            node = (kind.cpu_milli, kind.ram_mib) if kind.gpus > 1 else (0, 0)
            compute = WHOLE if kind.form is Form.WHOLE else kind.compute_milli
            found.append((at, (kind.gpus, memory, compute, *node)))
    return found


def bound_demand(mix: Mix, models: Sequence[Model]) -> Floats:
    """[models] what bound asks want of each model when as much is asked as the pool has, over what there is.

    An ask that is bound to several counts on each by how large it is.
    """
    there = np.array([model.gpus for model in models], dtype=float)
    wanted = np.zeros(len(models))
    total = 0.0
    for kind, weight in map(piece, mix.kinds, mix.weights):
        sizes = _sizes(kind, models)
        if not sizes:
            continue
        on = np.array([at for at, _ in sizes])
        taken = np.array([gpus * max(memory, compute) / WHOLE for _, (gpus, memory, compute, _, _) in sizes])
        share = there[on] / max(1.0, there[on].sum())
        total += weight * float(taken @ share)
        if kind.models:
            wanted[on] += weight * taken * share
    demand: Floats = wanted / max(total, 1e-12) * there.sum() / np.maximum(there, 1.0)
    return demand


def gpus_per_cpu(mix: Mix, models: Sequence[Model]) -> float | None:
    """GPUs that the mix asks for beside each thousandth of a cpu; None where it asks for no cpu."""
    gpus = cpu = 0.0
    for kind, weight in map(piece, mix.kinds, mix.weights):
        sizes = _sizes(kind, models)
        cpu += weight * kind.cpu_milli if sizes or kind.form is Form.CPU else 0.0
        if sizes:
            mean = sum(size[0] * max(size[1:3]) for _, size in sizes) / len(sizes)
            gpus += weight * mean / WHOLE
    return gpus / cpu if cpu else None
