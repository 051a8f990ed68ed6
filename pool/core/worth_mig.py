"""What the free memory slices of MIG GPUs are worth to the usual asks, and what taking some costs over time.

Masks of free slices (bit 0 is slice 0), arrays throughout, a row a GPU of one
geometry. Nothing here says what is allowed: media engines, instance limits and
everything but room is placement's. Whole GPUs and shares are in worth.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pool.core.mig import Media, Profile, smallest
from pool.core.mix import Form, Kind, Mix, SliceParameters

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The places of a kind of slice, as masks.
Places = tuple[int, ...]

#: `until` of what has no end.
FOREVER = np.iinfo(np.int64).max
#: Grids up to here have a table of all masks (known ones have 4, 8 or 12 slices).
LARGEST_TABLE = 12
#: Losses are compared in steps of this size, so that rounding never decides between equal places.
STEP = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What each GPU has free while an ask would last, cut where something else there begins or ends.

    Flat, in the order of `row` (the GPU, 0..) and time, each row at least once: `free` masks,
    and `weight`, how much the stretch counts (those of a row sum to the same for all).
    """

    row: Ints
    free: Ints
    weight: Floats

    @property
    def first(self) -> Ints:
        """[rows] where each row begins."""
        return np.flatnonzero(np.diff(self.row, prepend=-1))


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What is busy: on the GPU `row` the slices `mask` over [`begin`, `until`), times as whole numbers."""

    row: Ints
    mask: Ints
    begin: Ints
    until: Ints

    def rows(self, which: NDArray[np.bool_]) -> Taken:
        """Only these entries."""
        return Taken(self.row[which], self.mask[which], self.begin[which], self.until[which])


def stretches(whole: Ints, taken: Taken, start: int, end: int, lasting: float) -> Stretches:
    """The stretches of [start, end) on GPUs whose masks are `whole` [rows] when nothing is taken.

    `lasting`: how long asks of this pool usually last, in the same unit, times the
    parameter `horizon` of the mix. What is known of a later time counts less, by e in
    each such time, because by then others will have come and gone. `end` FOREVER:
    without end. What is taken may overlap, as a blocker does an allocation.
    """
    inside = (taken.begin < end) & (taken.until > start) & (taken.mask != 0)
    if not inside.all():
        taken = taken.rows(inside)
    row, at, signed = _events(len(whole), taken, start, end)
    last = np.empty(len(row), dtype=np.bool_)
    last[-1:] = True
    np.not_equal(row[1:], row[:-1], out=last[:-1])
    busy = _busy(last, signed)
    gone = np.exp((start - at) / lasting)
    left = np.empty_like(gone)
    left[:-1] = gone[1:]
    left[last] = 0.0 if end == FOREVER else np.exp((start - end) / lasting)
    # Several changes at one instant leave stretches without length, in which things half happened.
    some = last.copy()
    np.logical_or(some[:-1], at[1:] > at[:-1], out=some[:-1])
    if some.all():
        return Stretches(row, whole[row] & ~busy, gone - left)
    row = row[some]
    return Stretches(row, whole[row] & ~busy[some], (gone - left)[some])


def _events(rows: int, taken: Taken, start: int, end: int) -> tuple[Ints, Ints, Ints]:
    """(row, when, mask: above 0 it begins, below it ends) in order, ends first; a row begins with a 0."""
    ends = np.flatnonzero(taken.until < end)
    row = np.concatenate([np.arange(rows), taken.row, taken.row[ends]])
    at = np.concatenate([np.full(rows, start), np.maximum(taken.begin, start), taken.until[ends]])
    signed = np.concatenate([np.zeros(rows, dtype=np.int64), taken.mask, -taken.mask[ends]])
    # Of a row nothing is before `start`, and no end at it: so its 0 comes first.
    order = np.argsort((at - start) * 4 + np.sign(signed), kind="stable")
    # Row numbers are small: as such they are sorted by counting.
    small = row.astype(np.uint16) if rows <= 1 << 16 else row
    order = order[np.argsort(small[order], kind="stable")]
    return row[order], at[order], signed[order]


def _busy(last: NDArray[np.bool_], signed: Ints) -> Ints:
    """What is busy after each event. `last` of their rows."""
    busy = _running(last, signed)
    if not np.any((busy - signed) & np.maximum(signed, 0)):
        return busy
    # Something overlaps, so that sums are no masks: count slice by slice.
    busy = np.zeros_like(signed)
    for place in range(int(np.abs(signed).max()).bit_length()):
        there = _running(last, np.sign(signed) * (np.abs(signed) >> place & 1)) > 0
        busy |= there.astype(np.int64) << place
    return busy


def _running(last: NDArray[np.bool_], change: Ints) -> Ints:
    """The sum of each row's changes so far."""
    total = np.cumsum(change)
    ends = np.flatnonzero(last)
    before = np.zeros(len(ends), dtype=np.int64)
    before[1:] = total[ends[:-1]]
    running: Ints = total - np.repeat(before, np.diff(ends, prepend=-1))
    return running


class SliceWorth:
    """The worth of free slices of one geometry to one mix. Build once; calls are cheap.

    For each kind of slice, the part of its places that are free, to a power, times the
    kind's weight. A wholly free GPU is worth 1 at most, so the losses of one mix can be compared
    and added, also with those of other geometries.
    """

    def __init__(self, mix: Mix, model: str, grid: int, profiles: Sequence[Profile]) -> None:
        self.grid = grid
        self.parameters = mix.slices
        self._kinds = weighed(kinds_of(mix, model, grid, profiles), grid, mix.slices)
        self._table = self._worth(np.arange(1 << grid)) if grid <= LARGEST_TABLE else None
        self._spoilt: dict[int, Floats] = {}

    def of(self, free: Ints) -> Floats:
        """[...] what these free slices are worth."""
        if self._table is not None:
            return self._table[free]
        different, back = np.unique(free, return_inverse=True)
        return self._worth(different)[back].reshape(free.shape)

    def loss(self, profile: Profile, at: Stretches) -> Floats:
        """[rows, starts of the profile, ascending] what is lost; inf where it is not free over all of it."""
        places = masks(profile.size, profile.starts, self.grid)
        first = at.first
        always = np.bitwise_and.reduceat(at.free, first) if len(first) else at.free
        fits = (always[:, None] & np.array(places, dtype=np.int64)) == places
        loss = np.full(fits.shape, np.inf)
        # Most rows of a pool that is used are out of the question: leave them out once for all places.
        rows = np.flatnonzero(fits.any(1))
        if not len(rows):
            return loss
        some = fits.any(1)[at.row]
        free, weight = at.free[some], at.weight[some]
        first = np.flatnonzero(np.diff(at.row[some], prepend=-1))
        for number, place in enumerate(places):
            lost = np.add.reduceat(self._lost(free, place) * weight, first)
            loss[rows, number] = np.where(fits[rows, number], lost, np.inf)
        return loss

    def _lost(self, free: Ints, place: int) -> Floats:
        """[...] what of these free slices is lost with this place."""
        if self._table is None:
            return self.of(free) - self.of(free & ~place)
        known = self._spoilt.get(place)
        if known is None:
            known = self._table - self._table[np.arange(1 << self.grid) & ~place]
            self._spoilt[place] = known
        return known[free]

    def _worth(self, free: Ints) -> Floats:
        worth = np.zeros(len(free))
        for places, weight in self._kinds.items():
            worth += weight * left_of(places, free) ** self.parameters.power
        return worth


def ranked(loss: Floats, at: Stretches) -> tuple[Ints, Ints]:
    """(rows, numbers of the start) of all places that fit, best first.

    The least loss; then where least is free at first; then the first GPU, and on it the last start.
    """
    rows, starts = np.nonzero(np.isfinite(loss))
    steps = np.rint(loss[rows, starts] / STEP)
    crowd = np.bitwise_count(at.free[at.first[rows]])
    order = np.lexsort((-starts, rows, crowd, steps))
    return rows[order], starts[order]


def left_of(places: Places, free: Ints) -> Floats:
    """[...] which part (0..1) of the places of a kind is free."""
    left = np.zeros(free.shape)
    for place in places:
        left += free & place == place
    return left / len(places)


@dataclass(frozen=True, slots=True)
class SliceKind:
    """A kind of slice on one geometry: its places, its profile's name, its part (0..1) of all asks."""

    places: Places
    name: str
    often: float


def kinds_of(mix: Mix, model: str, grid: int, profiles: Sequence[Profile]) -> list[SliceKind]:
    """The kinds of slices that the mix asks for, as far as GPUs of this model have them, in order of size.

    Where they have none of it, all plain profiles, equally often.
    """
    asked: dict[Places, tuple[str, float]] = {}

    def ask(profile: Profile | None, weight: float) -> None:
        if profile is not None and (places := masks(profile.size, profile.starts, grid)):
            name, before = asked.get(places, (profile.name, 0.0))
            asked[places] = (name, before + weight)

    for kind, weight in zip(mix.kinds, mix.weights, strict=True):
        ask(profile_of(kind, model, profiles), weight * max(1, kind.gpus))
    if not sum(weight for _, weight in asked.values()):
        for profile in profiles:
            if profile.media is Media.DEFAULT and not profile.gfx:
                ask(profile, 1.0)
    total = sum(weight for _, weight in asked.values())
    kinds = [SliceKind(places, name, weight / total) for places, (name, weight) in asked.items()]
    return sorted(kinds, key=lambda kind: (kind.places[0].bit_count(), kind.places))


def weighed(kinds: Sequence[SliceKind], grid: int, by: SliceParameters) -> dict[Places, float]:
    """What each kind weighs; their magnitudes together 1.

    As it was chosen for the mix; else by rule: its size to a power, however often it
    comes. A kind whose places are all places of another, as those of 4g are of 3g, weighs
    less: what is kept free for the other serves it too. Less than nothing is possible:
    many small slices could have been where a few large ones go, and a pool that never
    refuses what fits can only leave them less room.
    """
    chosen = dict(by.weights)
    weights = {}
    for kind in kinds:
        nested = any(set(kind.places) < set(other.places) for other in kinds)
        rule = (by.nested if nested else 1.0) * (kind.places[0].bit_count() / grid) ** by.size
        weights[kind.places] = chosen.get(kind.name, rule)
    total = sum(abs(weight) for weight in weights.values())
    if not total:
        return dict.fromkeys(weights, 1 / len(weights))
    return {places: weight / total for places, weight in weights.items()}


def profile_of(kind: Kind, model: str, profiles: Sequence[Profile]) -> Profile | None:
    """What a kind gets on GPUs with these profiles; None: nothing."""
    if kind.form is not Form.MIG or (kind.models and model not in kind.models):
        return None
    if kind.profile:
        return next((p for p in profiles if p.name == kind.profile), None)
    return smallest(profiles, kind.memory_mib or None, kind.compute_slices or None)


def masks(size: int, starts: Sequence[int], grid: int) -> Places:
    """The places of a profile that lie on the grid, in order of their start."""
    ones = (1 << size) - 1
    return tuple(ones << start for start in sorted(starts) if start + size <= grid)
