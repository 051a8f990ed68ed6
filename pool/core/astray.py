"""Work that lies within its own team's guarantee, but where another team's has its only place.

It was borrowed when it was placed, so it might stand in the way, and came inside since, because other work
of its team was given back. A guarantee is an amount in its unit, not a place: when nothing else makes
room for whom the place is guaranteed to, such work may have to go (reclaim). It is told so like any
victim, waits at the head of the wait list, and gets its amount again within the recall time. What is
firm or online never goes, and neither does what could be placed where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import numpy as np

from pool.core import promises
from pool.core.borrowers import inside
from pool.core.fleet import Fleet, Ints
from pool.core.fleet_rows import halves, instant, micros
from pool.core.guarantee_states import held_as
from pool.core.guarantees import Claims, Guarantees, Takeable
from pool.core.period import Period
from pool.core.reclaim import Borrower
from pool.core.standing import Standing


def perhaps(
    fleet: Fleet,
    standing: Standing,
    team: int,
    period: Period,
    now: datetime,
    spared: Collection[UUID] = (),
) -> list[Borrower]:
    """Who of other teams might be astray: nobody as long as all guarantees have their place."""
    claims = promises.unused(standing, period)
    if not Guarantees(fleet, period, now, claims, promises.takeable(standing, period)).lack():
        return []
    return inside(fleet, standing, team, period, now, spared)


class Left(NamedTuple):
    """The pool without those who leave: the fleet, and where teams stand then."""

    fleet: Fleet
    standing: Standing


def astray(
    fleet: Fleet, left: Left, who: Sequence[Borrower], period: Period, now: datetime
) -> tuple[bool, ...]:
    """Which of these, all of whom leave, may not be put back where they are in `fleet` when all have left.

    By what other teams are guaranteed in that part of `period` in which they are there (guarantees).
    """
    claims = promises.unused(left.standing, period)
    takeable = promises.takeable(left.standing, period)
    look = _Look(fleet, left, claims, takeable, period, now)
    return tuple(any(look.is_wrong(one.team, link) for link in one.links) for one in who)


class _Look(NamedTuple):
    fleet: Fleet
    left: Left
    claims: Claims
    takeable: Takeable
    period: Period
    now: datetime

    def is_wrong(self, team: int, reservation: UUID) -> bool:
        rows = self._rows(reservation)
        on = self.fleet.on
        start = max(micros(self.period.start), int(on.start[rows].min(initial=micros(self.period.end))))
        end = min(micros(self.period.end), int(on.end[rows].max(initial=0)))
        if start >= end:
            return False
        others, own = self.claims.but(team), self.claims.of_team(team)
        first = instant(start)
        assert first is not None
        there = Period(first, instant(end))
        found = Guarantees(self.left.fleet, there, self.now, others, self.takeable, own)
        return not found.allow_held(held_as(self.fleet, rows, start, end))

    def _rows(self, reservation: UUID) -> Ints:
        known = self.fleet.on.field("reservation", slice(None))
        return np.flatnonzero((known == halves(reservation)).all(axis=1))
