"""Fair share: how much of a pool each team should have now, by what it deserves, its weight and its past use.

Deserved first, whatever the priority; then the rest by priority level and by weight within it, in
whole units, by largest remainder and then age. Nobody is evicted by it: it orders what waits
(waitline), and is shown next to the quota. The rules are those of KAI-Scheduler's queues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from pool.core.fleet_rows import Ints, micros
from pool.core.quota import WHOLE

#: Shares of equal size are not told apart by rounding errors.
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """What a team has or waits for at one priority, in milli; `since` is its oldest."""

    team: int
    milli: int
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Claimant:
    """A team in a pool: what it deserves (its guaranteed), its weight, its past use as a part of the pool."""

    team: int
    deserved_milli: int
    weight: int = 1
    used_part: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """A team's fair share now, in milli: `deserved` is its due, `beyond` its part of the rest.

    `weight` is what counted for that after past use (`weights`).
    """

    team: int
    deserved: int
    beyond: int
    weight: float

    @property
    def milli(self) -> int:
        return self.deserved + self.beyond


def used_part(
    since: Ints, until: Ints, milli: Ints, *, now: datetime, half_life: timedelta, capacity: int
) -> float:
    """Past use as a part of the pool (0..1): what was an hour ago counts more than what was a week ago.

    An instant counts half after one half-life, a quarter after two. Times are in microseconds,
    and what lies after `now` does not count. Who has always had all of the pool has 1.
    """
    if capacity <= 0:
        return 0.0
    at, half = micros(now), half_life / timedelta(microseconds=1)
    until = np.minimum(until, at)
    # The integral of the weight of each instant, over that of all time.
    held = 0.5 ** ((at - until) / half) - 0.5 ** ((at - np.minimum(since, until)) / half)
    return float((held * milli).sum() / capacity)


def weights(claimants: Sequence[Claimant], k: float = 1.0) -> dict[int, float]:
    """team -> max(0, w + k (w - used)), where w is its weight as a part of all weights.

    Who has used as much as its weight says keeps it. When nobody is left with anything, w.
    """
    total = sum(one.weight for one in claimants)
    plain = {one.team: one.weight / total if total else 0.0 for one in claimants}
    after = {one.team: max(0.0, plain[one.team] + k * (plain[one.team] - one.used_part)) for one in claimants}
    return after if any(after.values()) else plain


def shares(
    capacity: int,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    *,
    unit: int = WHOLE,
    k: float = 1.0,
) -> Mapping[int, Share]:
    """The fair share of each claimant, in milli; never more than it demands, nor together than `capacity`.

    Demands of teams that are no claimants do not count. Of the rest only whole units are
    given, or what a team still wants if that is less; what is left of `capacity` then is nobody's.
    """
    weight = weights(claimants, k)
    wants = _Wants(claimants, demands)
    due = {one.team: min(one.deserved_milli, wants.of(one.team)) for one in claimants}
    deserved = due
    if sum(due.values()) > capacity:
        # More is promised than there is: everybody gets less in proportion.
        deserved = _divided(
            capacity, due, {team: float(milli) for team, milli in due.items()}, wants.age, unit
        )
    for team, milli in deserved.items():
        wants.serve(team, milli)
    rest = capacity - sum(deserved.values())
    beyond: dict[int, int] = defaultdict(int)
    for priority in wants.levels:
        given = _divided(rest, wants.at(priority), weight, wants.age, unit)
        rest -= sum(given.values())
        for team, milli in given.items():
            beyond[team] += milli
    return {
        one.team: Share(one.team, deserved[one.team], beyond[one.team], weight[one.team]) for one in claimants
    }


class _Wants:
    """What each team still wants at each priority, and since when."""

    def __init__(self, claimants: Sequence[Claimant], demands: Sequence[Demand]) -> None:
        known = {one.team for one in claimants}
        self._by_level: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.age: dict[int, datetime] = {}
        for one in demands:
            if one.team in known and one.milli > 0:
                self._by_level[one.priority][one.team] += one.milli
                self.age[one.team] = min(one.since, self.age.get(one.team, one.since))
        self.levels = sorted(self._by_level, reverse=True)

    def at(self, priority: int) -> dict[int, int]:
        return {team: milli for team, milli in self._by_level[priority].items() if milli}

    def of(self, team: int) -> int:
        return sum(level.get(team, 0) for level in self._by_level.values())

    def serve(self, team: int, milli: int) -> None:
        """It has so much; its most urgent wishes are served first."""
        for priority in self.levels:
            level = self._by_level[priority]
            taken = min(milli, level.get(team, 0))
            if taken:
                level[team] -= taken
                milli -= taken


def _divided(
    amount: int,
    wanted: Mapping[int, int],
    weight: Mapping[int, float],
    age: Mapping[int, datetime],
    unit: int,
) -> dict[int, int]:
    """So much by weight, nobody more than wanted; in whole units by largest remainder, then age."""
    exact = _by_weight(amount, wanted, weight)
    given = {
        team: want if exact[team] >= want - _TINY else int((exact[team] + _TINY) // unit) * unit
        for team, want in wanted.items()
    }
    left = amount - sum(given.values())
    order = sorted(
        (team for team in wanted if weight.get(team, 0.0) > 0),
        key=lambda team: (-round((exact[team] - given[team]) / unit, 6), age[team], team),
    )
    moved = True
    while moved:
        moved = False
        for team in order:
            more = min(unit, wanted[team] - given[team])
            if 0 < more <= left:
                given[team] += more
                left -= more
                moved = True
    return given


def _by_weight(amount: int, wanted: Mapping[int, int], weight: Mapping[int, float]) -> dict[int, float]:
    """Parts in proportion to the weights; what is more than somebody wants goes to the others."""
    exact = dict.fromkeys(wanted, 0.0)
    open_, left = {team for team in wanted if weight.get(team, 0.0) > 0}, float(amount)
    while open_ and left > 0:
        total = sum(weight[team] for team in open_)
        enough = {team for team in open_ if wanted[team] <= left * weight[team] / total + _TINY}
        if not enough:
            return exact | {team: left * weight[team] / total for team in open_}
        for team in enough:
            exact[team] = float(wanted[team])
        left -= sum(wanted[team] for team in enough)
        open_ -= enough
    return exact
