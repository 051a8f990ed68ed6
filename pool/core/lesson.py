"""What a pool learns from its bookings: its mix, and by self-play how that mix is turned into worth.

Takes from seconds to minutes; services/learning.py says when, and keeps what was learnt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import numpy as np

from pool.core import selfplay
from pool.core.asked import kinds
from pool.core.asks import Ask
from pool.core.fleet_cards import USES, Inventory
from pool.core.mix import WHOLE, Mix, learn
from pool.core.placement_policy import models_of
from pool.core.placement_room import Use
from pool.core.selfplay_mig import choose_slices
from pool.core.worth import Nodes


def lesson(asks: Iterable[Ask], known: Inventory, before: Mix | None, effort: int = 0) -> Mix:
    """The mix of these asks, with the parameters that served it best on this inventory.

    The search begins where the one `before` it ended. Deterministic.
    """
    asked = chain.from_iterable(map(kinds, asks))
    mix = learn(asked, parameters=before.parameters if before else None)
    if before is not None:
        mix = replace(mix, slices=before.slices)
    mix = selfplay.choose(mix, empty(known), models_of(known), effort=effort)
    return _with_slices(mix, known)


def empty(known: Inventory) -> Nodes:
    """The nodes of all GPUs that are given whole or in shares, as if nothing were on them.

    A row for each model of a node.
    """
    there = np.flatnonzero(known.use != USES.index(Use.MIG))
    rows, row = np.unique(np.stack([known.node[there], known.model[there]], 1), axis=0, return_inverse=True)
    counts = np.bincount(row.ravel(), minlength=len(rows))
    memory = np.where(np.arange(counts.max(initial=1)) < counts[:, None], WHOLE, 0)
    nodes = [known.nodes[node] for node in rows[:, 0]]
    cpu = np.array([np.inf if node.cpu_milli is None else node.cpu_milli for node in nodes], dtype=float)
    ram = np.array([np.inf if node.memory_mib is None else node.memory_mib for node in nodes], dtype=float)
    return Nodes(memory, rows[:, 1], cpu, ram, memory.copy())


def _with_slices(mix: Mix, known: Inventory) -> Mix:
    """With the weights of slices, played on the model and geometry that has most of them."""
    sliced = np.flatnonzero(known.use == USES.index(Use.MIG))
    if not len(sliced):
        return mix
    pairs = Counter(zip(known.model[sliced].tolist(), known.geometry[sliced].tolist(), strict=True))
    (model, geometry), gpus = min(pairs.items(), key=lambda item: (-item[1], item[0]))
    grid, profiles = known.geometries[geometry]
    return choose_slices(mix, known.models[model], grid, profiles, gpus)
