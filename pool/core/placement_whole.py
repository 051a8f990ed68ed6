"""The search for several whole GPUs: on one node where they fit, else on as few as can be; blocks and links.

Whole plans, best first, for one ask; as in placement_search it never refuses what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pool.core.fleet_cards import Card
from pool.core.placement_search import Plan, Seat, Worn, distinct
from pool.core.topology import linked

#: By what units are ranked: see `_Filling._rank`.
_Rank = tuple[bool, int, int, int, tuple[str, int, int]]


@dataclass(frozen=True, eq=False)
class Unit:
    """The free GPUs of one model on one node. `cell`: the block; `loss`: what is lost by taking so many."""

    node_id: int
    cell: int
    seats: tuple[Seat, ...]
    cards: tuple[Card, ...]
    loss: Callable[[int], int]

    @property
    def order(self) -> tuple[str, int, int]:
        return self.seats[0].order

    def taken(self, wanted: int, worn: Worn) -> list[Seat]:
        """Which of them: where the owner is, where no earlier plan was, where gaps are small; well linked."""

        keys = [
            (not seat.stays, worn.get((seat.gpu.id, 0), 0), next(iter(seat.first.values())))
            for seat in self.seats
        ]
        last = sorted(keys)[wanted - 1]
        sure = [n for n, key in enumerate(keys) if key < last]
        equal = [n for n, key in enumerate(keys) if key == last]
        choice = linked([self.cards[n] for n in equal], wanted - len(sure))
        return [self.seats[n] for n in sorted((*sure, *(equal[i] for i in choice)))]


@dataclass(slots=True)
class _Filling:
    """A plan that is being made: what is taken, and what is left of each unit and node."""

    worn: Worn
    most: dict[int, int]
    places: list[tuple[Seat, int]] = field(default_factory=list)
    cost: int = 0
    _known: dict[tuple[int, int, bool], _Rank] = field(default_factory=dict)

    def room(self, unit: Unit) -> int:
        return min(len(unit.seats), self.most.get(unit.node_id, len(unit.seats)))

    def fill(self, units: Sequence[Unit], wanted: int) -> list[Unit]:
        """Take so many of these units, which have them; the units that are left untouched."""
        waiting = [unit for unit in units if self.room(unit) > 0]
        while wanted:
            best = min(waiting, key=lambda unit: self._rank(unit, wanted))
            waiting.remove(best)
            wanted -= self._take(best, min(wanted, self.room(best)))
            waiting = [unit for unit in waiting if self.room(unit) > 0]
        return waiting

    def _rank(self, unit: Unit, wanted: int) -> _Rank:
        """A unit that serves all that is wanted before others, and the largest of those that do not."""
        pieces = min(wanted, self.room(unit))
        key = (id(unit), pieces, pieces == wanted)
        if key not in self._known:
            self._known[key] = self._rank_of(unit, pieces, wanted)
        return self._known[key]

    def _rank_of(self, unit: Unit, pieces: int, wanted: int) -> _Rank:
        away = pieces - sum(bool(seat.stays) for seat in unit.seats)
        worn = sum(self.worn.get((seat.gpu.id, 0), 0) for seat in unit.taken(pieces, self.worn))
        return (
            pieces < wanted,
            worn if pieces == wanted else max(0, away) + worn - pieces,
            max(0, away),
            unit.loss(pieces),
            unit.order,
        )

    def _take(self, unit: Unit, pieces: int) -> int:
        if unit.node_id in self.most:
            self.most[unit.node_id] -= pieces
        seats = unit.taken(pieces, self.worn)
        self.places += [(seat, 0) for seat in seats]
        self.cost += unit.loss(pieces) + sum(seat.extra for seat in seats)
        return pieces


def whole_plans(
    units: Sequence[Unit], count: int, segment: int | None, most: Mapping[int, int]
) -> Iterator[Plan]:
    """Of `count` GPUs in these units. `segment`: cut into segments that each lie in one cell; None: anywhere.

    `most`: pieces by node id, where limited.
    """

    def make(worn: Worn) -> Plan:
        filling = _Filling(worn, dict(most))
        if segment is None:
            filling.fill(units, count)
        else:
            _segments(filling, units, count // segment, segment)
        return Plan(filling.cost, tuple(filling.places))

    return distinct(make)


def _segments(filling: _Filling, units: Sequence[Unit], number: int, size: int) -> None:
    """Always the cell that all remaining segments fit most closely, else the one that takes most of them."""
    cells: dict[int, list[Unit]] = {}
    for unit in units:
        cells.setdefault(unit.cell, []).append(unit)
    while number:
        offers = {cell: _pieces(filling, of_it) for cell, of_it in cells.items()}
        best = min(offers, key=lambda c: (*_cell_rank(filling, cells[c], offers[c], number, size), c))
        taken = min(number, offers[best] // size)
        filling.fill(cells.pop(best), taken * size)
        number -= taken


def _pieces(filling: _Filling, units: Sequence[Unit]) -> int:
    by_node: dict[int, int] = {}
    for unit in units:
        by_node[unit.node_id] = by_node.get(unit.node_id, 0) + len(unit.seats)
    return sum(min(pieces, filling.most.get(node, pieces)) for node, pieces in by_node.items())


def _cell_rank(
    filling: _Filling, units: Sequence[Unit], pieces: int, wanted: int, size: int
) -> tuple[bool, int, int, int]:
    segments = pieces // size
    enough = segments >= wanted
    worn = sum(filling.worn.get((seat.gpu.id, 0), 0) for unit in units for seat in unit.seats)
    return (not enough, worn if enough else 0, 0 if enough else -segments, pieces)
