"""Where teams stand: against the slow way on drawn worlds, and each rule with its numbers."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import standing
from pool.core.errors import Code, Refusal
from pool.core.fleet_rows import micros
from pool.core.quota_lines import Limits
from pool.core.shapes import Class
from pool.core.standing import Loan, Share
from tests.core import standings
from tests.core.standings import A100, H100, MODELS, Slow, Work, World, booking, grant, line
from tests.core.worlds import at, span

VISION, SPEECH, LAB, DEPARTMENT = 1, 2, 3, 9
FAMILY = {VISION: DEPARTMENT, SPEECH: DEPARTMENT, LAB: None, DEPARTMENT: None}
seeds = st.integers(0, 2**48)


def refused(world: World, wanted: standing.Booking) -> str | None:
    try:
        standing.check(world.standing, wanted)
    except Refusal as refusal:
        return f"{refusal.code}: {refusal.data['reason']}"
    return None


# --- Against the slow way -----------------------------------------------------------


@settings(max_examples=150)
@given(seed=seeds)
def test_a_booking_is_refused_for_the_reason_that_the_slow_way_finds(seed: int) -> None:
    world = standings.a_world(seed)
    wanted = standings.a_booking(seed, world)
    expected = standings.verdict(world, wanted)
    assert refused(world, wanted) == (expected and f"{Code.QUOTA_EXCEEDED}: {expected}")


@settings(max_examples=40)
@given(seed=seeds)
def test_what_is_borrowed_of_each_reservation_is_as_the_slow_way_says(seed: int) -> None:
    world = standings.a_world(seed)
    for against in (None, *range(1, 6)):
        for hour in (0, 3, 8):
            expected = {one.id: milli for one, milli in Slow(world, hour).borrowed(against).items() if milli}
            assert standing.borrowed_now(world.standing, at(hour), against) == expected


@settings(max_examples=60)
@given(seed=seeds)
def test_what_is_not_used_is_told_at_every_instant_as_the_slow_way_says(seed: int) -> None:
    world = standings.a_world(seed)
    steps = standing.unused_steps(world.standing, span(1, 12))
    assert (steps.since < steps.until).all()
    for hour in range(1, 12):
        slow = Slow(world, hour)
        now = (steps.since <= micros(at(hour))) & (micros(at(hour)) < steps.until)
        told = {
            (steps.lines[line].team, steps.lines[line].model): milli
            for line, milli in zip(steps.line[now].tolist(), steps.milli[now].tolist(), strict=True)
        }
        found = {(team, model): n for team in slow.having for model, n in slow.unused(team).items()}
        assert told == found


@settings(max_examples=60)
@given(seed=seeds)
def test_what_may_still_be_borrowed_is_what_is_left_at_the_worst_instant(seed: int) -> None:
    world = standings.a_world(seed)
    rooms = [Slow(world, hour).room(VISION) for hour in range(2, 9)]
    least = {model: max(0, min(room[model][0] for room in rooms)) for model in (*MODELS, None)}
    lent = standing.lent(world.standing, VISION, span(2, 9))
    assert lent == {model: min(least[model], least[None]) for model in MODELS}


@settings(max_examples=100)
@given(seed=seeds)
def test_loans_sum_up_to_what_of_a_booking_is_beyond_its_guarantee(seed: int) -> None:
    world = standings.a_world(seed)
    wanted = standings.a_booking(seed, world)
    if refused(world, wanted):
        return
    loans = standing.check(world.standing, wanted)
    parts = [
        standings.as_work(wanted, model, milli, n)
        for n, (model, milli) in enumerate(sorted(wanted.charges.items()))
    ]
    then = World(world.lines, (*world.work, *parts), world.grants, world.parents)
    for hour in standings.hours_of(world, wanted.period):
        rest = Slow(then, hour).rest()
        borrowed = sum(rest[one] for one in parts)
        assert sum(loan.milli for loan in loans if loan.period.contains(at(hour))) == borrowed


# --- Caps -----------------------------------------------------------------------------


def test_the_limit_is_the_peak_and_never_a_sum_over_time() -> None:
    behind = tuple(Work(VISION, 3000, hour, hour + 1, number=hour) for hour in range(8))
    world = World((line(VISION, 0, 4000),), behind)
    assert refused(world, booking(VISION, 1000)) is None
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 1125))
    assert caught.value.data == {
        "reason": "over_cap", "line": 11, "team": VISION, "model": None,
        "cap": 4000, "used": 3000, "asked": 1125, "at": at(0).isoformat(),
    }  # fmt: skip


def test_the_refusal_tells_when_it_is_worst() -> None:
    world = World((line(VISION, 0, 4000),), (Work(VISION, 2000, 1, 6), Work(VISION, 1500, 3, 4, number=2)))
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 1000))
    assert (caught.value.data["used"], caught.value.data["at"]) == (3500, at(3).isoformat())


def test_a_booking_passes_the_line_of_its_model_and_that_for_any() -> None:
    lines = (line(VISION, 0, 4000), line(VISION, 0, 1000, H100))
    assert refused(World(lines), booking(VISION, 1000)) is None
    assert refused(World(lines), booking(VISION, 1125)) == "quota_exceeded: over_cap"
    assert refused(World(lines), booking(VISION, 0, charges={A100: 4000})) is None
    both = booking(VISION, 0, charges={A100: 3125, H100: 1000})
    assert refused(World(lines), both) == "quota_exceeded: over_cap"


def test_a_team_without_a_line_has_a_cap_of_0_even_where_its_parent_has_one() -> None:
    world = World((line(DEPARTMENT, 4000, 8000),), parents=FAMILY)
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 125))
    assert caught.value.data == {
        "reason": "no_line", "line": None, "team": VISION, "model": H100, "cap": 0, "used": 0, "asked": 125,
    }  # fmt: skip


def test_a_line_for_another_model_is_no_line() -> None:
    assert refused(World((line(VISION, 0, 4000, A100),)), booking(VISION, 125)) == "quota_exceeded: no_line"


def test_a_parent_counts_what_all_of_its_teams_use() -> None:
    lines = (line(VISION, 0, 4000), line(SPEECH, 0, 4000), line(DEPARTMENT, 0, 5000))
    world = World(lines, (Work(SPEECH, 3000), Work(DEPARTMENT, 1000, number=2)), parents=FAMILY)
    assert refused(world, booking(VISION, 1000)) is None
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 1500))
    data = caught.value.data
    assert (data["team"], data["cap"], data["used"], data["asked"]) == (DEPARTMENT, 5000, 4000, 1500)


def test_memory_is_limited_as_a_peak_too() -> None:
    world = World((line(VISION, 0, 8000, memory_mib=100_000),), (Work(VISION, 500, 2, 4, memory=60_000),))
    assert refused(world, booking(VISION, 500, memory={H100: 40_000})) is None
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 500, memory={H100: 40_001}))
    data = caught.value.data
    assert (data["reason"], data["cap"], data["used"], data["asked"]) == (
        "over_memory", 100_000, 60_000, 40_001,
    )  # fmt: skip


def test_what_a_booking_may_be_is_asked_of_every_line_that_it_counts_on() -> None:
    few = line(DEPARTMENT, 0, 8000, limits=Limits(kinds=("mig",)))
    world = World((line(VISION, 0, 8000), few), parents=FAMILY)
    assert refused(world, booking(VISION, 1000, kind="gpu")) == "quota_exceeded: kind_not_allowed"
    assert refused(world, booking(VISION, 1000, kind="mig")) is None


# --- Grants ---------------------------------------------------------------------------


def test_a_grant_holds_from_its_start_until_its_end_and_not_a_moment_longer() -> None:
    world = World((line(VISION, 0, 1000),), grants=(grant(VISION, 0, 1000, 2, 6),))
    assert refused(world, booking(VISION, 2000, 2, 6)) is None
    assert refused(world, booking(VISION, 2000, 1.99, 6)) == "quota_exceeded: over_cap"
    assert refused(world, booking(VISION, 2000, 2, 6.01)) == "quota_exceeded: over_cap"


def test_grants_that_touch_are_one_and_a_gap_between_them_is_none() -> None:
    touching = (grant(VISION, 0, 1000, 0, 4), grant(VISION, 0, 1000, 4, 8))
    gapped = (grant(VISION, 0, 1000, 0, 4), grant(VISION, 0, 1000, 5, 8))
    lines = (line(VISION, 0, 1000),)
    assert refused(World(lines, grants=touching), booking(VISION, 2000)) is None
    assert refused(World(lines, grants=touching), booking(VISION, 2001)) == "quota_exceeded: over_cap"
    with pytest.raises(Refusal) as caught:
        standing.check(World(lines, grants=gapped).standing, booking(VISION, 2000))
    assert (caught.value.data["cap"], caught.value.data["at"]) == (1000, at(4).isoformat())


def test_a_grant_without_a_line_stands_for_itself() -> None:
    world = World((), grants=(grant(VISION, 1000, 1000, 0, 8),))
    assert standing.check(world.standing, booking(VISION, 1000)) == ()
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 1000, 4, 9))
    assert (caught.value.data["reason"], caught.value.data["line"], caught.value.data["cap"]) == (
        "over_cap",
        0,
        0,
    )


def test_a_booking_that_outlives_a_grant_is_borrowed_from_then_on() -> None:
    world = World((line(VISION, 0, 2000),), grants=(grant(VISION, 1000, 1000, 0, 4),))
    assert standing.check(world.standing, booking(VISION, 1000)) == (Loan(span(4, 8), 1000, "others"),)


# --- Borrowed ---------------------------------------------------------------------------


def test_what_is_beyond_the_guarantee_is_borrowed_exactly_while_it_is() -> None:
    world = World((line(VISION, 2000, 8000),), (Work(VISION, 1500, 2, 4), Work(VISION, 2000, 6, 7, number=2)))
    assert standing.check(world.standing, booking(VISION, 1000)) == (
        Loan(span(2, 4), 500, "others"),
        Loan(span(6, 7), 1000, "others"),
    )


def test_firm_and_online_work_stays_within_the_guarantee() -> None:
    world = World((line(VISION, 2000, 8000),), (Work(VISION, 1500, 2, 4, firm=True),))
    for more, reason in (
        ({"firm": True}, "firm_over_guaranteed"),
        ({"klass": Class.ONLINE}, "online_over_guaranteed"),
    ):
        assert refused(world, booking(VISION, 500, **more)) is None
        with pytest.raises(Refusal) as caught:
            standing.check(world.standing, booking(VISION, 1000, **more))
        data = caught.value.data
        assert (data["reason"], data["cap"], data["used"], data["asked"]) == (reason, 2000, 1500, 1000)
        assert (data["line"], data["at"]) == (11, at(2).isoformat())


def test_firm_work_takes_the_place_of_what_can_be_taken_back() -> None:
    """The team's own batch work becomes borrowed; nobody keeps anything, so it may."""
    world = World((line(VISION, 2000, 8000),), (Work(VISION, 2000),))
    assert standing.check(world.standing, booking(VISION, 2000, firm=True)) == ()
    then = World(world.lines, (*world.work, Work(VISION, 2000, firm=True, created=9, number=2)))
    assert standing.borrowed_now(then.standing, at(1)) == {UUID(int=1): 2000}


def test_a_guarantee_is_filled_by_what_stays_then_by_class_then_by_age() -> None:
    kinds = [("batch", True, 9), ("online", False, 9), ("interactive", False, 2), ("batch", False, 1)]
    work = tuple(
        Work(VISION, 1000, klass=klass, firm=firm, created=created, number=number)
        for number, (klass, firm, created) in enumerate(kinds, 1)
    )
    younger = Work(VISION, 1000, created=2, number=5)
    left = []
    for guaranteed in (0, 1000, 2000, 3000, 4000, 5000):
        world = World((line(VISION, guaranteed, 8000),), (*work, younger))
        left.append({one.int for one in standing.borrowed_now(world.standing, at(1))})
    assert left == [{1, 2, 3, 4, 5}, {1, 3, 4, 5}, {3, 4, 5}, {4, 5}, {5}, set()]


def test_one_reservation_may_be_partly_borrowed_and_its_pieces_are_summed() -> None:
    gang = tuple(Work(VISION, 1000) for _ in range(4))
    world = World((line(VISION, 2500, 8000),), gang)
    assert standing.borrowed_now(world.standing, at(1)) == {UUID(int=1): 1500}


def test_the_line_of_the_model_is_filled_before_that_for_any() -> None:
    lines = (line(VISION, 1000, 9000), line(VISION, 2000, 9000, H100))
    world = World(lines, (Work(VISION, 2000), Work(VISION, 1000, model=A100, number=2)))
    assert standing.borrowed_now(world.standing, at(1)) == {}
    assert standing.check(world.standing, booking(VISION, 500)) == (Loan(span(0, 8), 500, "others"),)


# --- Families -----------------------------------------------------------------------------

#: 8 GPUs are guaranteed to the department, 3 of them to each of its two teams.
THE_FAMILY = (line(VISION, 3000, 9000), line(SPEECH, 3000, 9000), line(DEPARTMENT, 8000, 9000))


def test_a_team_borrows_within_its_family_first_and_then_from_others() -> None:
    world = World(THE_FAMILY, (Work(SPEECH, 2000, 0, 4),), parents=FAMILY, capacity={H100: 20_000, A100: 0})
    assert standing.check(world.standing, booking(VISION, 7000)) == (
        Loan(span(0, 4), 3000, "siblings"),
        Loan(span(0, 4), 1000, "others"),
        Loan(span(4, 8), 4000, "siblings"),
    )


def test_a_sibling_may_take_back_what_a_stranger_may_not() -> None:
    lines = (*THE_FAMILY, line(LAB, 2000, 2000))
    world = World(lines, (Work(VISION, 7000), Work(SPEECH, 2000, number=2)), parents=FAMILY)
    assert standing.borrowed_now(world.standing, at(1)) == {UUID(int=1): 4000}
    assert standing.borrowed_now(world.standing, at(1), against=SPEECH) == {UUID(int=1): 4000}
    assert standing.borrowed_now(world.standing, at(1), against=LAB) == {UUID(int=1): 1000}


def test_a_parents_own_work_has_what_its_teams_are_not_guaranteed() -> None:
    world = World(THE_FAMILY, parents=FAMILY)
    assert refused(world, booking(DEPARTMENT, 2000, firm=True)) is None
    assert refused(world, booking(DEPARTMENT, 2125, firm=True)) == "quota_exceeded: firm_over_guaranteed"
    assert standing.check(world.standing, booking(DEPARTMENT, 3000)) == (Loan(span(0, 8), 1000, "siblings"),)


# --- Lent ---------------------------------------------------------------------------------


def test_what_is_not_lent_is_not_borrowed() -> None:
    """8 GPUs: the lab is guaranteed 4, lends 1 and uses 1 of what it keeps; so it keeps 2 more."""
    lines = (line(VISION, 1000, 8000), line(LAB, 4000, 4000, H100, lend_milli=1000))
    world = World(lines, (Work(LAB, 1000),))
    assert standing.lent(world.standing, VISION, span(0, 8)) == {A100: 4000, H100: 5000}
    assert standing.check(world.standing, booking(VISION, 5000)) == (Loan(span(0, 8), 4000, "others"),)
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 5125))
    assert caught.value.data == {
        "reason": "not_lent", "line": None, "team": VISION, "model": H100,
        "cap": 6000, "used": 1000, "asked": 5125, "at": at(0).isoformat(), "within_guaranteed": False,
    }  # fmt: skip


def test_a_line_for_any_keeps_of_all_models_together() -> None:
    world = World((line(VISION, 0, 12_000), line(LAB, 4000, 4000, lend_milli=0)))
    assert standing.lent(world.standing, VISION, span(0, 8)) == {A100: 4000, H100: 8000}
    both = booking(VISION, 0, charges={A100: 2000, H100: 6125})
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, both)
    data = caught.value.data
    assert (data["reason"], data["model"], data["cap"], data["asked"]) == ("not_lent", None, 8000, 8125)


def test_a_guarantee_is_there_whatever_others_keep() -> None:
    lines = (line(VISION, 4000, 8000, H100, lend_milli=0), line(LAB, 4000, 4000, H100, lend_milli=0))
    assert standing.check(World(lines).standing, booking(VISION, 4000)) == ()
    assert refused(World(lines), booking(VISION, 4125)) == "quota_exceeded: not_lent"


def test_own_work_that_would_become_borrowed_needs_to_be_lent_too() -> None:
    lines = (line(VISION, 4000, 8000, H100), line(LAB, 4000, 4000, H100, lend_milli=0))
    world = World(lines, (Work(VISION, 4000),))
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, booking(VISION, 1000, firm=True))
    assert (caught.value.data["reason"], caught.value.data["within_guaranteed"]) == ("not_lent", True)


def test_within_a_family_a_sibling_keeps_what_it_does_not_lend_and_the_parent_nothing() -> None:
    lines = (
        line(VISION, 3000, 9000), line(SPEECH, 3000, 9000, lend_milli=1000),
        line(DEPARTMENT, 8000, 9000, lend_milli=0),
    )  # fmt: skip
    world = World(lines, parents=FAMILY)
    assert standing.lent(world.standing, VISION, span(0, 8)) == {A100: 4000, H100: 8000}
    small = World(lines, parents=FAMILY, capacity={H100: 8000, A100: 0})
    assert standing.lent(small.standing, VISION, span(0, 8))[H100] == 6000
    assert standing.lent(small.standing, LAB, span(0, 8))[H100] == 0


# --- At a look ----------------------------------------------------------------------------


def test_shares_tell_what_each_team_uses_and_borrows() -> None:
    lines = (line(VISION, 2000, 8000, weight=3), line(LAB, 1000, 8000, H100), line(LAB, 500, 500))
    world = World(lines, (Work(VISION, 3000), Work(LAB, 1250, number=2), Work(7, 125, number=3)))
    shares = standing.shares(world.standing, at(1))
    assert shares == {
        VISION: Share(3000, 2000, 2000, 3),
        LAB: Share(1250, 1250, 1500, 1),
        7: Share(125, 0, 0, 1),
    }
    assert shares[VISION].borrowed == 1000


def test_the_most_that_a_line_leaves_unused_is_told_with_its_unit() -> None:
    lines = (line(VISION, 4000, 8000, H100, unit="node", unit_size=4), line(DEPARTMENT, 8000, 8000))
    world = World(lines, (Work(VISION, 1000, 0, 4),), parents=FAMILY)
    found = {(one.line.team, one.line.unit, one.milli) for one in standing.unused(world.standing, span(0, 4))}
    assert found == {(VISION, "node", 3000), (DEPARTMENT, "slots", 4000)}
    assert max(one.milli for one in standing.unused(world.standing, span(0, 5))) == 4000
