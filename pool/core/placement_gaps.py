"""What time and modes cost a place: gaps that nobody will fill, GPUs kept in use for longer, changes of mode.

Columns over the places of a field, in GPUs.
"""

from __future__ import annotations

import numpy as np

from pool.core.fleet import NEVER, USES, Bools, Ints
from pool.core.placement_field import Field, has_auto
from pool.core.placement_policy import GAP
from pool.core.placement_room import Use, use_for
from pool.core.usual import Floats

_AUTO, _SHARE, _WHOLE = (USES.index(use) for use in (Use.AUTO, Use.SHARE, Use.WHOLE))
#: Gaps of more than so many usual bookings are as good as endless.
_LONG = 40.0


def waste(gap: Floats, lasting: int) -> Floats:
    """What of a gap is lost, in GPUs over a usual booking: it is too short for most, or left over by them.

    None of a gap that is not there, none of an endless one, most of one that is as long
    as bookings usually are.
    """
    usual = np.minimum(gap / lasting, _LONG)
    return GAP * np.e * usual * np.exp(-usual)


def cost_of_gaps(before: Floats, after: Floats, length: float, lasting: int) -> Floats:
    """What a booking of `length` costs that leaves these of its gap; below 0: it fills one."""
    return waste(before, lasting) + waste(after, lasting) - waste(before + after + length, lasting)


def around(field: Field, places: Ints, lasting: int) -> Floats:
    """The cost of the gaps that a booking of whole GPUs leaves there."""
    before, after = gaps(field, places)
    return cost_of_gaps(before, after, float(field.window.end) - field.window.start, lasting)


def gaps(field: Field, places: Ints) -> tuple[Floats, Floats]:
    """[places] how long nothing is on them before and after the period; from now on, and without end."""
    fleet, start, end = field.fleet, field.window.start, field.window.end
    on, number = fleet.on, len(fleet.id)
    wanted = np.zeros(number, dtype=np.bool_)
    wanted[places] = True
    before = np.full(number, float(min(field.now, start)))
    earlier = np.flatnonzero((on.end <= start) & wanted[on.at])
    np.maximum.at(before, on.at[earlier], on.end[earlier].astype(float))
    after = np.full(number, np.inf)
    later = np.flatnonzero((on.start >= end) & wanted[on.at])
    np.minimum.at(after, on.at[later], on.start[later].astype(float))
    return start - before[places], np.maximum(after[places] - end, 0.0) if end != NEVER else after[places]


def slice_gaps(field: Field, places: Ints, masks: Ints, lasting: int) -> Floats:
    """The cost of the gaps that a booking of these slices leaves there; for a few places."""
    on, start, end = field.fleet.on, field.window.start, field.window.end
    first, last = np.searchsorted(on.at, places), np.searchsorted(on.at, places, side="right")
    number = last - first
    spot = np.repeat(np.arange(len(places)), number)
    row = np.arange(number.sum()) + np.repeat(first - (np.cumsum(number) - number), number)
    same = (on.mask[row] & masks[spot]) != 0
    spot, ends, starts = spot[same], on.end[row[same]], on.start[row[same]]
    before = np.full(len(places), min(field.now, start))
    np.maximum.at(before, spot[ends <= start], ends[ends <= start])
    after = np.full(len(places), NEVER)
    np.minimum.at(after, spot[starts >= end], starts[starts >= end])
    left = np.where(after == NEVER, np.inf, after - float(end))
    return cost_of_gaps(float(start) - before, left, float(end) - start, lasting)


def outlasting(field: Field, places: Ints) -> Floats:
    """[places] which part of the period a share would be alone on its GPU, times what that costs.

    Shares that end together leave a whole GPU together.
    """
    window, number = field.window, len(field.fleet.id)
    first = np.full(number, float(window.end))
    last = np.full(number, float(window.start))
    np.minimum.at(first, window.at, np.maximum(window.starts, window.start).astype(float))
    np.maximum.at(last, window.at, np.minimum(window.ends, window.end).astype(float))
    shared = np.maximum(last - first, 0.0)
    return np.asarray(GAP * (1 - shared[places] / (float(window.end) - window.start)))


def switching(field: Field) -> Bools:
    """[places] where the mode has to change for the ask (placement_mode.switches)."""
    fleet = field.fleet
    auto: Bools = fleet.use == _AUTO
    if not fleet.fact(has_auto):
        return auto
    on = fleet.on
    before = np.flatnonzero(auto[on.at] & (on.start < field.window.start))
    before = before[fleet.on.field("blocker", before) == 0]
    mig = np.array([bool(card.mig_now) for card in fleet.cards], dtype=np.bool_)
    # In the order of their starts, so that the last one stays.
    mig[on.at[before]] = on.field("profile", before).astype(np.int64) >= 0
    return np.asarray(auto & (mig != (use_for(field.ask) is Use.MIG)))


def fullness(field: Field) -> float:
    """How much of the usable GPUs is given away in the period, 0..1."""
    fleet, window = field.fleet, field.window
    taken = np.bitwise_count(window.taken.view(np.uint64)) / fleet.grid
    taken[fleet.use == _WHOLE] = window.taken[fleet.use == _WHOLE] != 0
    share = (fleet.use == _SHARE) & (fleet.memory > 0)
    if share.any():
        held = np.bincount(window.at, window.of("memory"), len(fleet.id))
        taken[share] = np.minimum(held[share] / fleet.memory[share], 1.0)
    return float(taken[fleet.usable].mean()) if fleet.usable.any() else 1.0
