"""What a window tells of all GPUs at once is what looking at every instant of each would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pool.core import shares
from pool.core.fleet import MEDIA, NEVER, ROW, fleet, of_views
from pool.core.fleet_cards import Card, NodeCard
from pool.core.fleet_window import peaks
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Use
from pool.core.quota import peak
from tests.core.fleets import periods, pools
from tests.core.worlds import DAWN, at, gpu, span


def there(view: GpuView, period: Period) -> list[Busy]:
    return [b for b in view.busy if b.period.overlaps(period)]


def bits(busy: list[Busy]) -> int:
    taken = 0
    for b in busy:
        taken |= ((1 << b.size) - 1) << b.start
    return taken


@given(pools, periods)
def test_free_is_what_nothing_touches(gpus: list[GpuView], period: Period) -> None:
    made = of_views(gpus)
    window = made.window(period, DAWN)
    for view in gpus:
        place, busy = made.places[view.id], there(view, period)
        assert window.free[place] == ((1 << view.grid) - 1) & ~bits(busy)
        assert window.number[place] == len(busy)
        assert window.empty[place] == (not busy)
        assert window.shares_only[place] == all(b.portion for b in busy)
        assert window.media[place] == sum({1 << MEDIA.index(b.media) for b in busy})


@given(pools, periods)
def test_the_ledgers_hold_what_shares_are_at_their_fullest(gpus: list[GpuView], period: Period) -> None:
    made = of_views(gpus)
    window = made.window(period, DAWN)
    for view in gpus:
        place = made.places[view.id]
        beside = [(b.period, b.portion) for b in view.busy if b.portion]
        told = tuple(int(column[place]) for column in window.share_peaks)
        assert told == tuple(shares.peaks(beside, period))
        whose = {portion.user for at, portion in beside if at.overlaps(period)}
        number = int(window.account[place])
        assert {made.accounts.get(number)} == whose if len(whose) == 1 else number == (-1 if whose else 0)


@given(pools, periods)
def test_instances_are_counted_at_their_fullest(gpus: list[GpuView], period: Period) -> None:
    made = of_views(gpus)
    window = made.window(period, DAWN)
    for number in {b.profile_id for view in gpus for b in view.busy if b.profile_id is not None} | {99}:
        told = window.instances(number)
        for view in gpus:
            busy = [(b.period, 1) for b in view.busy if b.profile_id == number]
            assert told[made.places[view.id]] == peak(busy, period)


@given(pools, periods)
def test_a_nodes_cpu_and_memory_are_free_as_far_as_nothing_takes_them(
    gpus: list[GpuView], period: Period
) -> None:
    made = of_views([replace(view, cpu_milli=64_000) for view in gpus])
    cpu, ram = made.window(period, DAWN).node_free
    assert set(ram.tolist()) == {NEVER}
    for n, node in enumerate(made.nodes):
        uses = [(b.period, b.cpu_milli) for view in gpus if view.node == node.name for b in view.busy]
        assert cpu[n] == 64_000 - peak(uses, period)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 9), st.integers(0, 5))))
def test_peaks_are_those_of_every_instant(uses: list[tuple[int, int, int, int]]) -> None:
    group, start, length, amount = np.array(uses, dtype=np.int64).reshape(-1, 4).T
    told = peaks(group, start, start + length, amount, 3)
    for g in range(3):
        levels = [sum(a for h, s, n, a in uses if h == g and s <= t < s + n) for t in range(18)]
        assert told[g] == max(levels)


def test_what_ends_makes_room_for_what_begins_at_that_instant() -> None:
    one = Busy(0, 8, span(0, 1), None, "booked", None, shares.Portion(1000, 50, 50))
    made = of_views(
        [replace(gpu(use=Use.SHARE), sharing=shares.Sharing.MPS, busy=(one, replace(one, period=span(1, 2))))]
    )
    assert [c.tolist() for c in made.window(span(0, 2), DAWN).share_peaks] == [[1000], [50], [1]]
    assert made.window(span(0, 2), DAWN).free.tolist() == [0]


def test_a_window_keeps_the_rows_that_are_in_it() -> None:
    wide = Card(1, "GPU-1", NodeCard(1, "a"), 0, "X", None, Use.WHOLE, 64, ())
    row = np.zeros(1, dtype=ROW)
    row["gpu"], row["mask"], row["end"], row["owner"] = 1, -1, NEVER, 7
    window = fleet([wide], row).window(span(0, None), at(0))
    assert (window.free.tolist(), window.taken.tolist()) == ([0], [-1])
    assert window.rows["owner"].tolist() == [7]
    assert len(fleet([wide], row).window(Period(at(0), None), at(0)).rows) == 1
