"""What is promised above a line as it would be, with its times, amounts and reservations."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.lowering import Promised, above
from tests.core import standings
from tests.core.standings import A100, H100, MODELS, Slow, Work, World, grant, line
from tests.core.worlds import at, span

TEAM, CHILD = 1, 2


def ids(*numbers: int) -> tuple[UUID, ...]:
    return tuple(UUID(int=number) for number in numbers)


def test_a_cap_that_is_still_enough_is_above_nothing() -> None:
    world = World((line(TEAM, 0, 8000),), (Work(TEAM, 3000, 1, 4),))
    assert above(world.standing, line(TEAM, 0, 3000), at(0)) == ()


def test_a_lower_cap_shows_when_by_how_much_and_whose() -> None:
    work = (
        Work(TEAM, 3000, 1, 9, created=1),
        Work(TEAM, 1000, 2, 4, created=2, number=2),
        Work(TEAM, 2000, 3, 5, created=3, number=3),
        Work(TEAM, 1000, 7, None, created=4, number=4),
    )
    world = World((line(TEAM, 0, 8000),), work)
    assert above(world.standing, line(TEAM, 0, 3000), at(0)) == (
        Promised("cap", span(2, 5), 6000, 3000, ids(2, 3)),
        Promised("cap", span(7, 9), 4000, 3000, ids(4)),
    )
    assert above(world.standing, line(TEAM, 0, 3000), at(6)) == (
        Promised("cap", span(7, 9), 4000, 3000, ids(4)),
    )


def test_what_has_no_end_is_above_without_end() -> None:
    world = World((line(TEAM, 0, 8000),), (Work(TEAM, 2000, 1, None),))
    assert above(world.standing, line(TEAM, 0, 1500), at(0)) == (
        Promised("cap", span(1, None), 2000, 1500, ids(1)),
    )


def test_a_grant_that_goes_on_is_counted() -> None:
    world = World((line(TEAM, 0, 8000),), (Work(TEAM, 2000, 1, 8),), (grant(TEAM, 0, 1000, 0, 4),))
    assert above(world.standing, line(TEAM, 0, 1000), at(0)) == (
        Promised("cap", span(4, 8), 2000, 1000, ids(1)),
    )


def test_a_line_for_one_model_is_about_that_model_and_counts_the_teams_below() -> None:
    work = (Work(TEAM, 2000, model=A100), Work(CHILD, 2000, number=2))
    world = World((line(TEAM, 0, 8000, H100),), work, parents={CHILD: TEAM, TEAM: None})
    assert above(world.standing, line(TEAM, 0, 1500, H100), at(0)) == (
        Promised("cap", span(0, 8), 2000, 1500, ids(2)),
    )


def test_memory_is_looked_at_where_the_line_limits_it() -> None:
    world = World((line(TEAM, 0, 8000),), (Work(TEAM, 1000, memory=80_000),))
    assert above(world.standing, line(TEAM, 0, 8000, memory_mib=60_000), at(0)) == (
        Promised("memory", span(0, 8), 80_000, 60_000, ids(1)),
    )


def test_a_lower_guarantee_is_about_what_cannot_be_taken_back() -> None:
    work = (
        Work(TEAM, 2000, 0, 6, firm=True, created=1),
        Work(TEAM, 1000, 2, 4, klass="online", created=2, number=2),
        Work(TEAM, 3000, 0, 8, created=0, number=3),
    )
    world = World((line(TEAM, 3000, 8000),), work)
    assert above(world.standing, line(TEAM, 3000, 8000), at(0)) == ()
    assert above(world.standing, line(TEAM, 1500, 8000), at(0)) == (
        Promised("guaranteed", span(0, 6), 3000, 1500, ids(1)),
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 2**48), cap=st.sampled_from([0, 1000, 3000]), number=st.integers(0, 2))
def test_every_instant_above_is_told_and_no_other(seed: int, cap: int, number: int) -> None:
    world = standings.a_world(seed)
    model = (*MODELS, None)[number]
    found = above(world.standing, line(TEAM, 0, cap, model), at(0))
    for hour in range(24):
        slow = Slow(world, hour)
        grants = [one for one in world.grants if (one.team, one.model) == (TEAM, model)]
        limit = cap + sum(one.cap_milli for one in grants if one.period.contains(at(hour)))
        used = sum(slow.used(TEAM, one) for one in MODELS if model in (one, None))
        told = [one for one in found if one.what == "cap" and one.period.contains(at(hour))]
        assert bool(told) == (used > limit)
