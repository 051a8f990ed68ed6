"""Refusals in numbers, against brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.placement import Shortfall, Use, shortfall
from pool.core.shapes import GpuAsk, MigAsk
from tests.core import worlds
from tests.core.worlds import gpu, profile, span, taken, wall

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
