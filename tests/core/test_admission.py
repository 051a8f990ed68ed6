"""What a refusal tells: which line, how much, and at which instant it is worst."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.admission import Booking, Loan, check
from pool.core.errors import Refusal
from pool.core.fleet_rows import micros
from pool.core.shapes import Class
from tests.core import standings
from tests.core.standings import A100, CAPACITY, H100, MODELS, Slow, Work, World, booking, line
from tests.core.worlds import at, span

TEAM, PARENT, OTHER = 1, 9, 5


def refusal(world: World, wanted: Booking) -> dict[str, object]:
    with pytest.raises(Refusal) as caught:
        check(world.standing, wanted)
    return caught.value.data


@settings(max_examples=200)
@given(seed=st.integers(0, 2**48))
def test_the_numbers_of_a_refusal_are_those_of_the_instant_that_it_names(seed: int) -> None:
    world = standings.a_world(seed)
    wanted = standings.a_booking(seed, world)
    try:
        check(world.standing, wanted)
        return
    except Refusal as caught:
        data = caught.data
    if data["reason"] not in ("over_cap", "not_lent"):
        return
    hours = {at(hour).isoformat(): hour for hour in standings.hours_of(world, wanted.period)}
    slow = Slow(world, hours[data["at"]])
    models = [data["model"]] if data["model"] else list(MODELS)
    assert data["asked"] == sum(wanted.charges.get(model, 0) for model in models)
    if data["reason"] == "over_cap":
        assert data["used"] == sum(slow.used(data["team"], model) for model in models)
        assert data["cap"] == slow.lines[data["team"], data["model"]].cap_milli
    else:
        claimed = slow.room(wanted.team)[data["model"]][1]
        assert data["used"] == sum(one.milli for one in slow.work if one.model in models)
        assert data["cap"] == max(0, sum(CAPACITY[model] for model in models) - claimed)
    assert data["used"] + data["asked"] > data["cap"]


def test_the_teams_own_line_is_named_before_that_of_its_parent() -> None:
    world = World((line(TEAM, 0, 1000), line(PARENT, 0, 500)), parents={TEAM: PARENT, PARENT: None})
    assert refusal(world, booking(TEAM, 2000))["team"] == TEAM
    assert refusal(world, booking(TEAM, 1000))["team"] == PARENT


def test_work_before_and_after_the_booking_is_nothing_to_it() -> None:
    world = World((line(TEAM, 1000, 1000),), (Work(TEAM, 1000, -2, 0), Work(TEAM, 1000, 8, None, number=2)))
    assert check(world.standing, booking(TEAM, 1000, firm=True)) == ()
    assert refusal(world, booking(TEAM, 1000, 0, None))["at"] == at(8).isoformat()


def test_online_work_without_end_fits_where_nothing_that_stays_comes_later() -> None:
    world = World((line(TEAM, 2000, 9000),), (Work(TEAM, 2000, 20, 30), Work(TEAM, 1000, 40, 50, firm=True)))
    assert check(world.standing, booking(TEAM, 1000, 0, None, klass=Class.ONLINE)) == ()
    data = refusal(world, booking(TEAM, 1125, 0, None, klass=Class.ONLINE))
    assert (data["reason"], data["at"], data["used"]) == ("online_over_guaranteed", at(40).isoformat(), 1000)


def test_a_booking_that_is_older_goes_before_what_is_younger_when_it_is_changed() -> None:
    """The one that is extended was there first: the younger becomes borrowed, not it."""
    world = World((line(TEAM, 1000, 9000),), (Work(TEAM, 1000, created=micros(at(50))),))
    assert check(world.standing, booking(TEAM, 1000, created=at(0))) == ()
    assert check(world.standing, booking(TEAM, 1000, created=at(51))) == (Loan(span(0, 8), 1000, "others"),)


def test_interactive_work_fills_the_guarantee_before_batch() -> None:
    world = World((line(TEAM, 1000, 9000),), (Work(TEAM, 1000),))
    assert check(world.standing, booking(TEAM, 1000, klass=Class.INTERACTIVE)) == ()
    assert check(world.standing, booking(TEAM, 1000)) == (Loan(span(0, 8), 1000, "others"),)


def test_nothing_that_can_be_taken_back_pushes_out_what_stays() -> None:
    world = World((line(TEAM, 1000, 9000),), (Work(TEAM, 1000, firm=True),))
    assert check(world.standing, booking(TEAM, 1000, klass=Class.INTERACTIVE)) == (
        Loan(span(0, 8), 1000, "others"),
    )


def test_firm_work_of_two_models_is_refused_with_the_sum() -> None:
    world = World(
        (line(TEAM, 1000, 9000), line(TEAM, 1000, 9000, H100)), (Work(TEAM, 500, model=A100, firm=True),)
    )
    assert check(world.standing, booking(TEAM, 0, charges={A100: 500, H100: 1000}, firm=True)) == ()
    data = refusal(world, booking(TEAM, 0, charges={A100: 500, H100: 1125}, firm=True))
    assert (data["reason"], data["model"], data["line"]) == ("firm_over_guaranteed", None, 11)
    assert (data["cap"], data["used"], data["asked"]) == (2000, 500, 1625)


def test_what_is_refused_for_a_time_is_allowed_outside_of_it() -> None:
    """The other team uses its guarantee in the middle, so that nothing is kept for it then."""
    lines = (line(TEAM, 0, 9000), line(OTHER, 4000, 4000, H100, lend_milli=0))
    world = World(lines, (Work(OTHER, 4000, 2, 4),))
    assert check(world.standing, booking(TEAM, 4000, 0, 8)) == (Loan(span(0, 8), 4000, "others"),)
    assert check(world.standing, booking(TEAM, 4125, 2, 4)) == (Loan(span(2, 4), 4125, "others"),)
    assert refusal(world, booking(TEAM, 4125, 2, 5))["at"] == at(4).isoformat()
