"""How much of what is free the usual asks cannot use, on a GPU, a node, in a pool; Slurm's figure for blocks.

Free capacity that an ask could use on the same node if that were empty, and cannot as
it is, is lost to that ask; each kind of ask counts as often as it comes. An empty
GPU is therefore never fragmented. Nothing here says where something goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pool.core.fleet_cards import USES, Bools, Ints
from pool.core.fleet_rows import MEDIA, NEVER
from pool.core.fleet_window import Window
from pool.core.mig import Profile, media_clash
from pool.core.mix import PRIOR, WHOLE, Form, Kind, Mix
from pool.core.placement_policy import models_of
from pool.core.placement_room import Use
from pool.core.shapes import ALL_PCT
from pool.core.shares import RESERVE_MIB
from pool.core.topology import blocks_of, levels
from pool.core.usual import piece
from pool.core.worth_mig import kinds_of

Floats = NDArray[np.float64]

_AUTO, _MIG, _SHARE, _WHOLE = (USES.index(use) for use in (Use.AUTO, Use.MIG, Use.SHARE, Use.WHOLE))


@dataclass(frozen=True, slots=True)
class Figure:
    """Thousandths of a GPU: `free`, and what of it the usual asks cannot use, on average.

    Not `known`: none of the GPUs can be used, or nobody knows what they hold.
    """

    free: float = 0.0
    lost: float = 0.0
    known: bool = True

    @property
    def share(self) -> float | None:
        """0 to 1; None where nothing is free, or nothing is known to be."""
        return min(1.0, max(0.0, self.lost / self.free)) if self.free > 0 else None


@dataclass(frozen=True, eq=False)
class Fragmentation:
    """Columns over the places of a fleet: `free` and `lost`, 0 on GPUs that cannot be used or are unknown.

    `blocks` is Slurm's figure in nodes; None in a pool of which no sizes of blocks are known.
    """

    window: Window
    free: Floats
    lost: Floats
    blocks: int | None

    def of_pool(self) -> Figure:
        return self._of(np.arange(len(self.free)))

    def of_node(self, node_id: int) -> Figure:
        fleet = self.window.fleet
        number = next((n for n, node in enumerate(fleet.nodes) if node.id == node_id), -1)
        return self._of(np.flatnonzero(fleet.node == number))

    def of_gpu(self, gpu_id: int) -> Figure:
        place = self.window.fleet.place(gpu_id)
        return self._of(np.array([] if place is None else [place], dtype=np.int64))

    def _of(self, places: Ints) -> Figure:
        known = bool(self.window.fleet.usable[places].any())
        return Figure(float(self.free[places].sum()), float(self.lost[places].sum()), known)


def fragmentation(window: Window, mix: Mix) -> Fragmentation:
    """What of that which is free over the whole window the usual asks of `mix` cannot use."""
    state = _State(window)
    weight, lost = np.zeros(len(state.free)), np.zeros(len(state.free))
    for often, can, serves in (*_of_gpus(state, mix), *_of_slices(state, mix)):
        counts = np.where(can & state.usable, often, 0.0)
        weight += counts
        lost += counts * np.where(state.free > 0, state.free - serves, 0.0)
    lost = np.divide(lost, weight, out=np.zeros_like(lost), where=weight > 0)
    return Fragmentation(window, np.where(weight > 0, state.free, 0.0), lost, _of_blocks(state))


#: How often a kind comes, on which places it could ever be, and what is free there that it can use now.
_Served = tuple[float, Bools, Floats]


class _State:
    """What is free, in columns over the places. `free`, `memory` and `compute` in thousandths."""

    def __init__(self, window: Window) -> None:
        fleet = self.fleet = window.fleet
        self.window = window
        self.usable = fleet.usable
        self.whole = window.empty & self.usable
        self.shared = fleet.use == _SHARE
        of_grid = WHOLE * np.bitwise_count(window.free).astype(np.int64) / np.maximum(fleet.grid, 1)
        memory, compute, tenants = window.share_peaks
        size = np.maximum(fleet.memory - RESERVE_MIB, 0)  # shares.shareable_mib of each
        left = np.maximum(WHOLE - WHOLE * memory / np.maximum(size, 1), 0.0)
        full = (tenants >= fleet.most_shares) & bool(fleet.most_shares)
        self.room = self.shared & window.shares_only & ~full & (size > 0)
        self.memory = np.where(self.shared & window.shares_only & (size > 0), left, 0.0)
        self.compute = WHOLE - WHOLE * compute / ALL_PCT
        free = np.where(
            self.shared, self.memory, np.where(fleet.use == _WHOLE, WHOLE * window.empty, of_grid)
        )
        self.free = np.where(self.usable, free, 0.0)
        self._node_has = [
            np.array([NEVER if value is None else value for value in column], dtype=np.int64)
            for column in (
                [node.cpu_milli for node in fleet.nodes],
                [node.memory_mib for node in fleet.nodes],
            )
        ]

    def beside(self, kind: Kind) -> tuple[Bools, Bools]:
        """[places] where the node has, and where it has free, what the kind takes of it."""
        wants = (kind.cpu_milli, kind.ram_mib)
        pairs = zip(self._node_has, self.window.node_free, wants, strict=True)
        has, free = np.ones((2, len(self.fleet.nodes)), dtype=np.bool_)
        for there, left, want in pairs:
            has, free = has & (there >= want), free & (left >= want)
        return has[self.fleet.node], free[self.fleet.node]

    def on_node(self, which: Bools) -> Ints:
        """[places] how many of these are on the same node."""
        number = np.bincount(self.fleet.node[which], minlength=len(self.fleet.nodes))
        return number[self.fleet.node].astype(np.int64)


def _of_gpus(state: _State, mix: Mix) -> Iterator[_Served]:
    """Kinds that take whole GPUs, or shares of one."""
    for form, uses in ((Form.WHOLE, (_WHOLE, _AUTO)), (Form.SHARE, (_SHARE,))):
        of_use = np.isin(state.fleet.use, uses)
        kinds = [piece(*one) for one in _kinds(mix, form)]
        for kind, often in kinds if of_use.any() else ():
            allowed = np.array(
                [not kind.models or m in kind.models for m in state.fleet.models], dtype=np.bool_
            )
            can = of_use & allowed[state.fleet.model]
            served = _wholes if form is Form.WHOLE else _shares
            yield (often, *served(state, kind, can))


def _kinds(mix: Mix, form: Form) -> list[tuple[Kind, float]]:
    """Those of one form; where nobody asks for it, those of which it is known that they are usual."""
    known = [one for one in zip(mix.kinds, mix.weights, strict=True) if one[0].form is form and one[1] > 0]
    return known or [(kind, weight) for kind, weight in PRIOR.items() if kind.form is form]


def _wholes(state: _State, kind: Kind, can: Bools) -> tuple[Bools, Floats]:
    has, free = state.beside(kind)
    can = can & has & (state.on_node(can & state.usable) >= kind.gpus)
    ready = can & state.whole
    serves = ready & free & (state.on_node(ready) >= kind.gpus)
    return can, np.where(serves, state.free, 0.0)


def _shares(state: _State, kind: Kind, can: Bools) -> tuple[Bools, Floats]:
    has, free = state.beside(kind)
    models = state.fleet.fact(models_of)
    part = np.array([kind.milli_on(model.memory_mib) for model in models], dtype=np.int64)[state.fleet.model]
    # Parts are counted up to a whole thousandth, so that what was shared out evenly still fits.
    serves = state.room & free & (np.ceil(state.memory) >= part)
    serves &= np.ceil(state.compute) >= kind.compute_milli
    return can & has & (part <= WHOLE), np.where(serves, state.free, 0.0)


def _of_slices(state: _State, mix: Mix) -> Iterator[_Served]:
    """Kinds of slices, geometry after geometry. What lies in none of a kind's places is never its."""
    fleet, uses = state.fleet, np.isin(state.fleet.use, (_MIG, _AUTO))
    total = sum(weight for _, weight in _kinds(mix, Form.MIG))
    sorts = np.unique(np.stack((fleet.model[uses], fleet.geometry[uses])), axis=1).T
    for model, geometry in sorts.tolist():
        here = uses & (fleet.model == model) & (fleet.geometry == geometry)
        grid, profiles = fleet.geometries[geometry]
        by_name = {profile.name: profile for profile in profiles}
        for kind in kinds_of(mix, fleet.models[model], grid, profiles) if profiles else ():
            if kind.often > 0:
                usable = _usable_slices(state.window, kind.places, by_name[kind.name])
                yield total * kind.often, here, np.where(here, usable * WHOLE / grid, 0.0)


def _usable_slices(window: Window, places: tuple[int, ...], profile: Profile) -> Ints:
    """[places] free slices that the kind can use, and those that it could not even on an empty GPU."""
    ever = 0
    usable = np.zeros(len(window.free), dtype=np.int64)
    for place in places:
        ever |= place
        usable |= np.where(window.free & place == place, place, 0)
    for code, media in enumerate(MEDIA):
        if media is not None and media_clash(profile.media, media):
            usable[(window.media >> code & 1) > 0] = 0
    number: Ints = np.bitwise_count(usable | (window.free & ~np.int64(ever))).astype(np.int64)
    return number


def _of_blocks(state: _State) -> int | None:
    """For every level, its size times the units with a node that is not wholly free; and missing nodes."""
    fleet, sizes = state.fleet, state.fleet.block_sizes
    blocks = blocks_of(fleet)
    if blocks is None or not sizes or not sizes[0]:
        return None
    named = sum(1 for name in fleet.blocks if name)
    placed = blocks < named
    worth = [sizes[0], *(size for size in sizes[1:] if size % sizes[0] == 0)]
    total = named * sizes[0] - len(np.unique(fleet.node[placed]))
    for size, unit in zip(worth, levels(fleet, blocks, sizes), strict=True):
        total += size * len(np.unique(unit[placed & ~state.whole]))
    return int(total)
