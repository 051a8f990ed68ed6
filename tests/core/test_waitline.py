"""The order of the line, who may pass whom, estimates; and that nobody starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.asks import Ask, GpuAsk
from pool.core.fairness import Share
from pool.core.fleet import Fleet
from pool.core.period import Period
from pool.core.placement import Candidate, GpuView, Use, candidates
from pool.core.supposed import supposing
from pool.core.waitline import (
    LONGEST_WAIT,
    MOST_PASSES,
    Decision,
    Given,
    Waiting,
    decide,
    is_strict,
    line,
    no_borrowing,
    strict_models,
)
from tests.core.test_reclaim import booked
from tests.core.worlds import DAWN, HOURS, a_pool, an_ask, at, codes, gpu, span, wall

H100, A100 = "H100-80GB", "A100-40GB"
A, B, C = 1, 2, 3
HOUR = timedelta(hours=1)


def waits(n: int, team: int = A, count: int = 1, **changes: object) -> Waiting:
    """Number n, waiting since n minutes past 20 h ago, for whole GPUs for an hour, whenever."""
    plain = Waiting(
        id=UUID(int=n + 1),
        team=team,
        ask=GpuAsk(count=count),
        milli=1000 * count,
        models=frozenset({H100}),
        priority=50,
        since=at(-20) + timedelta(minutes=n),
        window=Period(at(-20), None),
        length=HOUR,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def place(
    fleet: Fleet, one: Waiting, ask: Ask, period: Period, given: Sequence[Given]
) -> Sequence[Candidate] | str:
    return candidates(fleet, ask, period, now=min(period.start, DAWN)) or "no_room"


def numbers(ordered: Sequence[Waiting]) -> list[int]:
    return [one.id.int - 1 for one in ordered]


def given_to(decision: Decision) -> list[int]:
    return numbers([one.waiting for one in decision.given])


def why(decision: Decision) -> dict[int, str]:
    return {left.waiting.id.int - 1: left.why for left in decision.left}


def busy_until(*hours: float) -> list[GpuView]:
    """Whole GPUs on one node; each is busy until that hour, 0: free."""
    return [
        gpu(n, use=Use.WHOLE, busy=[wall(0, 8, span(-1, hour))] if hour else [])
        for n, hour in enumerate(hours)
    ]


def share(team: int, deserved: int, beyond: int) -> Share:
    return Share(team, deserved, beyond, 0.5)


# --- The order ----------------------------------------------------------------------


def test_first_come_those_with_a_place_then_the_strict_then_the_deserved_then_priority_then_age() -> None:
    shares = {A: share(A, 1000, 0), B: share(B, 0, 4000)}
    waiting = [
        waits(0, B),
        waits(1, B, priority=90),
        waits(2, A),
        waits(3, B, passes=MOST_PASSES, since=at(-1)),
        waits(4, B, order=7),
        waits(5, B, order=3),
    ]
    assert numbers(line(waiting, shares, {}, DAWN)) == [5, 4, 3, 2, 1, 0]


def test_what_comes_counts_so_that_teams_take_turns() -> None:
    shares = {A: share(A, 0, 4000), B: share(B, 0, 2000)}
    waiting = [waits(n, A) for n in range(4)] + [waits(n, B) for n in range(4, 6)]
    # A 0/4, B 0/2: the oldest is A's; then B 0 < 1/4; then 1/4 < 1/2; then both have half: A is older; ...
    assert numbers(line(waiting, shares, {}, DAWN)) == [0, 4, 1, 2, 5, 3]


def test_who_has_much_of_its_share_already_comes_later() -> None:
    shares = {A: share(A, 0, 4000), B: share(B, 0, 4000)}
    assert numbers(line([waits(0, A), waits(1, B)], shares, {A: 3000, B: 1000}, DAWN)) == [1, 0]


def test_a_small_ask_that_its_team_deserves_does_not_wait_for_the_teams_own_large_one() -> None:
    shares = {A: share(A, 1000, 0), B: share(B, 0, 9000)}
    waiting = [waits(0, A, 4), waits(1, B), waits(2, A)]
    assert numbers(line(waiting, shares, {}, DAWN)) == [2, 1, 0]


def test_without_shares_it_goes_by_priority_and_age() -> None:
    assert numbers(line([waits(0), waits(1, priority=60), waits(2)], {}, {}, DAWN)) == [1, 0, 2]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4)), max_size=20))
def test_everybody_is_in_the_line_once(drawn: list[tuple[int, int, int]]) -> None:
    waiting = [waits(n, team, size, priority=priority) for n, (team, priority, size) in enumerate(drawn)]
    ordered = line(waiting, {A: share(A, 2000, 0)}, {B: 500}, DAWN)
    assert Counter(numbers(ordered)) == Counter(range(len(drawn)))


# --- Who passes, and who may not ---------------------------------------------------


def test_freed_room_is_given_in_the_order_of_the_line() -> None:
    decision = decide(booked(busy_until(0, 0)), [waits(n) for n in range(3)], DAWN, place)
    assert given_to(decision) == [0, 1]
    assert why(decision) == {2: "first"}


def test_a_small_ask_passes_a_large_one_only_if_it_cannot_delay_it() -> None:
    # Two GPUs are wanted; one is free, the other will be in two hours.
    fleet = booked(busy_until(0, 2))
    large = waits(0, count=2)
    short, long = waits(1, length=2 * HOUR), waits(2, length=3 * HOUR)
    decision = decide(fleet, [large, long, short], DAWN, place)
    assert given_to(decision) == [1]
    assert why(decision) == {0: "first", 2: "behind"}
    assert decision.left[0].starts == at(2)
    assert decision.given[0].passed == (large.id, long.id)


def test_what_does_not_fit_anyway_is_not_told_that_it_is_behind() -> None:
    decision = decide(booked(busy_until(4, 2)), [waits(0, count=2), waits(1)], DAWN, place)
    assert why(decision) == {0: "first", 1: "no_room"}


def test_nobody_passes_one_that_was_passed_too_often() -> None:
    fleet = booked(busy_until(0, 2))
    strict = waits(0, count=2, passes=MOST_PASSES)
    # The second would not delay it, and gets nothing all the same.
    decision = decide(fleet, [strict, waits(1)], DAWN, place)
    assert given_to(decision) == []
    assert why(decision) == {0: "first", 1: "strict"}
    # Within its own guarantee somebody may have the room meanwhile.
    holder = waits(2, guaranteed=True)
    assert given_to(decide(fleet, [strict, waits(1), holder], DAWN, place)) == [2]


def test_nobody_passes_one_that_waits_too_long_but_a_wish_for_later_does_not_wait_yet() -> None:
    old = waits(0, since=DAWN - LONGEST_WAIT, window=Period(DAWN - LONGEST_WAIT, None))
    assert is_strict(old, DAWN)
    assert not is_strict(replace(old, window=Period(at(-1), None)), DAWN)
    assert strict_models([old, waits(1, models=frozenset({A100}))], DAWN) == {H100}


def test_while_a_holder_of_a_guarantee_waits_nobody_borrows_in_its_models() -> None:
    fleet = booked([*busy_until(0, 2), gpu(2, A100, use=Use.WHOLE)])
    holder = waits(0, B, 2, guaranteed=True)
    only_there, anywhere = waits(1), waits(2, models=frozenset({H100, A100}))
    decision = decide(
        fleet, [replace(holder, ask=GpuAsk((H100,), count=2)), only_there, anywhere], DAWN, place
    )
    assert no_borrowing([holder, only_there], DAWN) == {H100}
    assert why(decision) == {0: "first", 1: "borrowing_stopped"}
    assert [pick.model for pick in decision.given[0].candidates[0].picks] == [A100]


def test_a_holder_that_is_served_stops_nobody_behind_it() -> None:
    fleet = booked(busy_until(0, 0))
    assert given_to(decide(fleet, [waits(0, B, guaranteed=True), waits(1)], DAWN, place)) == [0, 1]


def test_one_whose_window_is_over_is_too_late_and_one_for_later_gets_its_own_time() -> None:
    fleet = booked(busy_until(0))
    late = waits(0, window=Period(at(-5), at(0.5)))
    later = waits(1, window=Period(at(3), None))
    decision = decide(fleet, [late, later], DAWN, place)
    assert why(decision) == {0: "too_late"}
    assert decision.given[0].period == span(3, 4)


def test_a_part_is_given_only_to_who_takes_a_part() -> None:
    fleet = booked(busy_until(0, 0, 9))
    assert given_to(decide(fleet, [waits(0, count=3)], DAWN, place)) == []
    (part,) = decide(fleet, [waits(0, count=3, partial_ok=True)], DAWN, place).given
    assert part.ask == GpuAsk(count=2)


def test_who_is_refused_by_quota_keeps_no_room_unless_it_has_a_start_in_sight() -> None:
    def no_quota(
        fleet: Fleet, one: Waiting, ask: Ask, period: Period, given: Sequence[Given]
    ) -> Sequence[Candidate] | str:
        return "over_cap" if one.team == B else place(fleet, one, ask, period, given)

    decision = decide(booked(busy_until(0)), [waits(0, B), waits(1)], DAWN, no_quota)
    assert given_to(decision) == [1]
    assert why(decision) == {0: "over_cap"}
    assert decision.given[0].passed == ()


def test_a_run_gives_so_much_and_leaves_the_rest_to_the_next() -> None:
    decision = decide(booked(busy_until(0, 0, 0)), [waits(n) for n in range(3)], DAWN, place, most=2)
    assert given_to(decision) == [0, 1]
    assert why(decision) == {2: "behind"}


def test_estimates_are_one_after_the_other_as_if_nobody_extended() -> None:
    decision = decide(booked(busy_until(1)), [waits(n) for n in range(3)], DAWN, place, estimates=2)
    assert [left.starts for left in decision.left] == [at(1), at(2), None]
    assert [left.position for left in decision.left] == [1, 2, 3]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(codes, min_size=1, max_size=4),
    st.lists(codes, max_size=8),
    st.lists(st.tuples(codes, st.integers(1, HOURS)), min_size=2, max_size=6),
)
def test_nothing_that_is_given_delays_the_reserved_start(
    gpus: list[int], busy: list[int], wishes: list[tuple[int, int]]
) -> None:
    fleet = booked(a_pool(H100, gpus, busy))
    ordered = [
        waits(n, ask=an_ask(H100, code), length=hours * HOUR, models=frozenset({H100, A100}))
        for n, (code, hours) in enumerate(wishes)
    ]
    decision = decide(fleet, ordered, DAWN, place)
    assert Counter(given_to(decision)) + Counter(list(why(decision))) == Counter(range(len(wishes)))
    for one in decision.given:
        assert candidates(fleet, one.ask, one.period, now=DAWN)
        fleet = supposing(fleet, one.candidates[0].picks, one.period, one.waiting.whose)
    if decision.reserved is not None:
        assert candidates(fleet, decision.reserved.ask, decision.reserved.period, now=DAWN)


# --- Starvation is bounded ----------------------------------------------------------


def began(hours: int, *, counted: bool) -> tuple[int | None, int]:
    """Small asks of higher priority without end, against a large one for all four GPUs.

    In which hour the large one began (None: in none), and how often it was passed.
    """
    fleet, number = booked(busy_until(0, 0, 0, 0)), 0
    large = waits(0, B, 4, priority=10, since=DAWN, window=Period(DAWN, None), length=2 * HOUR)
    waiting = [large]
    for hour in range(hours):
        now = at(hour)
        while len(waiting) < 6:
            number += 1
            since = {"since": now, "window": Period(now, None)}
            waiting.append(waits(number, priority=90, length=3 * HOUR, **since))
        decision = decide(fleet, line(waiting, {}, {}, now), now, in_earnest)
        for one in decision.given:
            fleet = supposing(fleet, one.candidates[0].picks, one.period, one.waiting.whose)
            if one.waiting.id == large.id:
                return hour, large.passes
            large = replace(large, passes=large.passes + (counted and large.id in one.passed))
        left = [one.waiting for one in decision.left if one.waiting.id != large.id]
        waiting = [large, *left]
    return None, large.passes


def in_earnest(
    fleet: Fleet, one: Waiting, ask: Ask, period: Period, given: Sequence[Given]
) -> Sequence[Candidate] | str:
    return candidates(fleet, ask, period, now=period.start) or "no_room"


def test_without_a_bound_a_large_ask_would_starve() -> None:
    assert began(40, counted=False) == (None, 0)


def test_a_large_ask_begins_soon_after_it_was_passed_often_enough() -> None:
    hour, passes = began(40, counted=True)
    assert hour is not None
    assert MOST_PASSES <= passes <= MOST_PASSES + 4


def test_a_large_ask_begins_soon_after_it_has_waited_long_enough() -> None:
    hour, _ = began(60, counted=False)
    longest = LONGEST_WAIT // HOUR
    assert hour is not None
    # The last that passed it may have begun just before, and runs for three hours.
    assert longest <= hour <= longest + 3
