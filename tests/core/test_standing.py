"""Where teams stand: against the slow way on drawn worlds, and each rule with its numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import standing
from pool.core.errors import Code, Refusal
from tests.core import standings
from tests.core.standings import Slow, World
from tests.core.worlds import at

seeds = st.integers(0, 2**48)


@settings(max_examples=400)
@given(seed=seeds)
def test_a_booking_is_refused_for_the_reason_that_the_slow_way_finds(seed: int) -> None:
    world = standings.a_world(seed)
    wanted = standings.a_booking(seed, world)
    expected = standings.verdict(world, wanted)
    try:
        standing.check(world.standing, wanted)
        found = None
    except Refusal as refusal:
        assert refusal.code is Code.QUOTA_EXCEEDED
        found = refusal.data["reason"]
    assert found == expected


@settings(max_examples=300)
@given(seed=seeds)
def test_what_is_borrowed_of_each_reservation_is_as_the_slow_way_says(seed: int) -> None:
    world = standings.a_world(seed)
    for against in (None, *range(1, 6)):
        for hour in (0, 3, 8):
            expected = {one.id: milli for one, milli in Slow(world, hour).borrowed(against).items() if milli}
            assert standing.borrowed_now(world.standing, at(hour), against) == expected
