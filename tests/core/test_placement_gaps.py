"""What gaps, late ends and modes cost."""

from __future__ import annotations

import numpy as np
import pytest

from pool.core.fleet import of_views
from pool.core.placement import Busy, Portion, Use
from pool.core.placement_field import field
from pool.core.placement_gaps import around, cost_of_gaps, fullness, gaps, outlasting, slice_gaps, waste
from pool.core.placement_policy import GAP
from pool.core.shapes import GpuAsk, MigAsk, ShareAsk, Sharing
from tests.core.test_placement_shares import card
from tests.core.worlds import at, gpu, profile, span, taken, wall

HOUR = 3600 * 10**6
USUAL = 8 * HOUR


def test_no_gap_and_an_endless_one_waste_nothing_and_a_usual_one_most() -> None:
    assert waste(np.array([0.0, np.inf]), USUAL).tolist() == [0.0, pytest.approx(0.0, abs=1e-9)]
    lengths = np.arange(0.0, 40.0) * HOUR
    assert int(waste(lengths, USUAL).argmax()) == 8
    assert waste(np.array([8.0 * HOUR]), USUAL)[0] == pytest.approx(GAP)


def test_what_fills_a_gap_wins_and_what_cuts_one_loses() -> None:
    def cost(before: float, after: float, length: float) -> float:
        return float(
            cost_of_gaps(np.array([before * HOUR]), np.array([after * HOUR]), length * HOUR, USUAL)[0]
        )

    assert cost(0, 0, 8) < 0
    assert cost(8, 8, 60) > 0
    assert cost(0, np.inf, 8) == pytest.approx(0, abs=1e-6)


def test_gaps_are_counted_from_now_to_the_next_booking() -> None:
    pool = [
        gpu(0, use=Use.WHOLE),
        gpu(1, use=Use.WHOLE, busy=[wall(0, 8, span(0, 2)), wall(0, 8, span(7, 8))]),
    ]
    here = field(of_views(pool), GpuAsk(), span(3, 5), at(1))
    before, after = gaps(here, np.array([0, 1]))
    assert (before / HOUR).tolist() == [2, 1]
    assert (after / HOUR).tolist() == [np.inf, 2]
    assert around(here, np.array([0, 1]), USUAL).shape == (2,)


def test_a_slice_looks_only_at_what_is_on_its_own_slices() -> None:
    p = profile("H100-80GB", "1g.10gb")
    here = field(
        of_views([gpu(busy=[taken(p, 0, span(0, 2)), taken(p, 1, span(0, 1)), taken(p, 0, span(5, 6))])]),
        MigAsk("1g.10gb"),
        span(2, 4),
        at(0),
    )
    cost = slice_gaps(here, np.zeros(3, dtype=np.int64), np.array([1, 2, 4]), USUAL)
    alone = cost_of_gaps(np.array([0.0, HOUR, 2 * HOUR]), np.array([HOUR, np.inf, np.inf]), 2.0 * HOUR, USUAL)
    assert cost.tolist() == pytest.approx(alone.tolist())


def test_a_share_alone_on_its_gpu_pays_for_all_of_its_time() -> None:
    held = Busy(0, 8, span(0, 3), None, "booked", None, Portion(1024, 5, 5))
    pool = [card(0), card(1, busy=[held]), card(2, Sharing.HAMI)]
    here = field(of_views(pool), ShareAsk(memory_mib=1024, guaranteed=5, limit=5), span(1, 5), at(0))
    assert outlasting(here, np.array([0, 1, 2])).tolist() == pytest.approx([GAP, GAP / 2, GAP])


def test_how_full_a_pool_is() -> None:
    p = profile("H100-80GB", "4g.40gb")
    pool = [
        gpu(0, busy=[taken(p, 0, span(0, 9))]),
        gpu(1, use=Use.WHOLE, busy=[wall(0, 8, span(0, 9))]),
        gpu(2, why="lost"),
    ]
    assert fullness(field(of_views(pool), GpuAsk(), span(0, 1), at(0))) == pytest.approx(0.75)
    assert fullness(field(of_views([gpu(why="lost")]), GpuAsk(), span(0, 1), at(0))) == 1.0
