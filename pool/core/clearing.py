"""Which sets of bookings are worth moving for an ask that does not fit: what is in the way, place by place.

Found on the columns of the whole pool at once; whether the ask fits then, and whether
the moved fit elsewhere, is tried in moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import numpy as np

from pool.core.asks import Ask, alternatives
from pool.core.fleet import CLASSES, Bools, Fleet, Ints, halves, micros, whole_id
from pool.core.fragmentation import Floats
from pool.core.mig import Profile
from pool.core.period import Period
from pool.core.placement_field import Field, field
from pool.core.placement_mode import wide
from pool.core.shapes import Class

#: So many places at which something could come free are looked at, the cheapest first; and so many sets.
_PLACES = 256
MOST = 32
_ONLINE = CLASSES.index(Class.ONLINE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ask that does not fit, and for which time."""

    ask: Ask
    period: Period
    account: str | None = None

    @property
    def on_nodes(self) -> bool:
        """Whether what is short may be the node's, which its GPUs have in common."""
        return bool(self.ask.node_cpu_milli or self.ask.node_memory_mib)


@dataclass(frozen=True, slots=True)
class _Unit:
    """At `place` of the group `key` so many pieces come free once these are gone."""

    key: int
    place: int
    pieces: int
    who: frozenset[UUID]


#: What of the bookings is at each place: (mask, whose).
_There = Mapping[int, Sequence[tuple[int, UUID]]]


def sets(
    fleet: Fleet, wanted: Wanted, *, now: datetime, only: Collection[UUID] | None = None
) -> list[tuple[UUID, ...]]:
    """Sets of bookings that may make room once they are gone, those that count least first; at most 32.

    Bookings yet to start, none online, or `only` these. Of each place what it has to lose for a piece
    more; of asks for several the cheapest places of one group (topology.Reach) together.
    """
    return _Clearing(fleet, wanted, now, only).sets()


class _Clearing:
    def __init__(self, fleet: Fleet, wanted: Wanted, now: datetime, only: Collection[UUID] | None) -> None:
        self.fleet, self.wanted, self.now, self.only = fleet, wanted, now, only
        on, near = fleet.on, wide(wanted.period)
        there = np.flatnonzero((on.start < micros(near.end)) & (on.end > micros(near.start)))
        there = there[self._may_go(there)]
        self.at, self.rows = on.at[there], on.records(there)
        self.charge: dict[UUID, int] = defaultdict(int)

    def _may_go(self, which: Ints) -> Bools:
        on = self.fleet.on
        if self.only is None:
            return np.asarray(on.field("moved", which) & (on.field("klass", which) != _ONLINE))
        some = np.array([halves(one) for one in self.only], dtype=np.int64).reshape(-1, 2)
        whose = on.field("reservation", which)
        return np.asarray(np.isin(whose[:, 0], some[:, 0]) & np.isin(whose[:, 1], some[:, 1]))

    def sets(self) -> list[tuple[UUID, ...]]:
        if not len(self.rows):
            return []
        cleared = self._cleared()
        found: set[frozenset[UUID]] = set()
        for ask in alternatives(self.wanted.ask):
            one = replace(self.wanted, ask=ask)
            here, empty = (
                field(known, ask, one.period, self.now, account=one.account)
                for known in (self.fleet, cleared)
            )
            there = self._there(self._cheapest(here, empty))
            found |= set(_together(here, list(self._units(here, empty, there)), self.charge))
        total = {one: sum(self.charge[pk] for pk in one) for one in found}
        order = sorted(found, key=lambda one: (total[one], len(one), sorted(one)))
        return [tuple(sorted(one)) for one in order[:MOST]]

    def _cleared(self) -> Fleet:
        """The fleet without all of them."""
        places = np.unique(self.at)
        there = self.fleet.rows(places)
        start, end = micros(wide(self.wanted.period).start), micros(wide(self.wanted.period).end)
        on, gone = self.fleet.on, np.zeros(len(there), dtype=np.bool_)
        first = np.searchsorted(on.at, places)
        number = np.searchsorted(on.at, places, side="right") - first
        which = np.repeat(first - np.cumsum(number) + number, number) + np.arange(number.sum())
        gone = self._may_go(which) & (there["start"] < end) & (there["end"] > start)
        return self.fleet.updated([self.fleet.cards[place] for place in places.tolist()], there[~gone])

    def _cheapest(self, here: Field, empty: Field) -> Ints:
        """The places of the groups at which the missing pieces come free for the least."""
        more = np.flatnonzero(empty.count > here.count)
        key = here.reach.key[more]
        more, key = more[key >= 0], key[key >= 0]
        if not len(more):
            return more
        cost, pieces = self._cost(empty)[more], (empty.count - here.count)[more]
        missing = np.maximum(here.ask.count - here.together, 1)
        order = np.lexsort((more, cost / pieces, key))
        more, key, cost, pieces = more[order], key[order], cost[order], pieces[order]
        first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
        group = np.cumsum(np.concatenate(([True], key[1:] != key[:-1]))) - 1
        gained = np.cumsum(pieces) - pieces
        gained -= gained[first][group]
        spent = np.cumsum(cost)
        spent -= (spent - cost)[first][group]
        # Where it is enough with this place, and what has been given up by then.
        least = np.full(len(first), np.inf)
        done = gained + pieces >= missing[key]
        np.minimum.at(least, group[done], spent[done])
        rank = np.lexsort((np.arange(len(more)), least[group]))
        rank = rank[np.isfinite(least[group])[rank]]
        if here.ask.count == 1:
            rank = rank[np.argsort(cost[rank], kind="stable")]
        chosen = more[rank[: max(_PLACES, 2 * here.ask.count)]]
        if self.wanted.on_nodes:
            chosen = np.flatnonzero(np.isin(self.fleet.node, np.unique(self.fleet.node[chosen])))
        return np.sort(chosen)

    def _cost(self, empty: Field) -> Floats:
        """[places] about what has to go for one piece more."""
        number, charge = len(self.fleet.id), self.rows["charge"].astype(np.float64)
        cost: Floats = np.bincount(self.at, charge, number).astype(np.float64)
        for sort in empty.sorts:
            if isinstance(sort.fit, Profile):
                least = np.full(number, np.inf)
                for start in sort.fit.starts:
                    mask = ((1 << sort.fit.size) - 1) << start
                    touched = (self.rows["mask"] & mask) != 0
                    price = np.bincount(self.at[touched], charge[touched], number)
                    open_ = (empty.window.free & mask) == mask
                    least = np.where(open_ & (price > 0), np.minimum(least, price), least)
                cost[sort.places] = np.minimum(cost, least)[sort.places]
            elif sort.fit is not None:
                least = np.full(number, np.inf)
                np.minimum.at(least, self.at, charge)
                cost[sort.places] = np.minimum(cost, least)[sort.places]
        return cost

    def _there(self, places: Ints) -> _There:
        there: dict[int, list[tuple[int, UUID]]] = defaultdict(list)
        mine = np.isin(self.at, places)
        for place, row in zip(self.at[mine].tolist(), self.rows[mine], strict=True):
            whose = whole_id(row["reservation"])
            if self.only is None or whose in self.only:
                there[place].append((int(row["mask"]), whose))
                self.charge[whose] += int(row["charge"])
        return there

    def _units(self, here: Field, empty: Field, there: _There) -> Iterator[_Unit]:
        """The ways in which each place gives more than it does."""
        for place, on_it in there.items():
            pieces = int(empty.count[place] - here.count[place])
            if pieces > 0:
                yield from self._at(place, int(here.reach.key[place]), pieces, empty, on_it)
        if self.wanted.on_nodes:
            yield from _of_nodes(here, empty, there)

    def _at(
        self, place: int, key: int, pieces: int, empty: Field, on_it: Sequence[tuple[int, UUID]]
    ) -> Iterator[_Unit]:
        everyone = frozenset(pk for _, pk in on_it)
        fit = empty.sort_at(place).fit
        if isinstance(fit, Profile):
            free = int(empty.window.free[place])
            for start in fit.starts:
                mask = ((1 << fit.size) - 1) << start
                if mask & free == mask:
                    yield _Unit(key, place, 1, frozenset(pk for its, pk in on_it if its & mask))
        elif fit is not None:
            order = sorted(everyone, key=lambda pk: (self.charge[pk], pk))
            yield from (_Unit(key, place, 1, frozenset(order[:n])) for n in range(1, len(order)))
        yield _Unit(key, place, pieces, everyone)


def _of_nodes(here: Field, empty: Field, there: _There) -> Iterator[_Unit]:
    """All of a node at once."""
    node = here.fleet.node
    for number in sorted({int(node[place]) for place in there}):
        mine = np.flatnonzero(node == number)
        everyone = frozenset(pk for place in mine.tolist() for _, pk in there.get(place, ()))
        pieces = int((empty.count[mine] - here.count[mine]).sum())
        if pieces > 0:
            yield _Unit(int(here.reach.key[mine[0]]), int(mine[0]), pieces, everyone)


def _together(here: Field, units: Sequence[_Unit], charge: Mapping[UUID, int]) -> Iterator[frozenset[UUID]]:
    """One unit where that is enough; else of each group the cheapest, until there are as many as asked."""
    free = here.together
    groups: dict[int, list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.key >= 0 and unit.who:
            groups[unit.key].append(unit)
    for key, mine in groups.items():
        missing = here.ask.count - (int(free[key]) if key < len(free) else 0)
        yield from (unit.who for unit in mine if unit.pieces >= missing)
        if missing > 1:
            yield from _gathered(mine, missing, charge)


def _gathered(units: Sequence[_Unit], missing: int, charge: Mapping[UUID, int]) -> Iterator[frozenset[UUID]]:
    """By what each piece costs, each time one unit more; some more where those were too few after all."""
    order = sorted(
        units, key=lambda one: (sum(charge[pk] for pk in one.who) / one.pieces, one.place, sorted(one.who))
    )
    chosen: frozenset[UUID] = frozenset()
    gained = 0
    for unit in order:
        if unit.who <= chosen:
            continue
        chosen |= unit.who
        gained += unit.pieces
        if gained >= missing:
            yield chosen
        if gained >= 2 * missing:
            return
