"""Refusals in numbers, and the first time that fits, against brute force."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.period import Period
from pool.core.placement import Shortfall, Use, candidates, first_time, shortfall
from pool.core.shapes import GpuAsk, MigAsk
from tests.core import worlds
from tests.core.worlds import at, gpu, profile, span, taken, wall

H100 = "H100-80GB"
EACH_MODEL = pytest.mark.parametrize("model", sorted(mig.models()))


# --- Shortfall --------------------------------------------------------------------


@EACH_MODEL
@settings(max_examples=40)
@given(data=st.data())
def test_the_numbers_are_those_of_brute_force(model: str, data: st.DataObject) -> None:
    gpus, ask, period = data.draw(worlds.cases(model))
    found = shortfall(gpus, ask, period)
    assert sum(found.counts.values()) == len(gpus)
    assert found.asked == ask.count
    assert found.free <= found.offered
    if found.free <= 5:
        assert not worlds.brute_fit(gpus, replace(ask, count=found.free + 1), period)
    if 1 <= found.free <= 5:
        assert worlds.brute_fit(gpus, replace(ask, count=found.free), period)
    empty = [replace(g, busy=()) for g in gpus]
    assert shortfall(empty, ask, period).free == found.offered


def test_every_gpu_is_counted_once_by_what_keeps_it_out() -> None:
    me = profile(H100, "1g.10gb+me")
    pool = [
        gpu(0, "A100-80GB"),
        gpu(1, use=Use.WHOLE),
        gpu(2, why="unknown"),
        gpu(3, why="frozen"),
        gpu(4, busy=[taken(profile(H100, "7g.80gb"), 0, span(0, 1))]),
        gpu(5, busy=[taken(me, 0, span(0, 1))]),
        gpu(6, node="node-b"),
        gpu(7),
        replace(gpu(8), profiles=()),
        replace(gpu(9), usable=False),
        gpu(10, busy=[wall(0, 8, span(0, None))]),
        gpu(11, busy=[wall(0, 4, span(0, None)), taken(profile(H100, "3g.40gb"), 4, span(0, 1))]),
        gpu(12, busy=[wall(0, 4, span(0, None)), taken(profile(H100, "7g.80gb"), 0, span(0, 1))]),
    ]
    ask = MigAsk("1g.10gb+me", models=(H100,), node="node-a", count=2)
    assert shortfall(pool, ask, span(0, 2)) == Shortfall(
        asked=2,
        free=1,
        offered=6,
        counts={
            "no_such_model": 1, "wrong_use": 1, "unknown": 1, "frozen": 1, "busy": 2, "blocked": 2,
            "media": 1, "node": 1, "room": 1, "no_such_profile": 1, "unusable": 1,
        },
    )  # fmt: skip


def test_on_one_node_the_numbers_are_those_of_the_best_node() -> None:
    pool = [gpu(n, node="node-a" if n < 2 else "node-b", use=Use.WHOLE) for n in range(5)]
    found = shortfall(pool, GpuAsk(count=4, same_node=True), span(0, 1))
    assert (found.free, found.offered) == (3, 3)
    assert found.counts == {"room": 3, "same_node": 2}
    assert shortfall(pool, GpuAsk(count=6), span(0, 1)).free == 5


def test_an_empty_pool_offers_nothing() -> None:
    assert shortfall([], MigAsk("1g.10gb"), span(0, 1)) == Shortfall(1, 0, 0, {})


def test_too_small_and_unknown_are_different_reasons() -> None:
    pool = [gpu(0, use=Use.WHOLE), replace(gpu(1, use=Use.WHOLE), memory_mib=None)]
    assert shortfall(pool, GpuAsk(memory_mib=200_000), span(0, 1)).counts == {
        "too_small": 1,
        "memory_unknown": 1,
    }


# --- The first time that fits --------------------------------------------------------


@EACH_MODEL
@settings(max_examples=25)
@given(data=st.data(), horizon=st.integers(0, worlds.HOURS + 3))
def test_the_first_time_is_the_first_hour_at_which_it_fits(
    model: str, data: st.DataObject, horizon: int
) -> None:
    """Everything here begins and ends on the hour, so a first time does, too."""
    gpus, ask, period = data.draw(worlds.cases(model))
    length = period.duration
    begins = int((period.start - at(0)) / timedelta(hours=1))
    fits = [
        at(hour)
        for hour in range(begins, horizon + 1)
        if candidates(gpus, ask, Period(at(hour), at(hour) + length if length else None))
    ]
    expected = fits[0] if fits else None
    if not fits and candidates(gpus, ask, period):
        expected = period.start
    assert first_time(gpus, ask, period, at(horizon)) == expected


def test_a_gap_that_is_too_short_is_skipped() -> None:
    p = profile(H100, "7g.80gb")
    card = gpu(busy=[taken(p, 0, span(0, 2)), taken(p, 0, span(3, 5))])
    assert first_time([card], MigAsk(p.name), span(0, 1), at(99)) == at(2)
    assert first_time([card], MigAsk(p.name), span(0, 2), at(99)) == at(5)
    assert first_time([card], MigAsk(p.name), span(0, None), at(99)) == at(5)


def test_what_fits_now_fits_now() -> None:
    assert first_time([gpu()], MigAsk("1g.10gb"), span(2, 3), at(99)) == at(2)


def test_beyond_the_horizon_or_behind_a_blocker_there_is_no_time() -> None:
    p = profile(H100, "7g.80gb")
    card = gpu(busy=[taken(p, 0, span(0, 4))])
    assert first_time([card], MigAsk(p.name), span(0, 1), at(4)) == at(4)
    assert first_time([card], MigAsk(p.name), span(0, 1), at(3.9)) is None
    assert first_time([gpu(busy=[wall(0, 8, span(0, None))])], MigAsk(p.name), span(0, 1), at(99)) is None
    assert first_time([gpu(why="unknown")], MigAsk(p.name), span(0, 1), at(99)) is None
    assert first_time([], MigAsk(p.name), span(0, 1), at(99)) is None


def test_several_have_to_be_free_at_one_time() -> None:
    cards = [
        gpu(n, use=Use.WHOLE, busy=[wall(0, 8, span(0, n + 1)), wall(0, 8, span(9, 10))]) for n in range(3)
    ]
    assert first_time(cards, GpuAsk(count=2), span(0, 2), at(99)) == at(2)
    assert first_time(cards, GpuAsk(count=3), span(0, 2), at(99)) == at(3)
    assert first_time(cards, GpuAsk(count=3), span(0, 7), at(99)) == at(10)
    assert first_time(cards, GpuAsk(count=4), span(0, 1), at(99)) is None


@pytest.mark.parametrize("begins", [4, 7])
def test_what_is_free_now_may_be_taken_when_the_other_comes_free(begins: int) -> None:
    """The first card is free at once, but its next booking stands in the way later."""
    first = gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(begins, 10))])
    second = gpu(1, use=Use.WHOLE, busy=[wall(0, 8, span(0, 6))])
    assert first_time([first, second], GpuAsk(count=2), span(0, 2), at(99)) == at(10)
    assert first_time([first, second], GpuAsk(count=2), span(0, 1), at(99)) == at(6 if begins == 7 else 10)


def test_on_one_node_they_have_to_be_free_at_one_time_there() -> None:
    opens = {("node-a", 0): 2, ("node-b", 1): 3, ("node-a", 2): 5}
    cards = [
        gpu(n, node=node, use=Use.WHOLE, busy=[wall(0, 8, span(0, hour))])
        for (node, n), hour in opens.items()
    ]
    assert first_time(cards, GpuAsk(count=2), span(0, 1), at(99)) == at(3)
    assert first_time(cards, GpuAsk(count=2, same_node=True), span(0, 1), at(99)) == at(5)
