"""What stays on GPUs, over time: whole GPUs that come and go, slices, shares, and what may be taken back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pool.core.fleet import Fleet, micros, of_views
from pool.core.guarantee_states import Ground, Held, counted, held_by, stays
from pool.core.period import Period
from pool.core.placement import Pick, Portion, Use
from pool.core.shapes import Sharing
from tests.core.worlds import DAWN, GpuView, at, gpu, profile, span, taken, wall

H100 = "H100-80GB"
NOBODY = np.zeros(0, dtype=np.int64)
MORNING = span(0, 4)


def all_that_stays(fleet: Fleet, period: Period = MORNING) -> Held:
    return stays(fleet.window(period, DAWN), NOBODY, NOBODY, NOBODY).exact


def over_time(views: list[GpuView], period: Period = MORNING) -> list[tuple[float, list[int], int]]:
    """(hour, how many nodes have 0, 1, .. free GPUs, what is free in slots) at each change."""
    fleet = of_views(views)
    ground = Ground(fleet)
    start, end = micros(period.start), micros(period.end)
    changes = ground.changes(all_that_stays(fleet, period), start, end, np.arange(len(views)))
    times = np.unique(np.concatenate((changes.time, changes.bin_time)))
    free = changes.free(times)
    return [
        ((int(time) - micros(DAWN)) / 3.6e9, free.nodes[n, 0].tolist(), int(free.slots[n, 0]))
        for n, time in enumerate(times)
    ]


def test_gpus_come_free_and_go_and_each_node_is_counted_by_how_many_it_has() -> None:
    views = [
        gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(1, 2))]),
        gpu(1, use=Use.WHOLE, busy=[wall(0, 8, span(1, 3))]),
        gpu(2, use=Use.WHOLE, node="node-b"),
    ]
    assert over_time(views) == [
        (0, [0, 1, 1], 0),
        (1, [1, 1, 0], 0),
        (2, [0, 2, 0], 0),
        (3, [0, 1, 1], 0),
    ]


def test_slices_leave_slots_that_profiles_can_cover() -> None:
    half, one = profile(H100, "3g.40gb"), profile(H100, "1g.10gb")
    view = gpu(0, busy=[taken(half, 0, span(0, 2)), taken(one, 6, span(1, 4))])
    # The last slice can only be had together with the seventh.
    assert over_time([view]) == [(0, [1, 0], 500), (1, [1, 0], 250), (2, [1, 0], 750)]


def test_what_may_be_taken_back_for_a_time_is_as_good_as_free_then() -> None:
    fleet = of_views([gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 4))])])
    window = fleet.window(MORNING, DAWN)
    row, since, until = np.array([0]), np.array([micros(at(1))]), np.array([micros(at(3))])
    found = stays(window, row, since, until)
    changes = Ground(fleet).changes(found.exact, window.start, window.end, np.array([0]))
    assert changes.free(changes.time).nodes[:, 0].tolist() == [[1, 0], [0, 1], [1, 0]]
    # Looked at all at once it stays, unless it may be taken for all of its time.
    assert Ground(fleet).worst(found.worst).nodes[0, 0].tolist() == [1, 0]
    always = stays(window, row, np.array([0]), np.array([micros(at(9))]))
    assert Ground(fleet).worst(always.worst).nodes[0, 0].tolist() == [0, 1]


def test_a_row_that_is_not_in_the_window_is_not_looked_for() -> None:
    fleet = of_views([gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 1)), wall(0, 8, span(2, 3))])])
    window = fleet.window(span(2, 3), DAWN)
    both = np.array([0, 1])
    found = stays(window, both, np.array([0, 0]), np.array([micros(at(9))] * 2))
    assert len(found.worst.at) == 0


def test_shares_leave_what_the_tighter_ledger_leaves() -> None:
    view = replace(gpu(0, use=Use.SHARE), sharing=Sharing.HAMI, most_shares=2, memory_mib=10_240 + 1024)
    fleet = of_views([view])
    share = Pick(0, H100, None, 0, 8, 0, Portion(2048, 50, 50))
    held = held_by(fleet, [share], micros(at(0)), micros(at(4)))
    assert Ground(fleet).worst(held).slots.tolist() == [[500]]
    small = replace(share, portion=Portion(2048, 5, 50))
    two = held_by(fleet, [small, small], micros(at(0)), micros(at(4)))
    assert Ground(fleet).worst(two).slots.tolist() == [[0]]
    one = held_by(fleet, [small], micros(at(0)), micros(at(4)))
    assert Ground(fleet).worst(one).slots.tolist() == [[800]]


def test_overlapping_things_are_counted_and_not_added() -> None:
    grid = np.array([8, 8, 64])
    masks = np.array([0b11, 0b10, 1 << 40])
    spread = counted(masks, grid)
    assert spread.tolist() == [1 | 1 << 5, 1 << 5, 1]
    view = gpu(0, busy=[wall(0, 4, span(0, 4)), wall(2, 2, span(0, 2))])
    assert over_time([view]) == [(0, [1, 0], 500), (2, [1, 0], 500)]


def test_gpus_that_cannot_be_used_give_nothing() -> None:
    assert over_time([gpu(0, why="unknown"), gpu(1, use=Use.WHOLE, why="frozen")]) == [(0, [1, 0, 0], 0)]


def test_in_a_stretch_of_time_there_is_no_more_than_at_any_of_its_instants() -> None:
    views = [
        gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(1, 2)), wall(0, 8, span(3, 4))]),
        gpu(1, use=Use.WHOLE, node="node-b", busy=[wall(0, 8, span(2, 3))]),
    ]
    fleet = of_views(views)
    ground = Ground(fleet)
    start, end = micros(at(0)), micros(at(5))
    changes = ground.changes(all_that_stays(fleet, span(0, 5)), start, end, np.arange(2))
    every = np.array([micros(at(hour)) for hour in range(5)])
    assert changes.least(every, (2,)).spare[:, 0].tolist() == [2, 1, 1, 1, 2]
    assert changes.least(every, (2,)).groups[:, 0, 0].tolist() == [0, 0, 0, 0, 0]
    # From the second hour on one goes as the other comes back: that is taken as both being busy.
    two = np.array([micros(at(0)), micros(at(1.5))])
    assert changes.least(two, (2,)).spare[:, 0].tolist() == [1, -1]
