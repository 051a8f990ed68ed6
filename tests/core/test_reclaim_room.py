"""Room without some who are there, compared with placing in earnest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from pool.core.asks import GpuAsk, MigAsk
from pool.core.placement import candidates
from pool.core.reclaim import without
from pool.core.reclaim_room import Room
from tests.core.fleets import pools
from tests.core.test_reclaim import H100, PERIOD, booked, number
from tests.core.worlds import DAWN, GpuView, an_ask, codes, gpu, profile, span, taken


@settings(max_examples=150, deadline=None)
@given(pools, codes, codes)
def test_it_says_that_there_is_room_exactly_where_placement_finds_it(
    views: list[GpuView], wish: int, who: int
) -> None:
    known = booked(views)
    rows = len(known.rows())
    ask = an_ask(H100, wish)
    room = Room(known, ask, PERIOD, DAWN, PERIOD.start, [(number(n),) for n in range(rows)])
    for code in (0, who, (1 << rows) - 1):
        gone = np.flatnonzero([code >> n & 1 for n in range(rows)])
        left = without(known, [number(n) for n in gone.tolist()], PERIOD.start)
        assert room.fits(gone) == bool(candidates(left, ask, PERIOD, now=DAWN))


def test_who_is_not_where_the_ask_could_be_is_not_near() -> None:
    small = profile(H100, "1g.10gb")
    busy = (taken(small, 0, span(0, 8)),)
    known = booked([gpu(0, busy=busy), gpu(1, model="A100-40GB", busy=[])])
    stays = [(number(0),), (number(9),)]
    room = Room(known, MigAsk("7g.80gb"), PERIOD, DAWN, PERIOD.start, stays)
    assert room.near.tolist() == [True, False]
    assert not Room(known, GpuAsk(), PERIOD, DAWN, PERIOD.start, stays).near.any()


def test_cpu_and_memory_of_nodes_come_free_with_who_goes() -> None:
    small = profile(H100, "1g.10gb")
    busy = replace(taken(small, 0, span(0, 8)), cpu_milli=3000)
    known = booked([replace(gpu(0, busy=[busy]), cpu_milli=4000), replace(gpu(1), cpu_milli=4000)])
    ask = MigAsk("1g.10gb", node_cpu_milli=2000)
    room = Room(known, ask, PERIOD, DAWN, PERIOD.start, [(number(0),)])
    assert not room.fits(np.array([], dtype=np.int64))
    assert room.fits(np.array([0]))
