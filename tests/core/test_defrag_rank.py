"""Which bookings are looked at first when a pool is defragmented: those that leave most free beside them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np

from pool.core.defrag_rank import worth_a_look
from pool.core.fleet import Fleet
from pool.core.period import Period
from pool.core.placement import GpuView, Use
from tests.core.test_clearing import charged, small
from tests.core.test_moves import DAWN, fleet_of, whose
from tests.core.worlds import gpu, span, wall

AHEAD = Period(DAWN, DAWN + timedelta(days=1))


def pool(*views: GpuView) -> Fleet:
    fleet = charged(fleet_of(views))
    rows = fleet.rows()
    rows["moved"] = (rows["reservation"] != 0).any(axis=1)
    rows["klass"], rows["since"], rows["until"] = 2, rows["start"], rows["end"]
    return fleet.updated(list(fleet.cards), rows)


def test_what_stands_alone_and_for_long_comes_first() -> None:
    full = [small(n, n) for n in range(1, 7)]
    fleet = pool(
        gpu(0, busy=[*full, small(7, 0)]),
        gpu(1, busy=[small(8, 0, 2, 4)]),
        gpu(2, busy=[small(9, 0, 2, 9)]),
    )
    assert worth_a_look(fleet, AHEAD)[:2] == [whose(9), whose(8)]
    assert worth_a_look(fleet, AHEAD, most=1) == [whose(9)]


def test_of_whole_gpus_the_node_counts() -> None:
    busy = [replace(wall(0, 8, span(2, 4)), tenancy=str(whose(n))) for n in range(3)]
    views = [gpu(n, use=Use.WHOLE, node=f"node-{n // 2}") for n in range(4)]
    views[0], views[1] = replace(views[0], busy=(busy[0],)), replace(views[1], busy=(busy[1],))
    views[2] = replace(views[2], busy=(busy[2],))
    assert worth_a_look(pool(*views), AHEAD) == [whose(2)]


def test_online_work_and_what_has_begun_is_not_looked_at() -> None:
    fleet = pool(gpu(0, busy=[small(0, 0)]), gpu(1, busy=[small(1, 0)]))
    rows = fleet.rows()
    rows["klass"][0], rows["since"][1] = 1, rows["since"][1] - 10 * 3600 * 10**6
    assert worth_a_look(fleet.updated(list(fleet.cards), rows), AHEAD) == []
    assert worth_a_look(pool(gpu(0)), AHEAD) == []


def test_the_same_fleet_gives_the_same_bookings() -> None:
    fleet = pool(*(gpu(n, busy=[small(n, 0)]) for n in range(9)))
    turned = fleet.updated(list(fleet.cards), fleet.rows()[np.arange(8, -1, -1)])
    assert worth_a_look(fleet, AHEAD) == worth_a_look(turned, AHEAD)
