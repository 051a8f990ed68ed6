"""What of a fleet is free for guarantees: GPUs with nothing on them that stays, and slots.

As states over time. Only what stays counts: what may be taken back is as good as free. Whether claims fit
into a state is in guarantee_counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pool.core import shares
from pool.core.fleet import SHARINGS, USES, Bools, Fleet, Ints
from pool.core.fleet_cards import Geometry
from pool.core.fleet_window import Window
from pool.core.guarantee_counts import Free, Room, extremes
from pool.core.placement_room import Use, slots
from pool.core.placement_search import Pick
from pool.core.quota import WHOLE
from pool.core.shapes import ALL_PCT

#: How often each slice is taken lies side by side in one number: bits for each, and slices that fit.
_BITS, _SLICES = 5, 12
#: A year fits beside the number of a place.
_TIME_BITS = 45
_SHARE, _WHOLE, _AUTO = (USES.index(use) for use in (Use.SHARE, Use.WHOLE, Use.AUTO))


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What stays on the GPUs, in columns: the place, from when until when, and how much of what.

    `slices` are counts side by side (`counted`), 0 of a share. A negative `number` takes away:
    what may be taken back for a time.
    """

    at: Ints
    since: Ints
    until: Ints
    slices: Ints
    memory: Ints
    compute: Ints
    number: Ints

    def part(self, which: Ints | Bools) -> Held:
        return Held(*(getattr(self, name)[which] for name in self.__slots__))

    def and_(self, other: Held) -> Held:
        return Held(*(np.concatenate((getattr(self, n), getattr(other, n))) for n in self.__slots__))


def counted(masks: Ints, grid: Ints) -> Ints:
    """Each taken slice as a 1 in its bits. On a large grid anything that is taken takes all."""
    spread = np.zeros(len(masks), dtype=np.int64)
    for slot in range(_SLICES):
        spread |= (masks >> slot & 1) << (_BITS * slot)
    return np.where(grid > _SLICES, (masks != 0).astype(np.int64), spread)


def _taken(slices: Ints) -> Ints:
    """The masks of slices that are taken at least once."""
    mask = np.zeros(len(slices), dtype=np.int64)
    some = np.flatnonzero(slices)
    there = slices[some]
    for slot in range(_SLICES):
        mask[some] |= ((there >> (_BITS * slot) & ((1 << _BITS) - 1)) != 0).astype(np.int64) << slot
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """What stays in a window: `exact` in time; `worst` has all of it at once, however long it is there."""

    exact: Held
    worst: Held


def stays(window: Window, which: Ints, since: Ints, until: Ints) -> Stays:
    """What is there in the window, but for when these rows (numbers in `fleet.on`) may be taken."""
    starts, ends = np.maximum(window.starts, window.start), np.minimum(window.ends, window.end)
    every = _held(window, np.arange(len(window.which)), starts, ends, 1)
    here = np.searchsorted(window.which, which)
    known = here < len(window.which)
    known[known] = window.which[here[known]] == which[known]
    here = here[known]
    since = np.maximum(since[known], starts[here])
    until = np.minimum(until[known], ends[here])
    some = until > since
    here, since, until = here[some], since[some], until[some]
    always = np.zeros(len(window.which), dtype=np.bool_)
    always[here[(since == starts[here]) & (until == ends[here])]] = True
    return Stays(every.and_(_held(window, here, since, until, -1)), every.part(~always))


def _held(window: Window, rows: Ints, since: Ints, until: Ints, sign: int) -> Held:
    at, memory = window.at[rows], window.of("memory", rows)
    slices = np.where(memory > 0, 0, counted(window.mask[rows], window.fleet.grid[at]))
    return Held(
        at,
        since,
        until,
        slices * sign,
        memory * sign,
        window.of("compute", rows) * sign,
        np.full(len(rows), sign, dtype=np.int64),
    )


def held_by(fleet: Fleet, picks: Sequence[Pick], start: int, end: int) -> Held:
    """What these picks would hold for all of a window."""
    at = np.array([fleet.places[pick.gpu_id] for pick in picks], dtype=np.int64)
    masks = np.array([((1 << min(pick.size, 62)) - 1) << pick.start for pick in picks], dtype=np.int64)
    portions = [pick.portion for pick in picks]
    is_share = np.array([portion is not None for portion in portions], dtype=np.bool_)
    each = np.ones(len(picks), dtype=np.int64)
    return Held(
        at,
        each * start,
        each * end,
        np.where(is_share, 0, counted(masks, fleet.grid[at])),
        np.array([portion.memory_mib if portion else 0 for portion in portions], dtype=np.int64),
        np.array([portion.compute_pct if portion else 0 for portion in portions], dtype=np.int64),
        each,
    )


def held_as(fleet: Fleet, which: Ints, start: int, end: int) -> Held:
    """What these rows (numbers in `fleet.on`) hold, as if they did for all of a window."""
    on, each = fleet.on, np.ones(len(which), dtype=np.int64)
    at = on.at[which]
    memory, compute = (on.field(name, which).astype(np.int64) for name in ("memory", "compute"))
    slices = np.where(memory > 0, 0, counted(on.mask[which], fleet.grid[at]))
    return Held(at, each * start, each * end, slices, memory, compute, each)


class Ground:
    """The GPUs of a fleet as guarantees see them: bins of one node and model, and what each GPU gives."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.models = len(fleet.models)
        self.bin = fleet.node * max(1, self.models) + fleet.model
        self.bins = len(fleet.nodes) * max(1, self.models)
        size = np.bincount(self.bin, minlength=max(1, self.bins))
        self.bin_model = np.arange(max(1, self.bins)) % max(1, self.models)
        self.there = size > 0
        self.levels = int(size.max(initial=0)) + 1

    @cached_property
    def whole(self) -> Bools:
        """[places] which can be had whole: by their use, or where none of the model is for that, any."""
        fleet = self.fleet
        fit = (fleet.use == _WHOLE) | (fleet.use == _AUTO)
        some = np.bincount(fleet.model[fit], minlength=max(1, self.models)) > 0
        return np.asarray(fleet.usable & (fit | ~some[fleet.model]))

    @cached_property
    def _tables(self) -> tuple[Ints, Ints]:
        """What each mask of free slices gives in milli, all geometries in a row; where each begins."""
        tables = [_slots_of(geometry) for geometry in self.fleet.geometries] or [np.zeros(1, np.int64)]
        first = np.cumsum([0, *(len(table) for table in tables)])[:-1]
        return np.concatenate(tables), first

    def state(self, at: Ints, slices: Ints, memory: Ints, compute: Ints, number: Ints) -> tuple[Ints, Ints]:
        """Whether a whole GPU is free there (0, 1), and else what it gives in slots, in milli."""
        fleet = self.fleet
        free = (number <= 0) & fleet.usable[at]
        whole = free & self.whole[at]
        full = np.where(fleet.grid[at] > _SLICES, 1, (1 << np.minimum(fleet.grid[at], _SLICES)) - 1)
        table, first = self._tables
        milli = table[first[fleet.geometry[at]] + (full & ~_taken(slices))]
        is_share = fleet.use[at] == _SHARE
        some = np.flatnonzero(is_share)
        milli[some] = self._shares(*(one[some] for one in (at, slices, memory, compute, number)))
        milli[(fleet.use[at] == _WHOLE) | (memory > 0) & ~is_share] = 0
        milli[free] = WHOLE
        milli[whole | ~fleet.usable[at]] = 0
        return whole.astype(np.int64), milli

    def _shares(self, at: Ints, slices: Ints, memory: Ints, compute: Ints, number: Ints) -> Ints:
        fleet = self.fleet
        has = np.maximum(fleet.memory[at] - shares.RESERVE_MIB, 1)
        left = np.minimum((has - memory) * WHOLE // has, (ALL_PCT - compute) * WHOLE // ALL_PCT)
        most = np.array([shares.most_tenants(kind, fleet.most_shares) for kind in (*SHARINGS, None)])
        left[(slices != 0) | (number >= most[fleet.sharing[at]])] = 0
        return np.maximum(left, 0)

    def worst(self, what: Held) -> Free:
        """One state in which everything is there at once, however long it is."""
        return self.worst_in_full(what)[2]

    def worst_in_full(self, what: Held) -> tuple[Ints, Ints, Free]:
        """[places] whether the GPU is free as a whole, and how many of its bin are; and the state."""
        places, models = len(self.fleet.id), max(1, self.models)
        # Of very many that come after one another, sums of the slices would run over into the next one.
        slices = np.zeros(places, dtype=np.int64)
        np.bitwise_or.at(slices, what.at, what.slices)
        sums = (_summed(what.at, one, places) for one in (what.memory, what.compute, what.number))
        whole, milli = self.state(np.arange(places), slices, *sums)
        level = _summed(self.bin, whole, max(1, self.bins))
        nodes = np.zeros((1, models, self.levels), dtype=np.int64)
        np.add.at(nodes[0], (self.bin_model[self.there], level[self.there]), 1)
        return whole, level[self.bin], Free(nodes, _summed(self.fleet.model, milli, models)[None, :])

    def changes(self, what: Held, start: int, end: int, places: Ints) -> Changes:
        """How what is free of these places changes over the window; they have to be whole bins."""
        at, time, sums = _sums(what, start, end, places)
        whole, milli = self.state(at, *sums)
        new = np.concatenate(([True], at[1:] != at[:-1])) if len(at) else np.zeros(0, dtype=np.bool_)
        slots_by = np.diff(milli, prepend=0)
        slots_by[new] = milli[new]
        whole_by = np.diff(whole, prepend=0)
        whole_by[new] = whole[new]
        bins = self.bin[at]
        some = (whole_by != 0) | new
        order = _in_order(bins[some], time[some], start)
        bin_at, bin_time = bins[some][order], time[some][order]
        level = _running(bin_at, whole_by[some][order])
        last = _lasts(bin_at, bin_time)
        bin_at, bin_time, level = bin_at[last], bin_time[last], level[last]
        fresh = np.concatenate(([True], bin_at[1:] != bin_at[:-1])) if len(bin_at) else bin_at.astype(bool)
        before = np.where(fresh, -1, np.roll(level, 1))
        return Changes(self, time, at, whole_by, slots_by, bin_time, bin_at, before, level)


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """When GPUs come free and slots come and go: at `time`, on `at`, `whole` and `slots` more or less.

    At `bin_time` a bin goes from `before` free GPUs to `level`; before -1: it is there from then on.
    """

    ground: Ground
    time: Ints
    at: Ints
    whole: Ints
    slots: Ints
    bin_time: Ints
    bin: Ints
    before: Ints
    level: Ints

    def free(self, times: Ints) -> Free:
        """The state at each of these instants, which are in order and have all of the changes among them."""
        ground = self.ground
        models, levels = max(1, ground.models), ground.levels
        slots_at = np.zeros((len(times), models), dtype=np.int64)
        of_model = ground.fleet.model[self.at]
        np.add.at(slots_at, (np.searchsorted(times, self.time), of_model), self.slots)
        nodes = np.zeros((len(times), models, levels), dtype=np.int64)
        when, model = np.searchsorted(times, self.bin_time), ground.bin_model[self.bin]
        np.add.at(nodes, (when, model, self.level), 1)
        old = self.before >= 0
        np.add.at(nodes, (when[old], model[old], self.before[old]), -1)
        return Free(np.cumsum(nodes, axis=0), np.cumsum(slots_at, axis=0))

    def least(self, edges: Ints, sizes: tuple[int, ...]) -> Room:
        """No more than what is free at any instant of each stretch, which begin at these edges."""
        ground = self.ground
        models, before = max(1, ground.models), np.maximum(self.before, 0)
        of_bin, of_place = ground.bin_model[self.bin], ground.fleet.model[self.at]
        by = [self.level // size - before // size for size in (1, *sizes)]
        spare, *groups = extremes(edges, self.bin_time, of_bin, by, models, np.minimum)
        none = np.zeros((*spare.shape, 0), dtype=np.int64)
        (slots_free,) = extremes(edges, self.time, of_place, [self.slots], models, np.minimum)
        return Room(spare, np.stack(groups, axis=2) if groups else none, slots_free)

    def at_times(self, times: Ints) -> tuple[NDArray[np.int8], NDArray[np.int16]]:
        """[times, places] whether each is free as a whole, [times, bins] how many are; times are in order."""
        ground = self.ground
        whole = np.zeros((len(times) + 1, len(ground.fleet.id)), dtype=np.int8)
        np.add.at(whole, (np.searchsorted(times, self.time), self.at), self.whole.astype(np.int8))
        level = np.zeros((len(times) + 1, max(1, ground.bins)), dtype=np.int16)
        by = (self.level - np.maximum(self.before, 0)).astype(np.int16)
        np.add.at(level, (np.searchsorted(times, self.bin_time), self.bin), by)
        return np.cumsum(whole, axis=0, dtype=np.int8)[:-1], np.cumsum(level, axis=0, dtype=np.int16)[:-1]


def _sums(what: Held, start: int, end: int, places: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints, Ints, Ints]]:
    """Place by place the instants of [start, end) at which something changes, and what is there then."""
    ending = np.flatnonzero(what.until < end)
    none = np.zeros(len(places), dtype=np.int64)
    at = np.concatenate((places, what.at, what.at[ending]))
    time = np.concatenate((none + start, np.maximum(what.since, start), what.until[ending]))
    order = _in_order(at, time, start)
    at, time = at[order], time[order]
    sums = []
    last = _lasts(at, time)
    for column in (what.slices, what.memory, what.compute, what.number):
        every = np.concatenate((none, column, -column[ending]))[order]
        sums.append(_running(at, every)[last])
    return at[last], time[last], (sums[0], sums[1], sums[2], sums[3])


def _in_order(group: Ints, time: Ints, start: int) -> Ints:
    """By group, then time."""
    after = time - start
    if int(after.max(initial=0)) >= 1 << _TIME_BITS or int(group.max(initial=0)) >= 1 << (63 - _TIME_BITS):
        return np.lexsort((time, group))
    # Mostly runs that are in order already, of which this sort makes use.
    return np.argsort(group << _TIME_BITS | after, kind="stable")


def _running(group: Ints, values: Ints) -> Ints:
    """Sums within each group, which lie side by side."""
    if not len(group):
        return values
    total = np.cumsum(values)
    first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    before = total[first] - values[first]
    return np.asarray(total - np.repeat(before, np.diff(np.append(first, len(group)))))


def _lasts(group: Ints, time: Ints) -> Ints:
    """The last of each group and instant."""
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    changed = (group[1:] != group[:-1]) | (time[1:] != time[:-1])
    return np.flatnonzero(np.append(changed, True))


def _summed(group: Ints, values: Ints, groups: int) -> Ints:
    """Exact, also of numbers of 60 bits."""
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


@lru_cache(maxsize=256)
def _slots_of(geometry: Geometry) -> Ints:
    """What each mask of free slices gives in milli: as many as offered profiles can cover together."""
    grid, profiles = geometry
    if grid > _SLICES:
        return np.array([0, WHOLE], dtype=np.int64)
    places = {mask: size for p in profiles for _, mask in slots(p.size, p.starts, grid) for size in (p.size,)}
    best = [0] * (1 << grid)
    for free in range(1, 1 << grid):
        lowest = free & -free
        best[free] = best[free & ~lowest]
        for mask, size in places.items():
            if mask & lowest and mask & free == mask:
                best[free] = max(best[free], size + best[free & ~mask])
    milli = np.array(best, dtype=np.int64) * WHOLE // grid
    milli[-1] = WHOLE
    return milli
