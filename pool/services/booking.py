"""Booking: think without a lock, then confirm in one short transaction under the pool's.

Doors reach `book` as services.reservations.book. A candidate that somebody else
took meanwhile costs a new try, never a refusal: the third try decides under
the lock. What may be asked: wishes.py; what is chosen: plans.py; what is
written: grants.py.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import DatabaseError

from pool.core.errors import Code, Refusal
from pool.core.shapes import Ask, Class
from pool.core.terms import ORDINARILY, Terms
from pool.models import Reservation
from pool.queries import snapshot
from pool.queries.snapshot import Snapshot
from pool.services import grants, idempotency, locks, plans, reclaim, room, spending, thresholds, wishes
from pool.services.idempotency import Claim
from pool.services.plans import Kept, NoRoom, Plan
from pool.services.reclaim import Recalled
from pool.services.wishes import Asked, Wish

if TYPE_CHECKING:
    from pool.models import User

log = logging.getLogger(__name__)

#: Tries that think without the lock, before one that decides under it.
TRIES = 2
#: How long a thread waits for the one before it; a booking never fails over it.
TURN_S = 1.0
_turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


class _Overtaken(Exception):
    """Somebody else was quicker; the same may be tried again."""


def book(
    *,
    actor: User,
    team: str,
    pool: str,
    title: str = "",
    ask: Ask,
    start: datetime | None = None,
    end: datetime | None = None,
    duration: timedelta | None = None,
    klass: Class = Class.INTERACTIVE,
    owner: str | None = None,
    visibility: str = Reservation.Visibility.TEAM,
    restartable: bool | None = None,
    now: datetime,
    claim: Claim | None = None,
    free_until: datetime | None = None,
    terms: Terms = ORDINARILY,
) -> Reservation:
    """Grant `ask` for the whole time, all or nothing.

    `start` None is now; exactly one of `end` and `duration`, 1 minute to 366 days. Only a lead may
    name another `owner`, a username of the team. `restartable` None: where it is batch. `free_until`:
    placed where it could be extended until then, if there is such a place. A `claim` that was carried
    out before answers its first result (`replayed`). Refuses with NOT_FOUND, FORBIDDEN, INVALID,
    NO_CAPACITY (asked, free, offered, counts, first_time, largest), QUOTA_EXCEEDED (cap, used, asked),
    KEY_REUSED, IN_PROGRESS, BUSY; then nothing is written.
    """
    what, when = (actor, team, pool, title, ask), (start, end, duration)
    asked = Asked(*what, *when, klass, owner, visibility, restartable, now, free_until, terms=terms)
    return grant(asked, claim)


def grant(asked: Asked, claim: Claim | None) -> Reservation:
    """What `book` and `holds.hold` have in common: grant what was asked, or set it aside."""
    done = _replayed(claim, asked.now)
    if done is None:
        try:
            return _granted(wishes.check(asked), claim)
        except Refusal:
            # The same request may have been carried out beside this one, and taken what is now missing.
            done = _replayed(claim, asked.now)
            if done is None:
                raise
    return done


def _granted(wish: Wish, claim: Claim | None) -> Reservation:
    """Where nobody can be taken back who borrows, what is guaranteed is given of what others keep."""
    sparing = replace(wish, wanted=replace(wish.wanted, spares=wish.hold_until is None))
    try:
        return _given(sparing, claim)
    except Kept:
        return _given(wish, claim)


def _given(wish: Wish, claim: Claim | None) -> Reservation:
    for last in (False, False, True):
        try:
            with _turn(wish.pool.pk):
                return _try(wish, claim)
        except NoRoom as none:
            refused = none
        try:
            made = _take_back(wish, claim, under_the_lock=last)
        except _Overtaken:
            continue
        if made is not None:
            return made
        break
    if isinstance(refused, Kept):
        raise refused
    # Nobody waits while it is found out what would fit instead, and when.
    # What could be taken back was thought about above, but for a hold, which takes nothing back itself.
    hold = wish.hold_until is not None
    raise room.refusal(refused.snap, wish.wanted, wish.pool, team_id=wish.team.pk, reclaims=hold) from None


@contextmanager
def _turn(pool_id: int) -> Iterator[None]:
    """Threads of one process book in a pool one after the other.

    Only for speed: those that think on the same reading would have to look
    again under the pool's lock, each holding it for longer. No database
    connection is in a transaction while it waits.
    """
    turn = _turns[pool_id]
    mine = turn.acquire(timeout=TURN_S)
    try:
        yield
    finally:
        if mine:
            turn.release()


def _replayed(claim: Claim | None, now: datetime) -> Reservation | None:
    made = idempotency.find(claim, now=now) if claim else None
    return None if made is None else idempotency.first_result(made)


# --- Thinking, and confirming -------------------------------------------------


def _try(wish: Wish, claim: Claim | None) -> Reservation:
    for _ in range(TRIES):
        snap = _snapshot(wish)
        try:
            found = plans.choose(snap, wish.wanted)
        except (NoRoom, Refusal):
            # A refusal stands only if the pool did not change while it was read.
            if snapshot.change_of(wish.pool.pk) == snap.change:
                raise
            continue
        try:
            return _confirm(wish=wish, claim=claim, thought=_Thought(snap, found))
        except _Overtaken:
            continue
        except DatabaseError as error:
            if not locks.lost_a_race(error):
                raise
    try:
        return _confirm(wish=wish, claim=claim, thought=None)
    except DatabaseError as error:
        if not locks.lost_a_race(error):
            raise
        log.exception("booking.lost_under_the_lock")
        raise Refusal(Code.BUSY) from error


@dataclass(frozen=True, slots=True)
class _Thought:
    """What was chosen, and on which reading."""

    snap: Snapshot
    found: list[Plan]


@locks.use_case
def _confirm(*, wish: Wish, claim: Claim | None, thought: _Thought | None) -> Reservation:
    """Take the best plan that still holds; without a thought, what is chosen now."""
    made = idempotency.claim(claim, now=wish.now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    pool = locks.pool(wish.pool.pk)
    if thought is None or pool.change != thought.snap.change:
        thought = _still_holding(wish, thought.found if thought else [])
    best = thought.found[0]
    spending.check(pool, wish.team.pk, best.picks, wish.wanted.period, told=thought.snap.standing)
    reservation = grants.write(wish, pool, best)
    reservation.borrowed = best.borrowed
    if claim:
        idempotency.keep(claim, resource=reservation.pk, now=wish.now)
    return reservation


def _take_back(wish: Wish, claim: Claim | None, *, under_the_lock: bool) -> Reservation | None:
    """Book it from when borrowers have left, if it is its team's right; None where that does not help.

    What is only held, or needs an approver, takes nothing from anybody. `under_the_lock`: think there.
    """
    if wish.hold_until is not None:
        return None
    found = reclaim.think(wish.pool, wish.wanted, wish.now)
    if found is None or thresholds.needs(wish.pool, plans.charged(found.plans[0])):
        return None
    try:
        return _confirm_recall(wish=wish, claim=claim, found=found, anew=under_the_lock)
    except DatabaseError as error:
        if not locks.lost_a_race(error):
            raise
        raise _Overtaken from error


@locks.use_case
def _confirm_recall(*, wish: Wish, claim: Claim | None, found: Recalled, anew: bool) -> Reservation:
    """Take back what was found, if nothing changed meanwhile; else find it `anew`, if that is said."""
    made = idempotency.claim(claim, now=wish.now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    pool = locks.pool(wish.pool.pk)
    if pool.change != found.seen:
        again = reclaim.think(pool, wish.wanted, wish.now) if anew else None
        if again is None:
            raise _Overtaken
        found = again
    late = replace(wish, wanted=found.wanted)
    spending.check(pool, wish.team.pk, found.plans[0].picks, found.wanted.period)
    victims = reclaim.take_back(found, wish.now)
    reservation = grants.write(late, pool, found.plans[0], reclaiming=True)
    reclaim.name(found, victims, reservation, wish.now)
    if claim:
        idempotency.keep(claim, resource=reservation.pk, now=wish.now)
    return reservation


def _still_holding(wish: Wish, found: list[Plan]) -> _Thought:
    """Choose anew under the lock, among the GPUs of the candidates; without candidates, among all."""
    gpu_ids = {pick.gpu_id for plan in found for pick in plan.picks} or None
    snap = _snapshot(wish, gpu_ids)
    try:
        return _Thought(snap, plans.choose(snap, wish.wanted))
    except (NoRoom, Refusal) as refusal:
        if gpu_ids is None:
            raise
        raise _Overtaken from refusal


def _snapshot(wish: Wish, gpu_ids: set[int] | None = None) -> Snapshot:
    ask = wish.wanted.ask
    return snapshot.take(
        wish.pool.pk,
        wish.wanted.reading,
        team_id=wish.team.pk,
        now=wish.now,
        gpu_ids=gpu_ids,
        whole_nodes=bool(ask.node_cpu_milli or ask.node_memory_mib),
    )
