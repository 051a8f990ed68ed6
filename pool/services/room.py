"""Room for a booking at other times than its own: where it is looked for, and what is said without any.

Nothing is locked or written. One search for the pages, the offers and the refusal of a booking, so
that all of them name the same first time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core import offers, placement, smaller
from pool.core.errors import Refusal
from pool.core.offers import Placed
from pool.core.period import Period
from pool.core.shapes import Ask, ask_json
from pool.queries import offers as queries
from pool.queries import snapshot
from pool.queries.snapshot import Snapshot
from pool.services import plans, reclaim, spending, thresholds, wishes
from pool.services.plans import NoRoom, Wanted

if TYPE_CHECKING:
    from pool.models import Pool

#: How far behind its start the first time that fits is looked for.
AHEAD = timedelta(days=60)


def reading(wanted: Wanted, pool: Pool, team_id: int, window: Period, now: datetime) -> Snapshot:
    """The pool over the whole window, with the time for scrubbing after it."""
    return snapshot.take(pool.pk, wishes.blocked(window, pool), team_id=team_id, now=now)


def search(snap: Snapshot, wanted: Wanted, pool: Pool, window: Period) -> offers.Search:
    """Starts for `wanted` within the window of which `snap` is: each is placed as a booking would be."""
    blocked = wishes.blocked(window, pool)
    team_id = wanted.team_id
    assert team_id is not None
    what = (wanted.ask, wanted.blocked, blocked, wanted.klass, wanted.account)
    sought = queries.Sought(*what, team_id, wanted.firm)
    purse = spending.Purse(pool, team_id, snap.standing)

    def place(blocked: Period, free_until: datetime | None) -> Placed | None:
        asked = at(wanted, blocked, pool, free_until)
        try:
            plan = plans.choose(snap, asked)[0]
            purse.check(plan.picks, asked.period)
            thresholds.check(pool, plans.charged(plan), asked.period, team_id=team_id, now=snap.now)
        except (NoRoom, Refusal):
            return None
        return Placed(plan.picks, plan.cost, plan.borrowed)

    return queries.search(snap, sought, place)


def at(wanted: Wanted, blocked: Period, pool: Pool, free_until: datetime | None = None) -> Wanted:
    """The same at another time, for which GPUs are `blocked`."""
    assert blocked.end is not None
    end = blocked.end - timedelta(seconds=pool.scrub_seconds)
    return replace(wanted, period=Period(blocked.start, end), blocked=blocked, free_until=free_until)


def refusal(snap: Snapshot, wanted: Wanted, pool: Pool, *, team_id: int, reclaims: bool = True) -> Refusal:
    """NO_CAPACITY with the numbers of this reading, the first later time, and the largest that fits instead.

    `first_time`: within 60 days, when a booking would be granted, quota and all; None where the pool
    could not hold it even when empty. `largest` is an ask for the same time, whatever the quota says.
    `reclaim`: when a booking (not a hold) would start that takes back what its team lent, and from how
    many; not thought about where that was just done in vain (`reclaims` False).
    Outside of any transaction and turn: it may take tens of milliseconds.
    """
    told = plans.no_capacity(snap, wanted, None)
    instead = smaller.largest(snap.fleet, wanted.ask, lambda ask: _free(snap, wanted, ask))
    told.data["largest"] = None if instead is None else ask_json(instead)
    if told.data["offered"] >= told.data["asked"]:
        first = _first_time(wanted, pool, team_id, snap.now)
        told.data["first_time"] = first.isoformat() if first else None
    found = reclaim.think(pool, wanted, snap.now, without=snap.without) if reclaims else None
    if found is not None and not thresholds.needs(pool, plans.charged(found.plans[0])):
        start = found.wanted.period.start.isoformat()
        told.data["reclaim"] = {"start": start, "bookings": len(found.victims)}
    return told


def _first_time(wanted: Wanted, pool: Pool, team_id: int, now: datetime) -> datetime | None:
    start, lasts = wanted.period.start, wanted.period.duration
    later = Period(start, start + max(AHEAD, lasts or AHEAD))
    return offers.soonest(search(reading(wanted, pool, team_id, later, now), wanted, pool, later))


def _free(snap: Snapshot, wanted: Wanted, ask: Ask) -> int:
    """How many of this ask could be had instead, whatever the quota says."""
    short = placement.shortfall(
        snap.fleet, ask, wanted.blocked, account=wanted.account, now=snap.now, without=snap.without
    )
    return short.free
