"""Fair share: how much of a pool each team should have now, by what it deserves, its weight and its past use.

Deserved first, whatever the priority; then the rest by priority level and by weight within it, in
whole units, by largest remainder and then age. Nobody is evicted by it: it orders what waits
(waitline), and is shown next to the quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.core.fleet import Ints


@dataclass(frozen=True, slots=True)
class Demand:
    """What a team has or waits for at one priority: `milli`, the oldest since then."""

    team: int
    milli: int
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Claimant:
    """A team's standing in a pool: what it deserves (guaranteed), its weight, its past use (`used_part`, 0..1)."""

    team: int
    deserved_milli: int
    weight: int = 1
    used_part: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """A team's fair share now: `deserved` of it is its due, `beyond` its part of the rest. `weight` is
    what counted after past use, as a part of all (0..1)."""

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
    """Past use as a part of the pool (0..1): an hour that ended one half-life ago counts half, two a quarter.

    Microseconds; what lies after `now` does not count. Who has had all of the pool for ever has 1.
    """
    raise NotImplementedError


def weights(claimants: Sequence[Claimant], k: float = 1.0) -> dict[int, float]:
    """team -> max(0, w + k (w - used)), where w and used are parts of 1; if all are 0 (nobody has
    a claim left), w."""
    raise NotImplementedError


def shares(
    capacity: int,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    *,
    unit: int = 1000,
    k: float = 1.0,
) -> Mapping[int, Share]:
    """The fair share of each claimant, in milli; never more than it demands, all together never more
    than `capacity`."""
    raise NotImplementedError
