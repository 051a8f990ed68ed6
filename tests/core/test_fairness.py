"""Fair share with the numbers written out, and what holds whatever is asked for."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.fairness import Claimant, Demand, shares, used_part, weights
from pool.core.fleet_rows import micros
from tests.core.worlds import DAWN, at

A, B, C = 1, 2, 3


def wants(team: int, gpus: float, priority: int = 50, hour: float = 0) -> Demand:
    return Demand(team, int(gpus * 1000), priority, at(hour))


def fair(capacity: int, claimants: list[Claimant], demands: list[Demand]) -> dict[int, tuple[int, int]]:
    """team -> (deserved, beyond) in milli."""
    told = shares(capacity * 1000, claimants, demands)
    return {team: (one.deserved, one.beyond) for team, one in told.items()}


# --- Numbers written out -----------------------------------------------------------


def test_deserved_comes_first_and_the_rest_goes_by_weight() -> None:
    claimants = [Claimant(A, 2000), Claimant(B, 4000), Claimant(C, 0, weight=2)]
    told = fair(10, claimants, [wants(A, 6), wants(B, 5), wants(C, 8)])
    # 10 - 2 - 4 = 4 are left, and go 1 : 1 : 2.
    assert told == {A: (2000, 1000), B: (4000, 1000), C: (0, 2000)}


def test_what_is_deserved_does_not_look_at_priority_but_the_rest_does() -> None:
    claimants = [Claimant(A, 2000), Claimant(B, 0)]
    told = fair(4, claimants, [wants(A, 4, priority=10), wants(B, 3, priority=90)])
    assert told == {A: (2000, 0), B: (0, 2000)}


def test_what_somebody_does_not_want_goes_to_the_others() -> None:
    claimants = [Claimant(A, 5000), Claimant(B, 0), Claimant(C, 0)]
    told = fair(9, claimants, [wants(A, 1), wants(B, 2), wants(C, 9)])
    # 4 for each of B and C; B wants only 2.
    assert told == {A: (1000, 0), B: (0, 2000), C: (0, 6000)}


def test_whole_units_go_by_largest_remainder_and_then_to_the_oldest() -> None:
    # 4 of weight 3 : 2 : 2 are 1.71, 1.14 and 1.14: one each, and the one left over to A.
    by_weight = [Claimant(A, 0, weight=3), Claimant(B, 0, weight=2), Claimant(C, 0, weight=2)]
    assert fair(4, by_weight, [wants(team, 9) for team in (A, B, C)]) == {
        A: (0, 2000),
        B: (0, 1000),
        C: (0, 1000),
    }
    # 4 among three alike are 1.33 each: the one left over goes to who waits longest.
    alike = [Claimant(A, 0), Claimant(B, 0), Claimant(C, 0)]
    aged = [wants(A, 9, hour=3), wants(B, 9, hour=1), wants(C, 9, hour=2)]
    assert fair(4, alike, aged) == {A: (0, 1000), B: (0, 2000), C: (0, 1000)}


def test_less_than_a_unit_is_given_only_to_who_wants_no_more() -> None:
    claimants = [Claimant(A, 0), Claimant(B, 0)]
    told = shares(1500, claimants, [wants(A, 0.25), wants(B, 3)])
    assert (told[A].milli, told[B].milli) == (250, 1000)


def test_where_more_is_promised_than_there_is_everybody_gets_less_in_proportion() -> None:
    claimants = [Claimant(A, 6000), Claimant(B, 3000), Claimant(C, 0)]
    told = fair(6, claimants, [wants(team, 9, priority=team) for team in (A, B, C)])
    assert told == {A: (4000, 0), B: (2000, 0), C: (0, 0)}


def test_past_use_counts_half_after_one_half_life() -> None:
    day = timedelta(days=1)
    half = {"now": DAWN, "half_life": day, "capacity": 10_000}

    def used(since_days: float, until_days: float, milli: int) -> float:
        times = (np.array([micros(DAWN - since_days * day)]), np.array([micros(DAWN - until_days * day)]))
        return used_part(*times, np.array([milli]), **half)  # type: ignore[arg-type]

    # All of the pool for the last day is half of all that counts; the day before a quarter.
    assert used(1, 0, 10_000) == pytest.approx(0.5)
    assert used(2, 1, 10_000) == pytest.approx(0.25)
    assert used(1, 0, 5_000) == pytest.approx(0.25)
    assert used(10_000, 0, 10_000) == pytest.approx(1.0)
    # What is booked for later was not used yet.
    assert used(1, -5, 10_000) == pytest.approx(0.5)
    assert used(-1, -5, 10_000) == 0.0


def test_who_has_used_more_than_its_weight_gets_less_of_the_rest() -> None:
    claimants = [Claimant(A, 0, used_part=0.6), Claimant(B, 0, used_part=0.1)]
    # 0.5 + (0.5 - 0.6) = 0.4 and 0.5 + (0.5 - 0.1) = 0.9.
    assert weights(claimants) == pytest.approx({A: 0.4, B: 0.9})
    told = fair(13, claimants, [wants(A, 20), wants(B, 20)])
    assert told == {A: (0, 4000), B: (0, 9000)}


def test_past_use_takes_nothing_of_what_is_deserved() -> None:
    claimants = [Claimant(A, 4000, used_part=1.0), Claimant(B, 0)]
    assert fair(6, claimants, [wants(A, 6), wants(B, 6)]) == {A: (4000, 0), B: (0, 2000)}


def test_when_everybody_has_used_too_much_the_plain_weights_count() -> None:
    claimants = [Claimant(A, 0, weight=3, used_part=3.0), Claimant(B, 0, used_part=3.0)]
    assert weights(claimants) == {A: 0.75, B: 0.25}


def test_a_pool_without_capacity_or_teams_has_nothing_to_share() -> None:
    assert shares(0, [], []) == {}
    assert fair(0, [Claimant(A, 1000)], [wants(A, 1)]) == {A: (0, 0)}
    nothing = np.zeros(0, dtype=np.int64)
    assert used_part(nothing, nothing, nothing, now=DAWN, half_life=timedelta(days=1), capacity=0) == 0.0


# --- What always holds ---------------------------------------------------------------

teams = st.integers(1, 5)


@given(
    st.integers(0, 20_000),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 4), st.floats(0, 1)), min_size=1, max_size=5),
    st.lists(
        st.tuples(teams, st.integers(0, 7000), st.sampled_from([10, 50]), st.integers(0, 7)), max_size=9
    ),
)
def test_nobody_gets_more_than_wanted_and_nothing_that_is_wanted_is_kept_back(
    capacity: int, stand: list[tuple[int, int, float]], asked: list[tuple[int, int, int, int]]
) -> None:
    claimants = [Claimant(n + 1, due, weight, used) for n, (due, weight, used) in enumerate(stand)]
    demands = [Demand(team, milli, priority, at(hour)) for team, milli, priority, hour in asked]
    told = shares(capacity, claimants, demands)
    wanted = {one.team: sum(d.milli for d in demands if d.team == one.team) for one in claimants}
    assert sum(share.milli for share in told.values()) <= capacity
    for one in claimants:
        assert 0 <= told[one.team].milli <= wanted[one.team]
        assert told[one.team].deserved <= one.deserved_milli
    if sum(min(one.deserved_milli, wanted[one.team]) for one in claimants) <= capacity:
        assert all(told[one.team].deserved == min(one.deserved_milli, wanted[one.team]) for one in claimants)
    left = capacity - sum(share.milli for share in told.values())
    still = [
        one for one in claimants if told[one.team].milli < wanted[one.team] and told[one.team].weight > 0
    ]
    assert left < 1000 or not still
