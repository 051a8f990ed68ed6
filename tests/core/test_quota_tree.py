"""Whether guarantees fit into the tree of teams and into the pool, with the numbers that do not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.quota_lines import Grant, Line
from pool.core.quota_tree import Excess, excess
from tests.core import standings
from tests.core.standings import A100, CAPACITY, H100, MODELS, Slow, grant, line
from tests.core.worlds import at

DEPARTMENT, VISION, SPEECH, LAB = 9, 1, 2, 3
FAMILY = {VISION: DEPARTMENT, SPEECH: DEPARTMENT, LAB: VISION, DEPARTMENT: None}


def of(*lines: Line, grants: tuple[Grant, ...] = ()) -> Excess | None:
    return excess(lines, grants, FAMILY, CAPACITY, now=at(0))


def test_children_are_guaranteed_no_more_than_their_parent() -> None:
    assert of(line(DEPARTMENT, 5000, 9000), line(VISION, 3000, 9000), line(SPEECH, 2000, 9000)) is None
    found = of(line(DEPARTMENT, 5000, 9000), line(VISION, 3000, 9000), line(SPEECH, 2125, 9000))
    assert found == Excess(DEPARTMENT, None, 5125, 5000, at(0))


def test_what_is_over_the_line_for_a_model_has_to_fit_into_that_for_any() -> None:
    parent = (line(DEPARTMENT, 2000, 9000, H100), line(DEPARTMENT, 1000, 9000))
    assert of(*parent, line(VISION, 3000, 9000, H100)) is None
    assert of(*parent, line(VISION, 3125, 9000, H100)) == Excess(DEPARTMENT, None, 1125, 1000, at(0))
    both = (line(VISION, 3000, 9000, H100), line(SPEECH, 125, 9000))
    assert of(*parent, *both) == Excess(DEPARTMENT, None, 1125, 1000, at(0))


def test_without_a_line_for_any_the_model_alone_binds() -> None:
    found = of(line(DEPARTMENT, 2000, 9000, H100), line(VISION, 2125, 9000, H100))
    assert found == Excess(DEPARTMENT, H100, 2125, 2000, at(0))


def test_a_line_that_the_parent_does_not_have_binds_nobody() -> None:
    assert of(line(DEPARTMENT, 2000, 9000, H100), line(VISION, 4000, 9000, A100)) is None
    found = of(line(DEPARTMENT, 2000, 9000, H100), line(VISION, 4125, 9000, A100))
    assert found == Excess(None, A100, 4125, 4000, at(0))


def test_a_team_without_lines_is_passed_over() -> None:
    found = of(line(DEPARTMENT, 1000, 9000), line(LAB, 1125, 9000))
    assert found == Excess(DEPARTMENT, None, 1125, 1000, at(0))


def test_the_pool_guarantees_no_more_of_a_model_than_it_has_nor_in_all() -> None:
    assert of(line(DEPARTMENT, 8000, 8000, H100), line(4, 4000, 4000)) is None
    assert of(line(DEPARTMENT, 8000, 8000, H100), line(4, 125, 8000, H100)) == Excess(
        None, H100, 8125, 8000, at(0)
    )
    assert of(line(DEPARTMENT, 8000, 8000, H100), line(4, 4125, 8000)) == Excess(
        None, None, 12_125, 12_000, at(0)
    )
    assert of(Line(1, "B200", 125, 8000, team=4)) == Excess(None, "B200", 125, 0, at(0))


def test_a_grant_counts_from_the_instant_at_which_it_begins() -> None:
    lines = (line(DEPARTMENT, 8000, 8000, H100), line(4, 3000, 8000))
    more = grant(4, 1125, 1125, 5, 7)
    assert of(*lines, grants=(more,)) == Excess(None, None, 12_125, 12_000, at(5))
    assert of(*lines, grants=(grant(4, 1125, 1125, -5, 0),)) is None
    one_after_another = (grant(4, 1000, 1000, 0, 5), grant(4, 1000, 1000, 5, 9))
    assert of(*lines, grants=one_after_another) is None


@settings(max_examples=150)
@given(st.integers(0, 2**48))
def test_guarantees_fit_where_the_slow_way_finds_room_for_all(seed: int) -> None:
    world = standings.a_world(seed)
    found = excess(world.lines, world.grants, world.above, CAPACITY, now=at(0))
    fits = [fit(Slow(world, hour)) for hour in range(20)]
    assert (found is None) == all(fits)
    if found is not None:
        assert found.at == at(fits.index(False))
        assert found.guaranteed_milli > found.room_milli


def fit(slow: Slow) -> bool:
    for team in slow.having:
        over = slow.asked(team, None)
        for model in MODELS:
            asked, room = slow.asked(team, model), slow.guaranteed(team, model)
            if slow.has(team, model) and not slow.has(team, None) and asked > room:
                return False
            over += max(0, asked - room)
        if slow.has(team, None) and over > slow.guaranteed(team, None):
            return False
    asked = {model: slow.asked(None, model) for model in (*MODELS, None)}
    return all(asked[m] <= CAPACITY[m] for m in MODELS) and sum(asked.values()) <= sum(CAPACITY.values())
