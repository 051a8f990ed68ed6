"""Several whole GPUs: on how few nodes, and which of them."""

from __future__ import annotations

from itertools import islice

from pool.core.fleet import Card, NodeCard
from pool.core.placement import Use
from pool.core.placement_search import Plan, Seat
from pool.core.placement_whole import Unit, whole_plans
from tests.core.worlds import gpu


def unit(node: int, gpus: int, cell: int = 0, stays: tuple[int, ...] = ()) -> Unit:
    views = [gpu(100 * node + n, node=f"node-{node}", use=Use.WHOLE) for n in range(gpus)]
    seats = [
        Seat(view, None, None, 0, (), 1, {0xFF: 0}, stays=frozenset({0xFF} if n in stays else ()))
        for n, view in enumerate(views)
    ]
    place = NodeCard(views[0].node_id, views[0].node)
    cards = [Card(v.id, v.uuid, place, v.index, v.model, v.memory_mib, Use.WHOLE, 8, ()) for v in views]
    return Unit(views[0].node_id, cell, tuple(seats), tuple(cards), lambda pieces: 10 * pieces + gpus)


def ids(plan: Plan) -> list[int]:
    return sorted(seat.gpu.id for seat, _ in plan.places)


def best(
    units: list[Unit], count: int, segment: int | None = None, most: dict[int, int] | None = None
) -> list[int]:
    return ids(next(whole_plans(units, count, segment, most or {})))


def test_the_node_that_loses_least_serves_all_where_one_can() -> None:
    assert best([unit(1, 8), unit(2, 4), unit(3, 5)], 4) == [200, 201, 202, 203]


def test_else_the_largest_first_and_the_rest_where_it_costs_least() -> None:
    assert best([unit(1, 3), unit(2, 4), unit(3, 1)], 5) == [200, 201, 202, 203, 300]


def test_of_a_node_no_more_than_it_has_to_give() -> None:
    units = [unit(1, 4), unit(2, 4)]
    assert best(units, 3, most={units[0].node_id: 1, units[1].node_id: 2}) == [100, 200, 201]


def test_segments_go_where_they_fit_most_closely() -> None:
    units = [unit(1, 4, cell=1), unit(2, 4, cell=1), unit(3, 4, cell=2), unit(4, 2, cell=3)]
    assert best(units, 4, segment=4) == [300, 301, 302, 303]
    assert len(best(units, 12, segment=4)) == 12
    assert best(units, 4, segment=2)[0] // 100 == 3


def test_where_the_owner_is_already_comes_first() -> None:
    assert best([unit(1, 2), unit(2, 8, stays=(6, 7))], 2) == [206, 207]


def test_plans_differ_until_one_comes_again() -> None:
    plans = [ids(plan) for plan in islice(whole_plans([unit(1, 2), unit(2, 2)], 2, None, {}), 9)]
    assert plans[:2] == [[100, 101], [200, 201]]
    assert len({tuple(plan) for plan in plans}) == len(plans)
