"""Claims over time: how much of each unit they come to, at instants and in stretches of time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pool.core.fleet import Ints, micros, of_views
from pool.core.guarantee_claims import Claim, Claims, most_at_once, most_needed, need
from pool.core.guarantee_counts import Need
from pool.core.period import Period
from tests.core.worlds import at, gpu, span

H100, A100 = "H100-80GB", "A100-40GB"
FLEET = of_views([gpu(0, H100), gpu(1, A100)])
MODELS = len(FLEET.models)


def told(claims: list[Claim], *hours: float) -> Need:
    return need(Claims.of(FLEET, claims), MODELS, np.array([micros(at(hour)) for hour in hours]))


def test_claims_come_and_go_and_add_up_by_model_with_any_as_the_last() -> None:
    both = [Claim(1, H100, 2000, span(0, 2), "gpu"), Claim(2, None, 500, span(1, 3))]
    found = told(both, 0, 1, 2, 3)
    number = FLEET.models.index(H100)
    assert found.gpus[:, number].tolist() == [2, 2, 0, 0]
    assert found.slots[:, MODELS].tolist() == [0, 500, 500, 0]


def test_what_is_no_whole_unit_is_claimed_in_the_next_smaller_one() -> None:
    found = told([Claim(1, None, 11_250, span(0, 1), "node", 4)], 0)
    assert found.sizes == (4,)
    assert (found.groups[0, MODELS].tolist(), found.gpus[0, MODELS], found.slots[0, MODELS]) == ([2], 3, 250)
    # Groups of one are single GPUs.
    one = told([Claim(1, None, 2000, span(0, 1), "node", 1)], 0)
    assert (one.sizes, one.gpus[0, MODELS]) == ((), 2)


def test_those_of_one_team_can_be_told_from_the_others() -> None:
    claims = Claims.of(FLEET, [Claim(1, None, 1000, span(0, 1)), Claim(2, None, 2000, span(2, 3))])
    assert claims.but(1).milli.tolist() == [2000]
    assert claims.of_team(1).milli.tolist() == [1000]
    assert claims.within(micros(at(1)), micros(at(2))).milli.tolist() == []


#: (team, model, unit and size, steps: what is claimed in each hour from 0 on).
lines = st.lists(
    st.tuples(
        st.sampled_from([H100, A100, None]),
        st.sampled_from([("slots", 1), ("gpu", 1), ("node", 2)]),
        st.lists(st.sampled_from([0, 250, 1000, 2000, 4500]), min_size=4, max_size=4),
    ),
    max_size=4,
)


def steps(drawn: list[tuple[str | None, tuple[str, int], list[int]]]) -> list[Claim]:
    """The last of each line has no end."""
    return [
        Claim(team, model, milli, Period(at(hour), None if hour == 3 else at(hour + 1)), *unit)
        for team, (model, unit, amounts) in enumerate(drawn)
        for hour, milli in enumerate(amounts)
    ]


def flat(needed: Need) -> Ints:
    return np.concatenate([needed.groups.reshape(len(needed.gpus), -1), needed.gpus, needed.slots], axis=1)


@given(lines)
def test_the_most_at_once_is_the_most_of_all_instants(
    drawn: list[tuple[str | None, tuple[str, int], list[int]]],
) -> None:
    claims = Claims.of(FLEET, steps(drawn))
    every = need(claims, MODELS, np.array([micros(at(hour)) for hour in range(4)]))
    assert flat(most_at_once(claims, MODELS)).tolist() == [flat(every).max(axis=0).tolist()]


@given(lines, st.sets(st.integers(1, 3)))
def test_a_stretch_needs_no_less_than_any_of_its_instants_and_at_its_beginning_no_more(
    drawn: list[tuple[str | None, tuple[str, int], list[int]]], inner: set[int]
) -> None:
    claims = Claims.of(FLEET, steps(drawn))
    hours = np.array([micros(at(hour)) for hour in range(4)])
    edges = np.array([micros(at(hour)) for hour in sorted({0, *inner})])
    every, most = flat(need(claims, MODELS, hours)), flat(most_needed(claims, MODELS, edges))
    stretch = np.searchsorted(edges, hours, side="right") - 1
    assert (most[stretch] >= every).all()
    if len(edges) == 4:
        assert (most == every).all()
