"""Offers: good starts for an ask within a window, found on one reading; nothing is locked or written.

What is offered can be held (holds.py) or booked as long as the pool stays as it
was. What makes a start good: core/offers.py.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core import offers
from pool.core.errors import Code, Refusal, invalid
from pool.core.moves import Shift
from pool.core.offers import Offer
from pool.core.period import Period
from pool.core.shapes import Ask, Class
from pool.core.terms import ORDINARILY, Terms
from pool.queries.snapshot import Snapshot
from pool.services import moves, plans, room, wishes
from pool.services.plans import NoRoom
from pool.services.wishes import Asked, Wish

if TYPE_CHECKING:
    from pool.models import User

#: Where no end of the window is said.
WINDOW = timedelta(days=14)
LONGEST_WINDOW = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class Found:
    """Offers by their start; their periods are those of a booking, without the time for scrubbing.

    `approve_above_milli`: what counts more needs an approver once it is booked (None: nothing does).
    `refusal`: what a booking at the beginning of the window is told, if there is no offer; and
    `shift`, what would have to move then, of bookings that have not begun. None: it would not help.
    """

    offers: tuple[Offer, ...]
    window: Period
    duration: timedelta
    refusal: Refusal | None = None
    shift: Shift | None = None
    approve_above_milli: int | None = None


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
    terms: Terms = ORDINARILY,
    now: datetime,
) -> Found:
    """Up to five starts for `ask` within `start` (None: now) to `end` (None: 14 days later).

    Refuses as `book` does for what may not be booked at all, and with INVALID for a
    window that is shorter than the duration or longer than 31 days.
    """
    wish = wishes.check(
        Asked(actor, team, pool, "", ask, start, None, duration, klass, owner, "team", None, now, terms=terms)
    )
    since = wish.wanted.period.start
    window = _window(since, end, duration)
    snap = room.reading(wish.wanted, wish.pool, wish.team.pk, window, now)
    found = offers.offers(room.search(snap, wish.wanted, wish.pool, window))
    scrub = timedelta(seconds=wish.pool.scrub_seconds)
    told = tuple(_without_scrub(one, scrub) for one in found)
    if told:
        return Found(told, window, duration, approve_above_milli=wish.pool.approve_above_milli)
    why = _why(snap, wish)
    shift = moves.look(snap, wish.wanted, wish.pool.pk) if why.code == Code.NO_CAPACITY else None
    return Found((), window, duration, why, shift)


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


def _without_scrub(offer: Offer, scrub: timedelta) -> Offer:
    end, until, wished = offer.period.end, offer.extendable_until, offer.free_until
    assert end is not None
    return replace(
        offer,
        period=Period(offer.period.start, end - scrub),
        extendable_until=None if until is None else until - scrub,
        free_until=None if wished is None else wished - scrub,
    )


def _why(snap: Snapshot, wish: Wish) -> Refusal:
    """What keeps it out at the beginning of the window, and the first time at which it fits later."""
    with suppress(NoRoom):
        try:
            plans.choose(snap, wish.wanted)
        except Refusal as refusal:
            return refusal
    return room.refusal(snap, wish.wanted, wish.pool, team_id=wish.team.pk)
