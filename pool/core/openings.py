"""Where one piece of an ask finds room, and from when until when: free stretches of time, of a fleet at once.

An opening never hides room that is there. It may promise too much where pieces get in one
another's way (slices that overlap, instance limits, cpu and memory of a node), so what
is found by it is placed exactly before it is offered (offers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from pool.core import shares
from pool.core.asks import Ask, alternatives
from pool.core.fleet import MEDIA, NEVER, USES, Bools, Fleet, Ints, micros
from pool.core.mig import Profile, media_clash
from pool.core.openings_sums import above, short_nodes, together
from pool.core.period import Period
from pool.core.placement_field import Field, Sort, field
from pool.core.placement_mode import SWITCH
from pool.core.placement_room import Use, slots, use_for
from pool.core.quota import WHOLE, charge_milli
from pool.core.shares import Portion
from pool.core.topology import Reach

#: So far is looked; what is free until then has no end in sight. Longer than any booking and any window.
SIGHT = timedelta(days=400)

_SIGHT = SIGHT // timedelta(microseconds=1)
#: Room for a number of microseconds within SIGHT beside the number of a place.
_BITS = 45
_AUTO = USES.index(Use.AUTO)
_SWITCH = SWITCH // timedelta(microseconds=1)


@dataclass(frozen=True, eq=False)
class Openings:
    """Flat: at `place`, the slices `mask` (0: a share) take `weight` pieces at any time of [begin, until).

    Microseconds; `until` NEVER: no end in sight. `way`: for which of the alternatives; `reach`: which
    places serve an ask together. `charges`: the least that one piece counts, in thousandths, by the
    GPU models that can serve it.
    """

    fleet: Fleet
    count: int
    since: int
    place: Ints
    mask: Ints
    weight: Ints
    begin: Ints
    until: Ints
    way: Ints
    reach: Reach
    charges: dict[str, int]
    _here: _Here

    @cached_property
    def changes(self) -> Ints:
        """The instants after the first at which room may come free, in order."""
        return self._here.changes()

    def starts(self, length: int, latest: int) -> Spans:
        """When `count` pieces could start together, up to `latest`, to stay for `length`."""
        can = self.reach.key[self.place] >= 0
        fits = np.flatnonzero((self.until - self.begin >= length) & (self.begin <= latest) & can)
        first, last = self.begin[fits], np.minimum(self.until[fits] - length, latest)
        if self.count > 1:
            pieces = together(self.reach, self.place[fits], self.way[fits], self.weight[fits], first, last)
            _whose, when, level = pieces
            enough = np.flatnonzero(level >= self.count)
            first, last = when[enough], when[enough + 1] - 1
        return _joined(first, last)

    def around(self, place: int, mask: int, instant: int) -> tuple[int, int]:
        """The opening there at this instant; (instant, instant) when there is none."""
        there = (self.place == place) & (self.begin <= instant) & (self.until > instant)
        found = np.flatnonzero(there & ((self.mask == mask) | (self.mask == 0)))
        if not len(found):
            return instant, instant
        return int(self.begin[found[0]]), int(self.until[found[0]])


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Instants `first` to `last`, both included, in order and apart from one another."""

    first: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.first)

    def holds(self, instants: Ints) -> Ints:
        """Those of these instants that are in it."""
        if not len(self.first):
            return instants[:0]
        at = np.searchsorted(self.first, instants, side="right") - 1
        return instants[(at >= 0) & (instants <= self.last[at])]

    def from_(self, instants: Ints) -> Ints:
        """For each the first instant in it that is no earlier; NEVER when there is none."""
        at = np.searchsorted(self.last, instants)
        first = np.append(self.first, NEVER)
        return np.asarray(np.maximum(first[at], instants))

    def without(self, closed: Iterable[tuple[int, int]], length: int) -> Spans:
        """Without the instants from which a stay of `length` would meet one of these half-open times."""
        first, last = self.first, self.last
        for start, end in closed:
            cut = _cut(first, last, start - length, end)
            first, last = cut
        return Spans(first, last)


def _cut(first: Ints, last: Ints, after: int, before: int) -> tuple[Ints, Ints]:
    """Without what lies strictly between the two."""
    left_first, left_last = first, np.minimum(last, after)
    right_first, right_last = np.maximum(first, before), last
    left, right = left_first <= left_last, right_first <= right_last
    starts = np.concatenate((left_first[left], right_first[right]))
    lasts = np.concatenate((left_last[left], right_last[right]))
    order = np.argsort(starts, kind="stable")
    return starts[order], lasts[order]


def openings(
    fleet: Fleet, ask: Ask, since: datetime, length: timedelta, *, now: datetime, account: str | None = None
) -> Openings:
    """Of this ask from `since` on. `account`: whose MPS server a share would need."""
    at_first = [
        field(fleet, one, Period(since, since + length), now, account=account) for one in alternatives(ask)
    ]
    here = _Here.of(fleet, micros(since))
    short = _short_of_node(here, ask)
    served = [(way, one, sort) for way, one in enumerate(at_first) for sort in one.sorts if sort.why is None]
    parts = [
        (*part, np.full(len(part[0]), way, dtype=np.int64))
        for way, one, sort in served
        for part in _of_sort(here, one, sort, account, short)
    ]
    place, mask, weight, begin, until, way_of = (
        np.concatenate(column) if parts else np.empty(0, dtype=np.int64)
        for column in (zip(*parts, strict=True) if parts else [()] * 6)
    )
    charges: dict[str, int] = {}
    for _, _, sort in served:
        charge = charge_of(sort)
        charges[sort.gpu.model] = min(charges.get(sort.gpu.model, charge), charge)
    return Openings(
        fleet=fleet,
        count=ask.count,
        since=here.since,
        place=place,
        mask=mask,
        weight=weight,
        begin=begin,
        until=until,
        way=way_of,
        reach=at_first[0].reach_when_empty,
        charges=charges,
        _here=here,
    )


def charge_of(sort: Sort) -> int:
    """What one piece counts on a GPU of this sort."""
    if isinstance(sort.fit, Portion):
        return shares.charge_milli(sort.fit, sort.gpu.shareable_mib)
    return WHOLE if sort.fit is None else charge_milli(sort.fit.size, sort.gpu.grid)


@dataclass(frozen=True, eq=False)
class _Here:
    """What is on the fleet from `since` on, in the order of the places."""

    fleet: Fleet
    since: int
    which: Ints
    at: Ints
    start: Ints
    end: Ints
    mask: Ints
    _fields: dict[str, Ints]

    @classmethod
    def of(cls, fleet: Fleet, since: int) -> _Here:
        on = fleet.on
        which = np.flatnonzero((on.end > since) & (on.start < since + _SIGHT))
        start = np.clip(on.start[which], since, None) - since
        end = np.minimum(on.end[which], since + _SIGHT) - since
        return cls(fleet, since, which, on.at[which], start, end, on.mask[which], {})

    def of_rows(self, name: str) -> Ints:
        if name not in self._fields:
            self._fields[name] = self.fleet.on.field(name, self.which).astype(np.int64)
        return self._fields[name]

    def changes(self) -> Ints:
        """The ends of all that is there, and when a GPU could have changed its mode after them."""
        ends = self.end[self.end < _SIGHT]
        if (self.fleet.use == _AUTO).any():
            ends = np.concatenate((ends, ends + _SWITCH))
        return np.sort(ends) + self.since


#: place, mask, weight, begin, until.
_Part = tuple[Ints, Ints, Ints, Ints, Ints]
#: place, start, end of what is in the way, in this order.
_Times = tuple[Ints, Ints, Ints]


def _short_of_node(here: _Here, ask: Ask) -> _Times:
    """On all GPUs of a node the times at which it has too little cpu or memory for what has to be there."""
    fleet, pieces = here.fleet, ask.count if ask.same_node or ask.node is not None else 1
    wants = (pieces * ask.node_cpu_milli, pieces * ask.node_memory_mib)
    taken = (here.of_rows("cpu"), here.of_rows("ram")) if any(wants) else (here.at, here.at)
    node, start, end = short_nodes(fleet, fleet.node[here.at], here.start, here.end, taken, wants, _SIGHT)
    order = np.argsort(fleet.node, kind="stable")
    first = np.searchsorted(fleet.node[order], node)
    number = np.searchsorted(fleet.node[order], node, side="right") - first
    row = np.repeat(np.arange(len(node)), number)
    at = order[np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number) + first[row]]
    return at, start[row], end[row]


def _in_order(at: Ints, start: Ints, end: Ints, more: _Times, member: Bools) -> _Times:
    """These times and those of `more` on the members."""
    mine = member[more[0]]
    if not mine.any():
        return at, start, end
    pairs = zip((at, start, end), more, strict=True)
    at, start, end = (np.concatenate((one, other[mine])) for one, other in pairs)
    order = np.lexsort((start, at))
    return at[order], start[order], end[order]


def _of_sort(here: _Here, at_first: Field, sort: Sort, account: str | None, short: _Times) -> Iterator[_Part]:
    """The openings on the GPUs of one sort, for each of its slots."""
    places = np.sort(sort.places[at_first.offered[sort.places] > 0])
    if not len(places):
        return
    member = np.zeros(len(here.fleet.id), dtype=np.bool_)
    member[places] = True
    rows = np.flatnonzero(member[here.at])
    if isinstance(sort.fit, Portion):
        times = _in_order(*_full(here, sort, sort.fit, rows, account), short, member)
        yield _opened(here, places, *times, 0, at_first.offered[places])
        return
    at, start, end = here.at[rows], here.start[rows], here.end[rows]
    everything, ones = (1 << sort.gpu.grid) - 1, np.ones(len(places), dtype=np.int64)
    mask = here.mask[rows]
    if isinstance(sort.fit, Profile):
        mask = np.where(_clashes(here, rows, sort.fit), everything, mask)
    if sort.gpu.use is Use.AUTO:
        at, start, end, mask = _with_modes(here, rows, mask, use_for(at_first.ask), everything)
    if sort.fit is None:
        yield _opened(here, places, *_in_order(at, start, end, short, member), everything, ones)
        return
    for _, slot in slots(sort.fit.size, sort.fit.starts, sort.gpu.grid):
        busy = mask & slot != 0
        times = _in_order(at[busy], start[busy], end[busy], short, member)
        yield _opened(here, places, *times, slot, ones)


def _clashes(here: _Here, rows: Ints, profile: Profile) -> Bools:
    """The rows beside which the profile cannot be, wherever they lie."""
    bad = np.array([media is not None and media_clash(profile.media, media) for media in MEDIA])
    return np.asarray(bad[here.of_rows("media")[rows]])


def _with_modes(
    here: _Here, rows: Ints, mask: Ints, use: Use, everything: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """What needs the other mode is in the way of all, with the time for a change before and after it."""
    at, start, end, mask = here.at[rows], here.start[rows], here.end[rows], mask.copy()
    is_mig = here.of_rows("profile")[rows] >= 0
    other = (is_mig != (use is Use.MIG)) & (here.of_rows("blocker")[rows] == 0)
    start = np.where(other, np.maximum(start - _SWITCH, 0), start)
    end = np.where(other & (end < _SIGHT), end + _SWITCH, end)
    mask[other] = everything
    order = np.lexsort((start, at))
    return at[order], start[order], np.minimum(end[order], _SIGHT), mask[order]


def _full(
    here: _Here, sort: Sort, portion: Portion, rows: Ints, account: str | None
) -> tuple[Ints, Ints, Ints]:
    """The times at which one more such share does not fit: something else is there, or a ledger is full."""
    ledgers = sort.gpu.ledgers
    is_share = here.of_rows("memory")[rows] > 0
    blocks = ~is_share
    if ledgers.one_user and account is not None:
        blocks |= here.of_rows("account")[rows] != here.fleet.account_number(account)
    some = rows[is_share]
    limits = (
        (here.of_rows("memory")[some], ledgers.memory_mib - portion.memory_mib),
        (here.of_rows("compute")[some], ledgers.compute_pct - portion.compute_pct),
        (np.ones(len(some), dtype=np.int64), ledgers.tenants - 1),
    )
    at, start, end = here.at[some], here.start[some], here.end[some]
    times = [above(at, start, end, amounts, most) for amounts, most in limits if amounts.any()]
    times.append((here.at[rows[blocks]], here.start[rows[blocks]], here.end[rows[blocks]]))
    all_at, all_start, all_end = (np.concatenate(column) for column in zip(*times, strict=True))
    order = np.lexsort((all_start, all_at))
    return all_at[order], all_start[order], all_end[order]


def _opened(here: _Here, places: Ints, at: Ints, start: Ints, end: Ints, slot: int, weight: Ints) -> _Part:
    """What lies between what is busy: `at`, `start` in order."""
    there = at << _BITS
    reach = np.maximum.accumulate(there | np.minimum(end, _SIGHT)) if len(at) else there
    reach = reach & ((1 << _BITS) - 1)
    first, last = (_firsts(at), _lasts(at)) if len(at) else (at, at)
    before = np.empty(len(at), dtype=np.int64)
    before[1:] = reach[:-1]
    before[first] = 0
    gap = start > before
    open_from = np.zeros(len(here.fleet.id), dtype=np.int64)
    open_from[at[last]] = reach[last]
    after = places[open_from[places] < _SIGHT]
    place = np.concatenate((at[gap], after))
    begin = np.concatenate((before[gap], open_from[after])) + here.since
    until = np.concatenate((start[gap] + here.since, np.full(len(after), NEVER, dtype=np.int64)))
    heavy = np.zeros(len(here.fleet.id), dtype=np.int64)
    heavy[places] = weight
    return place, np.full(len(place), slot, dtype=np.int64), heavy[place], begin, until


def _firsts(sorted_values: Ints) -> Ints:
    return np.flatnonzero(np.concatenate(([True], sorted_values[1:] != sorted_values[:-1])))


def _lasts(sorted_values: Ints) -> Ints:
    return np.append(_firsts(sorted_values)[1:] - 1, len(sorted_values) - 1)


def _joined(first: Ints, last: Ints) -> Spans:
    if not len(first):
        return Spans(first, last)
    order = np.argsort(first)
    first, reach = first[order], np.maximum.accumulate(last[order])
    new = np.ones(len(first), dtype=np.bool_)
    new[1:] = first[1:] > reach[:-1] + 1
    begins = np.flatnonzero(new)
    return Spans(first[begins], reach[np.append(begins[1:] - 1, len(first) - 1)])
