"""Step functions against sums taken hour by hour."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import stairs
from pool.core.fleet_rows import NEVER
from pool.core.stairs import Events

#: Group, channel, amount, since, until.
Use = tuple[int, int, int, int, int]
GROUPS, CHANNELS, START, END = 3, 2, 2, 10


def drawn(seed: int) -> list[Use]:
    dice = random.Random(seed)
    uses = []
    for _ in range(dice.randint(0, 12)):
        since = dice.randint(-3, END - 1)
        until = max(since, START) + dice.randint(1, 12)
        uses.append((dice.randrange(GROUPS), dice.randrange(CHANNELS), dice.randint(1, 9), since, until))
    return uses


def events_of(uses: list[Use]) -> Events:
    columns = np.array(uses, dtype=np.int64).reshape(-1, 5).T
    return stairs.events(*columns, (START, END), (GROUPS, CHANNELS))


def level(uses: list[Use], group: int, hour: int) -> list[int]:
    return [
        sum(u[2] for u in uses if (u[0], u[1]) == (group, channel) and u[3] <= hour < u[4])
        for channel in range(CHANNELS)
    ]


def at(found: stairs.Stairs, group: int, hour: int) -> list[int]:
    which = np.flatnonzero((found.group == group) & (found.time <= hour))
    return found.level[which[-1]].tolist()


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_levels_are_the_sums_at_every_instant(seed: int) -> None:
    uses = drawn(seed)
    found = stairs.stairs(events_of(uses), START, np.array([5, 7], dtype=np.int64))
    for group in range(GROUPS):
        assert {START, 5, 7} <= set(found.time[found.group == group].tolist())
        for hour in range(START, END):
            assert at(found, group, hour) == level(uses, group, hour)


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_changed_levels_regrouped_are_the_sums_of_what_they_were_changed_to(seed: int) -> None:
    """As guarantees are: each group's level is cut first, then those of two groups are summed."""
    uses = drawn(seed)
    found = stairs.stairs(events_of(uses), START)
    cut = found.changes(np.minimum(found.level, 7), GROUPS)
    both = stairs.stairs(stairs.regrouped(cut, np.array([0, 0, -1]), 1), START)
    twice = stairs.stairs(stairs.merged([stairs.regrouped(cut, np.array([0, 0, -1]), 1)] * 2), START)
    for hour in range(START, END):
        cuts = [[min(7, n) for n in level(uses, group, hour)] for group in (0, 1)]
        expected = [one + other for one, other in zip(*cuts, strict=True)]
        assert at(both, 0, hour) == expected
        assert at(twice, 0, hour) == [2 * n for n in expected]


def test_what_ends_is_gone_before_what_starts_counts() -> None:
    found = stairs.stairs(events_of([(0, 0, 5, 0, 4), (0, 0, 5, 4, 8)]), START)
    assert found.level[found.group == 0][:, 0].max() == 5


def test_what_has_no_end_stays() -> None:
    never = stairs.events(
        *np.array([[0, 0, 5, 3, NEVER]], dtype=np.int64).T, within=(START, NEVER), shape=(1, 1)
    )
    assert stairs.stairs(never, START).level[:, 0].tolist() == [0, 5]


def test_times_that_are_far_apart_sort_as_well() -> None:
    far = np.array([[1, 0, 5, 3, 2**62], [0, 0, 7, 4, 2**62 + 1]], dtype=np.int64).T
    found = stairs.stairs(stairs.events(*far, within=(START, NEVER), shape=(2, 1)), START)
    assert found.group.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.level[:, 0].tolist() == [0, 7, 0, 0, 5, 0]
