"""Openings: free stretches of time against what is free at single instants, and their sums over pieces."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.fleet import NEVER, micros, of_views
from pool.core.openings import Openings, Spans, openings
from pool.core.placement import Use, candidates
from pool.core.shapes import Ask, GpuAsk, MigAsk
from tests.core import worlds
from tests.core.worlds import DAWN, at, gpu, span, wall

HOUR = timedelta(hours=1) // timedelta(microseconds=1)
H100 = "H100-80GB"


def of(gpus: list[worlds.GpuView], ask: Ask, length: int = 1) -> Openings:
    return openings(of_views(gpus), ask, DAWN, timedelta(hours=length), now=DAWN)


def starts(found: Openings, length: int, latest: int) -> list[tuple[float, float]]:
    spans = found.starts(length * HOUR, micros(at(latest)))
    zero = micros(DAWN)
    return [
        ((a - zero) / HOUR, (b - zero) / HOUR)
        for a, b in zip(spans.first.tolist(), spans.last.tolist(), strict=True)
    ]


@settings(max_examples=80)
@given(case=worlds.cases(H100), length=st.integers(1, 5), hour=st.integers(0, 16))
def test_no_start_is_hidden_at_which_something_fits(case: worlds.Case, length: int, hour: int) -> None:
    gpus, ask, _ = case
    if not candidates(gpus, ask, span(hour, hour + length)):
        return
    assert any(a <= hour <= b for a, b in starts(of(gpus, ask), length, 16))


@settings(max_examples=80)
@given(case=worlds.cases(H100), length=st.integers(1, 5), hour=st.integers(0, 16))
def test_one_whole_gpu_starts_exactly_where_it_fits(case: worlds.Case, length: int, hour: int) -> None:
    gpus, _, _ = case
    fits = bool(candidates(gpus, GpuAsk(), span(hour, hour + length)))
    assert any(a <= hour <= b for a, b in starts(of(gpus, GpuAsk()), length, 16)) == fits


def test_the_opening_around_an_instant_is_told_with_both_its_ends() -> None:
    pool = [gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 2)), wall(0, 8, span(5, 9))])]
    found = of(pool, GpuAsk())
    assert found.around(0, 255, micros(at(3))) == (micros(at(2)), micros(at(5)))
    assert found.around(0, 255, micros(at(9))) == (micros(at(9)), NEVER)
    assert found.around(0, 255, micros(at(6))) == (micros(at(6)), micros(at(6)))


def test_what_a_piece_counts_is_told_by_model() -> None:
    pool = [gpu(0), gpu(1, "A100-40GB")]
    assert of(pool, MigAsk(None, 4000)).charges == {H100: 125, "A100-40GB": 125}
    assert of(pool, GpuAsk()).charges == {}


def test_one_of_several_profiles_is_enough() -> None:
    pool = [gpu(0, busy=[wall(0, 4, span(0, 3)), wall(4, 4, span(0, 1))])]
    assert starts(of(pool, MigAsk("7g.80gb")), 1, 8) == [(3, 8)]
    assert starts(of(pool, MigAsk(profile_any=("7g.80gb", "3g.40gb"))), 1, 8) == [(1, 8)]


def test_pieces_of_one_key_are_added_up() -> None:
    pool = [gpu(n, use=Use.WHOLE, node=f"node-{n % 2}", busy=[wall(0, 8, span(0, n))]) for n in range(1, 5)]
    assert starts(of(pool, GpuAsk(count=2)), 1, 9) == [(2, 9)]
    assert starts(of(pool, GpuAsk(count=2, same_node=True)), 1, 9) == [(3, 9)]
    assert starts(of(pool, GpuAsk(count=5)), 1, 9) == []


def test_closed_times_are_cut_out_of_the_starts() -> None:
    spans = Spans(np.array([0, 50]), np.array([20, 60])).without([(10, 12), (55, NEVER)], 3)
    assert list(zip(spans.first.tolist(), spans.last.tolist(), strict=True)) == [(0, 7), (12, 20), (50, 52)]
    assert spans.holds(np.array([7, 8, 12, 21, 50, 53])).tolist() == [7, 12, 50]
    assert spans.from_(np.array([0, 8, 21, 53])).tolist() == [0, 12, 50, NEVER]
