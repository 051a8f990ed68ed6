"""Offers: good starts for an ask within a window, found on one reading; nothing is locked or written.

What is offered can be held (holds.py) or booked as long as the pool stays as it
was. What makes a start good: core/offers.py.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core import moves, offers, placement, smaller
from pool.core.errors import Code, Refusal, invalid
from pool.core.moves import Shift
from pool.core.offers import Offer, Placed
from pool.core.period import Period
from pool.core.shapes import Ask, Class, ask_json
from pool.queries import offers as queries
from pool.queries import snapshot
from pool.queries.moves import movable
from pool.queries.snapshot import Snapshot
from pool.services import plans, wishes
from pool.services.plans import NoRoom, Wanted
from pool.services.wishes import Asked, Wish

if TYPE_CHECKING:
    from pool.models import Pool, User

#: Where no end of the window is said.
WINDOW = timedelta(days=14)
LONGEST_WINDOW = timedelta(days=31)
#: How far behind the window the first time that fits is looked for.
AHEAD = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class Found:
    """Offers by their start; their periods are those of a booking, without the time for scrubbing.

    `refusal`: what a booking at the beginning of the window is told, if there is no offer; and
    `shift`, what would have to move then, of bookings that have not begun. None: it would not help.
    """

    offers: tuple[Offer, ...]
    window: Period
    duration: timedelta
    refusal: Refusal | None = None
    shift: Shift | None = None


def find(
    *,
    actor: User,
    team: str,
    pool: str,
    ask: Ask,
    duration: timedelta,
    start: datetime | None = None,
    end: datetime | None = None,
    klass: Class = Class.INTERACTIVE,
    owner: str | None = None,
    now: datetime,
) -> Found:
    """Up to five starts for `ask` within `start` (None: now) to `end` (None: 14 days later).

    Refuses as `book` does for what may not be booked at all, and with INVALID for a
    window that is shorter than the duration or longer than 31 days.
    """
    wish = wishes.check(
        Asked(actor, team, pool, "", ask, start, None, duration, klass, owner, "team", None, now)
    )
    since = wish.wanted.period.start
    window = _window(since, end, duration)
    snap = _reading(wish, window)
    found = offers.offers(_search(snap, wish, window))
    scrub = timedelta(seconds=wish.pool.scrub_seconds)
    told = tuple(_without_scrub(one, scrub) for one in found)
    if told:
        return Found(told, window, duration)
    why = _why(snap, wish, window)
    shift = _shift(snap, wish) if why.code == Code.NO_CAPACITY else None
    return Found((), window, duration, why, shift)


def _shift(snap: Snapshot, wish: Wish) -> Shift | None:
    """For the beginning of the window, if the team's quota allows what it would get."""
    wanted = wish.wanted
    near = movable(wish.pool.pk, wanted.blocked, wishes.account)
    asked = moves.Wanted(wanted.ask, wanted.blocked, wanted.account)
    found = moves.shift(snap.fleet, asked, near, now=wish.now, policy=snap.policy)
    if found is None or plans.over_quota(snap, plans.charges(found.picks), wanted) is not None:
        return None
    return found


def _window(since: datetime, end: datetime | None, duration: timedelta) -> Period:
    last = since + WINDOW if end is None else Period(since, end).end
    assert last is not None
    if end is None:
        last = max(last, since + duration)
    if last < since + duration:
        raise invalid("/end", "too_early", min=(since + duration).isoformat())
    if last > since + max(LONGEST_WINDOW, duration):
        raise invalid("/end", "too_late", max=(since + LONGEST_WINDOW).isoformat())
    return Period(since, last)


def _reading(wish: Wish, window: Period) -> Snapshot:
    blocked = wishes.blocked(window, wish.pool)
    return snapshot.take(wish.pool.pk, blocked, team_id=wish.team.pk, now=wish.now)


def _search(snap: Snapshot, wish: Wish, window: Period) -> offers.Search:
    wanted = wish.wanted
    sought = queries.Sought(
        wanted.ask, wanted.blocked, wishes.blocked(window, wish.pool), wanted.klass, wanted.account
    )

    def place(blocked: Period, free_until: datetime | None) -> Placed | None:
        asked = at(wanted, blocked, wish.pool, free_until)
        try:
            plan = plans.choose(snap, asked)[0]
        except (NoRoom, Refusal):
            return None
        return Placed(plan.picks, plan.cost)

    return queries.search(snap, sought, place)


def at(wanted: Wanted, blocked: Period, pool: Pool, free_until: datetime | None = None) -> Wanted:
    """The same at another time, for which GPUs are `blocked`."""
    assert blocked.end is not None
    end = blocked.end - timedelta(seconds=pool.scrub_seconds)
    return replace(wanted, period=Period(blocked.start, end), blocked=blocked, free_until=free_until)


def _without_scrub(offer: Offer, scrub: timedelta) -> Offer:
    end, until, wished = offer.period.end, offer.extendable_until, offer.free_until
    assert end is not None
    return replace(
        offer,
        period=Period(offer.period.start, end - scrub),
        extendable_until=None if until is None else until - scrub,
        free_until=None if wished is None else wished - scrub,
    )


def _why(snap: Snapshot, wish: Wish, window: Period) -> Refusal:
    """What keeps it out at the beginning of the window, and the first time at which it fits later."""
    with suppress(NoRoom):
        try:
            plans.choose(snap, wish.wanted)
        except Refusal as refusal:
            return refusal
    told = plans.no_capacity(snap, wish.wanted, None)
    instead = smaller.largest(snap.fleet, wish.wanted.ask, lambda ask: _free(snap, wish.wanted, ask))
    told.data["largest"] = None if instead is None else ask_json(instead)
    if told.data["offered"] >= told.data["asked"]:
        later = Period(window.start, window.start + max(AHEAD, wish.wanted.period.duration or AHEAD))
        first = offers.soonest(_search(_reading(wish, later), wish, later))
        told.data["first_time"] = first.isoformat() if first else None
    return told


def _free(snap: Snapshot, wanted: Wanted, ask: Ask) -> int:
    """How many of this ask could be had instead, whatever the quota says."""
    return placement.shortfall(snap.fleet, ask, wanted.blocked, account=wanted.account, now=snap.now).free
