"""The wait list as it stands: who would get what now, and for the rest why they wait and until when about.

Read and decided without a lock (core.waitline); what is given is confirmed in waiting.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from pool.core import standing as stands
from pool.core import waitline
from pool.core.asks import Ask
from pool.core.errors import Refusal
from pool.core.fairness import Demand, Share
from pool.core.fleet import Fleet
from pool.core.period import Period
from pool.core.placement import Candidate
from pool.core.waitline import ESTIMATED, Decision, Given, Waiting
from pool.models import Pool, Reservation
from pool.queries import fairness, fleets, mixes, snapshot, standing
from pool.queries import waiting as queries
from pool.queries.snapshot import Snapshot
from pool.services import payable, plans, wishes
from pool.services.plans import NoRoom, Plan

__all__ = ["ESTIMATED", "Lineup", "Place", "decide", "places", "places_of"]

#: How long the places in a line are kept while nothing changes.
KEPT = timedelta(minutes=1)
_INSTANT = timedelta(microseconds=1)
_places: dict[int, tuple[tuple[int, int], Mapping[UUID, Place]]] = {}


@dataclass(frozen=True, eq=False)
class Lineup:
    """The decision at the pool's change number `change`; `plans` are what `decision.given` may get."""

    change: int
    rows: Mapping[UUID, Reservation]
    ordered: Sequence[Waiting]
    decision: Decision
    #: By reservation and picks: what a candidate was made of.
    plans: Mapping[tuple[UUID, Candidate], Plan]


@dataclass(frozen=True, slots=True)
class Place:
    """One that waits: `position` 1 is the first of `of`; `why` is waitline's word (Left).

    `starts` is when it could begin if nobody extends; None: not known.
    """

    position: int
    of: int
    why: str
    starts: datetime | None


def decide(
    pool: Pool, now: datetime, *, rows: Sequence[Reservation] | None = None, estimates: int = 0
) -> Lineup | None:
    """Who gets something now; None while nobody waits. `rows`: those who are looked at, None: all.

    `estimates`: for so many it is said when.
    """
    rows = list(queries.line(pool.pk)) if rows is None else rows
    if not rows:
        return None
    fleet = fleets.current(pool.pk)
    ordered = _ordered(pool, rows, fleet, now)
    placing = _Placing(pool, {row.pk: row for row in rows}, ordered, now)
    decision = waitline.decide(fleet, ordered, now, placing.place, estimates=estimates)
    return Lineup(fleet.change, placing.rows, ordered, decision, placing.plans)


def places(pool: Pool, now: datetime) -> Mapping[UUID, Place]:
    """Where each of those who wait stands; what comes next is at its place, too.

    Kept for a minute, as long as the pool stays as it is: many look, and each look takes a search.
    """
    change = snapshot.change_of(pool.pk)
    key = change, int(now.timestamp() // KEPT.total_seconds())
    known = _places.get(pool.pk)
    if known is None or known[0] != key:
        lineup = decide(pool, now, estimates=ESTIMATED)
        known = _places[pool.pk] = key, places_of(lineup) if lineup else {}
    return known[1]


def places_of(lineup: Lineup) -> Mapping[UUID, Place]:
    """The same of a decision."""
    of = len(lineup.ordered)
    position = {one.id: number for number, one in enumerate(lineup.ordered, 1)}
    found = {
        left.waiting.id: Place(position[left.waiting.id], of, left.why, left.starts)
        for left in lineup.decision.left
    }
    for given in lineup.decision.given:
        pk = given.waiting.id
        found[pk] = Place(position[pk], of, "next", given.period.start)
    return found


def _ordered(pool: Pool, rows: Sequence[Reservation], fleet: Fleet, now: datetime) -> list[Waiting]:
    """In the order of the line. Of one team alone the fair share says nothing."""
    where = standing.of(pool.pk, fleet, Period(now, now + _INSTANT))
    waiting = queries.read(rows, fleet, where, now, wishes.account)
    in_use = {team: share.used for team, share in stands.shares(where, now).items()}
    shares: Mapping[int, Share] = {}
    if len({one.team for one in waiting}) > 1:
        demands = [Demand(one.team, one.milli, one.priority, one.since) for one in waiting]
        shares = fairness.now(pool, where, demands, now)
    return queries.with_guarantees(waitline.line(waiting, shares, in_use, now), where, now)


class _Placing:
    """What could be had on a fleet by one that waits, as a booking would be decided there."""

    def __init__(
        self, pool: Pool, rows: Mapping[UUID, Reservation], waiting: Sequence[Waiting], now: datetime
    ) -> None:
        self.pool, self.rows, self.waiting, self.now = pool, rows, waiting, now
        self.policy = mixes.policy(pool.pk)
        self.plans: dict[tuple[UUID, Candidate], Plan] = {}

    def place(
        self, fleet: Fleet, one: Waiting, ask: Ask, period: Period, given: Sequence[Given]
    ) -> Sequence[Candidate] | str:
        """The candidates, best first, or the word why there are none."""
        wanted = replace(wishes.again(self.rows[one.id], self.pool, period), ask=ask)
        done = {one.id, *(other.waiting.id for other in given)}
        try:
            found = plans.choose(self._snapshot(fleet, wanted, done), wanted)
            found = payable.payable(self.pool, self.rows[one.id].team_id, found, wanted.period)
        except NoRoom:
            return "no_room"
        except Refusal as refusal:
            return str(refusal.data.get("reason") or refusal.code.value)
        candidates = [Candidate(plan.picks, plan.why) for plan in found]
        self.plans |= {(one.id, candidate): plan for candidate, plan in zip(candidates, found, strict=True)}
        return candidates

    def _snapshot(self, fleet: Fleet, wanted: plans.Wanted, but: Collection[UUID]) -> Snapshot:
        others = [other for other in self.waiting if other.id not in but]
        return Snapshot(
            fleet=fleet,
            period=wanted.blocked,
            now=self.now,
            window=fleet.window(wanted.blocked, self.now),
            whole=fleet,
            standing=standing.of(self.pool.pk, fleet, wanted.blocked),
            policy=self.policy,
            stopped=waitline.no_borrowing(others, self.now),
        )
