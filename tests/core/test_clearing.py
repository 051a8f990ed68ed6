"""Which bookings are in the way: of each place what stands there, the cheapest first, of a group together."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from pool.core.clearing import MOST, Wanted, sets
from pool.core.fleet import Fleet
from pool.core.moves import Movable, shift
from pool.core.placement import GpuView, Use
from pool.core.shapes import Ask, GpuAsk, MigAsk
from tests.core.test_moves import DAWN, H100, check, fleet_of, whose
from tests.core.worlds import gpu, profile, span, taken, wall


def small(number: int, start: int, begin: float = 2, end: float = 4, name: str = "1g.10gb") -> object:
    return replace(taken(profile(H100, name), start, span(begin, end)), tenancy=str(whose(number)))


def all_of(number: int) -> object:
    return replace(wall(0, 8, span(2, 4)), tenancy=str(whose(number)))


def found(views: list[GpuView], ask: Ask, booked: int) -> list[set[int]]:
    """The numbers of the bookings in each set, charges as the fleet has them."""
    ids = {whose(n): n for n in range(booked)}
    told = sets(charged(fleet_of(views)), Wanted(ask, span(1, 5)), now=DAWN, only=ids)
    return [{ids[one] for one in some} for some in told]


def charged(fleet: Fleet) -> Fleet:
    rows = fleet.rows()
    for row in rows:
        row["charge"] = int(row["mask"]).bit_count() * 125
    return fleet.updated(list(fleet.cards), rows)


def test_of_each_gpu_what_stands_there_and_the_cheapest_first() -> None:
    views = [
        gpu(0, busy=[small(0, 0), small(1, 1)]),
        gpu(1, busy=[small(2, 3)]),
        gpu(2, busy=[small(3, 0, name="4g.40gb")]),
    ]
    assert found(views, MigAsk("7g.80gb"), 4) == [{2}, {0, 1}, {3}]


def test_only_what_lies_under_a_slice_is_in_its_way() -> None:
    views = [gpu(0, busy=[small(0, 0), small(1, 5, name="2g.20gb"), wall(4, 1, span(0, 9))])]
    assert found(views, MigAsk("4g.40gb"), 2)[0] == {0}


def test_what_cannot_go_keeps_a_place_shut() -> None:
    views = [gpu(0, busy=[small(0, 0), wall(7, 1, span(0, 9))]), gpu(1, busy=[small(1, 0)])]
    assert found(views, MigAsk("7g.80gb"), 2) == [{1}]


def test_several_gpus_are_cleared_on_the_node_where_it_costs_least() -> None:
    views = [gpu(n, use=Use.WHOLE, node=f"node-{n // 4}") for n in range(8)]
    for n in (0, 1, 4):
        views[n] = replace(views[n], busy=(all_of(n),))
    told = found(views, GpuAsk(count=4, same_node=True), 5)
    assert told[0] == {4}
    assert {0, 1} in told


def test_there_are_never_more_than_are_tried() -> None:
    views = [gpu(n, busy=[small(n, 0)]) for n in range(MOST + 9)]
    assert len(found(views, MigAsk("7g.80gb"), MOST + 9)) == MOST


def test_among_many_bookings_the_cheapest_that_can_go_elsewhere_moves() -> None:
    """More than all sets of which are tried: 12 in the way, of which one stands alone on its GPU."""
    views, movable = [], []

    def book(number: int, where: int, size: str) -> None:
        charge = profile(H100, size).size * 125
        movable.append(Movable(whose(number), MigAsk(size), span(2, 4), charge, frozenset({where})))

    for n in range(4):
        views.append(gpu(n, busy=[small(3 * n + k, k) for k in range(3)]))
        for k in range(3):
            book(3 * n + k, n, "1g.10gb")
    views.append(gpu(4, busy=[small(12, 0)]))
    book(12, 4, "1g.10gb")
    wanted = Wanted(MigAsk("7g.80gb"), span(1, 5))
    told = shift(charged(fleet_of(views)), wanted, movable, now=DAWN)
    assert told is not None
    assert [move.reservation for move in told.moves] == [whose(12)]
    check(views, movable, wanted, told)


def test_nothing_is_found_where_nothing_may_go() -> None:
    views = [gpu(0, busy=[wall(0, 8, span(0, 9))])]
    assert sets(fleet_of(views), Wanted(MigAsk("1g.10gb"), span(1, 5)), now=DAWN) == []
    assert sets(fleet_of(views), Wanted(MigAsk("1g.10gb"), span(1, 5)), now=DAWN, only=[UUID(int=9)]) == []
