"""Whether units fit into what is free: groups of GPUs of one node, single GPUs, slots.

All in counts, and for many states at once.
A state is how many nodes have how many free GPUs of each model, and what is free beside
those in slots. Which GPUs are free is in guarantee_states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pool.core.fleet_cards import Ints
from pool.core.quota import WHOLE

#: Steps after which the search for a packing of sizes that do not divide one another is given up.
_STEPS = 20_000
#: Of more groups only the closest packing is looked at.
_MOST_GROUPS = 200
_ALL = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """`nodes` [states, models, n]: how many nodes have n free GPUs of the model, n from 0.

    `slots` [states, models]: what can be had beside whole GPUs, in milli.
    """

    nodes: Ints
    slots: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What has to fit, [states, models + 1] with any model last. `sizes`, larger ones first, are those of
    the groups: `groups` [states, models + 1, sizes]. `slots` in milli."""

    sizes: tuple[int, ...]
    groups: Ints
    gpus: Ints
    slots: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The same for sizes that divide one another: [states, models] `spare` GPUs and `slots`.

    `groups` [states, models, sizes]: how many groups of each size would fit if no others did.
    """

    spare: Ints
    groups: Ints
    slots: Ints

    def and_(self, more: Room, less: Room) -> Room:
        """With the one and without the other."""
        return Room(
            self.spare + more.spare - less.spare,
            self.groups + more.groups - less.groups,
            self.slots + more.slots - less.slots,
        )


def divide(sizes: Sequence[int]) -> bool:
    """Whether each size divides the next larger one, which comes before it."""
    return all(large % small == 0 for large, small in pairwise(sizes))


def lacking(free: Free, need: Need) -> Ints:
    """[states] how much of the need finds no place, in milli; 0 exactly when all of it does.

    One state of `free` or of `need` stands for all of the other's. Never 0 wrongly; where
    sizes of groups do not divide one another a search for a packing may be given up.
    """
    if not divide(need.sizes):
        return _searched(free, need)
    level = np.arange(free.nodes.shape[2])
    each = [(free.nodes * (level // size)).sum(axis=2) for size in (1, *need.sizes)]
    groups = np.stack(each[1:], axis=2) if need.sizes else np.zeros((*each[0].shape, 0), dtype=np.int64)
    return short_of(Room(each[0], groups, free.slots), need)


def short_of(room: Room, need: Need) -> Ints:
    """`lacking`, where sizes divide one another."""
    return _Counting(room, need).lacking()


def extremes(
    edges: Ints, time: Ints, column: Ints, by: Sequence[Ints], columns: int, worse: np.ufunc
) -> list[Ints]:
    """[edges, columns] of each amount its least (`worse` minimum) or most (maximum) from edge to edge.

    Or beyond that: changes for the better within a stretch count only from the next one on. `by`
    is what each changes by at `time`, no earlier than the first edge.
    """
    at = np.searchsorted(edges, time, side="right") - 1
    later = edges[at] != time
    inner = (at * columns + column)[later]
    cell, cells = (at + later) * columns + column, len(edges) * columns
    found = []
    for one in by:
        # Sums of whole numbers below 2 ** 53 are exact.
        total = np.bincount(cell, one, cells + columns)[:cells].reshape(-1, columns)
        worst = np.cumsum(total, axis=0) + np.bincount(inner, worse(one[later], 0), cells).reshape(
            -1, columns
        )
        found.append(worst.astype(np.int64))
    return found


class _Counting:
    """Where each size divides the next larger one, it does not matter which node a group takes.

    A group of any size takes as many places of each smaller size wherever it lies,
    so that counts tell all; the largest groups first.
    """

    def __init__(self, room: Room, need: Need) -> None:
        models = room.slots.shape[1]
        shape = (max(len(room.slots), len(need.slots)), models)
        self.need = need
        self.models = models
        self.spare = np.broadcast_to(room.spare, shape).copy()
        self.room = [np.broadcast_to(room.groups[:, :, n], shape).copy() for n in range(len(need.sizes))]
        self.slots = np.broadcast_to(room.slots, shape).copy()
        self.without_place = np.zeros(shape[0], dtype=np.int64)

    def lacking(self) -> Ints:
        need, models = self.need, self.models
        for number, size in enumerate(need.sizes):
            for model in range(models):
                self._miss(need.groups[:, model, number] - self._group(number, model), size * WHOLE)
        gpus = np.minimum(need.gpus[:, :models], self.spare)
        self.spare -= gpus
        self._miss((need.gpus[:, :models] - gpus).sum(axis=1), WHOLE)
        self._own_slots()
        self._any()
        return self.without_place

    def _miss(self, number: Ints, milli: int) -> None:
        self.without_place += number * milli

    def _group(self, number: int, model: int, most: Ints | None = None) -> Ints:
        """Takes as many groups of this size as are needed (`most`), and says how many it got."""
        size = self.need.sizes[number]
        wanted = self.need.groups[:, model, number] if most is None else most
        got = np.minimum(wanted, np.minimum(self.room[number][:, model], self.spare[:, model] // size))
        got = np.maximum(got, 0)
        for smaller in range(number, len(self.need.sizes)):
            self.room[smaller][:, model] -= got * (size // self.need.sizes[smaller])
        self.spare[:, model] -= got * size
        return got

    def _own_slots(self) -> None:
        """What is wanted of each model; whole GPUs are broken only where the rest does not do."""
        wanted = self.need.slots[:, : self.models]
        over = np.maximum(wanted - self.slots, 0)
        broken = np.minimum(-(-over // WHOLE), self.spare)
        self.spare -= broken
        self.slots = self.slots + broken * WHOLE - wanted
        self._miss(np.maximum(-self.slots, 0).sum(axis=1), 1)
        np.maximum(self.slots, 0, out=self.slots)

    def _any(self) -> None:
        """What is wanted of any model takes what is left."""
        need, models = self.need, self.models
        for number, size in enumerate(need.sizes):
            wanted = np.broadcast_to(need.groups[:, models, number], self.without_place.shape).copy()
            for model in range(models):
                wanted -= self._group(number, model, wanted)
            self._miss(wanted, size * WHOLE)
        spare = self.spare.sum(axis=1)
        gpus = np.minimum(need.gpus[:, models], spare)
        self._miss(need.gpus[:, models] - gpus, WHOLE)
        left = self.slots.sum(axis=1) + (spare - gpus) * WHOLE
        self._miss(np.maximum(need.slots[:, models] - left, 0), 1)


def _searched(free: Free, need: Need) -> Ints:
    """Each different state by itself."""
    states = max(len(free.slots), len(need.slots))
    parts = (free.nodes, free.slots, need.groups, need.gpus, need.slots)
    flat = [np.broadcast_to(one, (states, *one.shape[1:])).reshape(states, -1) for one in parts]
    kinds, back = np.unique(np.concatenate(flat, axis=1), axis=0, return_inverse=True)
    cuts = np.cumsum([one.shape[1] for one in flat])[:-1]
    found = []
    for kind in kinds:
        own = [one.reshape(1, *like.shape[1:]) for one, like in zip(np.split(kind, cuts), parts, strict=True)]
        found.append(_packed(Free(own[0], own[1]), Need(need.sizes, own[2], own[3], own[4])))
    return np.array(found, dtype=np.int64)[back.ravel()]


def _packed(free: Free, need: Need) -> int:
    """The least that was found to be lacking in one state."""
    singles = Need((), need.groups[:, :, :0], need.gpus, need.slots)
    wanted = [
        (model, size)
        for number, size in enumerate(need.sizes)
        for model in range(need.groups.shape[1])
        for _ in range(int(need.groups[0, model, number]))
    ]
    search = _Search(free, singles, wanted)
    search.closest()
    if search.least and len(wanted) <= _MOST_GROUPS:
        search.go(free.nodes[0].copy(), 0, 0)
    return search.least


class _Search:
    """Over the nodes that each group could take; nodes that have as much free are as good."""

    def __init__(self, free: Free, singles: Need, wanted: Sequence[tuple[int, int]]) -> None:
        self.free, self.singles, self.wanted = free, singles, wanted
        self.least = _ALL
        self.seen: set[tuple[int, int, bytes]] = set()

    def closest(self) -> None:
        """Each group where it leaves the least."""
        nodes, lost = self.free.nodes[0].copy(), 0
        for model, size in self.wanted:
            there = self._there(nodes, model, size)
            if there:
                nodes = self._taken(nodes, *min(there, key=lambda one: one[1]), size)
            else:
                lost += size * WHOLE
        self._end(nodes, lost)

    def go(self, nodes: Ints, at: int, lost: int) -> None:
        """All ways for the groups from number `at` on; `lost` milli have found no place."""
        key = (at, lost, nodes.tobytes())
        if lost >= self.least or self.least == 0 or key in self.seen or len(self.seen) > _STEPS:
            return
        self.seen.add(key)
        if at == len(self.wanted):
            self._end(nodes, lost)
            return
        model, size = self.wanted[at]
        for own, level in self._there(nodes, model, size):
            self.go(self._taken(nodes, own, level, size), at + 1, lost)
        self.go(nodes, at + 1, lost + size * WHOLE)

    def _there(self, nodes: Ints, model: int, size: int) -> list[tuple[int, int]]:
        """(model, free GPUs) of nodes that have room for the group."""
        models = range(len(nodes)) if model == len(nodes) else (model,)
        return [(own, n) for own in models for n in range(size, nodes.shape[1]) if nodes[own, n]]

    def _taken(self, nodes: Ints, own: int, level: int, size: int) -> Ints:
        after = nodes.copy()
        after[own, level] -= 1
        after[own, level - size] += 1
        return after

    def _end(self, nodes: Ints, lost: int) -> None:
        rest = int(lacking(Free(nodes[None], self.free.slots), self.singles)[0])
        self.least = min(self.least, lost + rest)
