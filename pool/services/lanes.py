"""Timed work in lanes: leases, and the `due` lane, which ends and starts bookings on time.

What is held for too long is let go before that; what hardware did to bookings is dealt
with after it, then those who wait in line.

A lane's row is its lease and its heartbeat, in real time. Work is set-based, at
most 500 rows a pool and transaction; a row that breaks its batch is set aside
with its error, tried again later, and never stops the lane.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from pool.core.errors import Code, Refusal
from pool.core.states import Reason, State
from pool.models import Allocation, Lane, Pool, Reservation
from pool.queries import clock
from pool.services import (
    broker,
    budgets,
    commands,
    defrag,
    ends,
    giving,
    idempotency,
    learning,
    locks,
    modes,
    outages,
    outbox,
    quota_requests,
    recalls,
    reservations,
    starts,
    telemetry,
    thresholds,
    turns,
    waiting,
)
from pool.services.batches import Aside, Pace

log = logging.getLogger(__name__)

#: A lane whose worker was killed is taken over after this.
LEASE = timedelta(seconds=20)
#: One run of a lane ends itself before its lease does.
RUN_SECONDS = 10.0
#: Bookings that are yet to start have time: fewer of them a run.
DISPLACED = 4


@dataclass(frozen=True, slots=True)
class Swept:
    """What one run did: bookings ended (or let go), started (or told why not), set aside."""

    ended: int = 0
    started: int = 0
    set_aside: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.ended + other.ended, self.started + other.started, self.set_aside + other.set_aside)


def due(*, now: datetime) -> Swept | None:
    """End what is over, then start what is due, pool by pool; None while another worker has the lane."""
    with lease("due") as mine:
        if not mine:
            return None
        until = time.monotonic() + RUN_SECONDS
        done = Swept()
        for pool_id in list(Pool.objects.order_by("pk").values_list("pk", flat=True)):
            try:
                telemetry.mark_silent(pool_id=pool_id, received=clock.real_now())
                done += _sweep_pool(pool_id, now, until)
                _warn(pool_id=pool_id, now=now)
                outages.end_over(pool_id=pool_id, now=now)
            except Refusal as refusal:
                # The pool's lock was not given in time; the next run comes in two seconds.
                log.warning("lane.pool_skipped", extra={"pool_id": pool_id, "refusal": str(refusal)})
        return done


def slow(*, now: datetime) -> bool:
    """Give Redis back the users that it lacks, tell of ends, forget old keys, learn, defragment.

    False while another has the lane. One piece of work that fails does not stop the next;
    the lane's row keeps the last error.
    """
    with lease("slow") as mine:
        if not mine:
            return False
        failed: Exception | None = None
        people = (ends.tell, quota_requests.go_on, budgets.warn, outbox.deliver)
        timed = (*people, idempotency.purge, learning.go_on, defrag.by_policy)
        for work in (broker.reapply, *(partial(one, now=now) for one in timed)):
            try:
                work()
            except Exception as error:
                log.exception("lane.slow")
                failed = error
        if failed is not None:
            raise failed
        return True


# --- Leases -------------------------------------------------------------------


@contextmanager
def lease(name: str) -> Iterator[bool]:
    """Hold the lane `name` for this run; False when another worker does."""
    began = time.monotonic()
    if not _take(name):
        yield False
        return
    error = ""
    try:
        yield True
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:300]
        raise
    finally:
        took = int((time.monotonic() - began) * 1000)
        Lane.objects.filter(name=name, holder=_holder()).update(
            until=clock.real_now(), beat_at=clock.real_now(), took_ms=took, error=error
        )


def _take(name: str) -> bool:
    if _claim(name):
        return True
    now = clock.real_now()
    Lane.objects.bulk_create([Lane(name=name, until=now - LEASE, beat_at=now)], ignore_conflicts=True)
    return _claim(name)


def _claim(name: str) -> bool:
    now = clock.real_now()
    free = Lane.objects.filter(name=name, until__lt=now)
    return free.update(until=now + LEASE, beat_at=now, holder=_holder()) == 1


def _holder() -> str:
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{threading.get_ident()}"


# --- The due lane -------------------------------------------------------------


def _sweep_pool(pool_id: int, now: datetime, until: float) -> Swept:
    """Lapsed holds and ends first, then starts, in batches; then what hardware failed, and what waits."""
    aside = Aside("due")
    done = Swept()
    for select in (_lapsed, thresholds.undecided, recalls.due, _over, _to_start):
        pace = Pace()
        while time.monotonic() < until:
            rows = select(pool_id, now).exclude(pk__in=aside.hidden)
            ids = list(rows.values_list("pk", flat=True)[: pace.size])
            if not ids:
                break
            done += _Batch(pool_id, now, aside, pace, select).sweep(ids)
    # What waits goes on waiting after its look, so the list is read once.
    left = _to_look_at(pool_id, now, aside)
    pace = Pace()
    while left and time.monotonic() < until:
        ids, left = left[: pace.size], left[pace.size :]
        done += _Batch(pool_id, now, aside, pace, None).sweep(ids)
    given = giving.serve(pool_id=pool_id, now=now, hidden=aside.hidden, aside=aside.put)
    return done + Swept(started=given)


def _to_look_at(pool_id: int, now: datetime, aside: Aside) -> list[UUID]:
    """Failed, stranded and displaced by hardware; starts in whose way something is, or a mode to change.

    Placing anew is slow, so of each kind only some have their turn.
    """
    failed, stranded, displaced, held_up, unneeded, changing = (
        list(rows.exclude(pk__in=aside.hidden).values_list("pk", flat=True))
        for rows in (
            outages.overdue(pool_id, now),
            starts.stranded(pool_id, now),
            starts.displaced(pool_id, now),
            _waiting(pool_id, now),
            recalls.unneeded(pool_id, now),
            modes.soon(pool_id, now),
        )
    )
    moves = [*starts.in_turn(stranded, starts.MOST_MOVES, now), *starts.in_turn(displaced, DISPLACED, now)]
    return list(dict.fromkeys([*failed, *unneeded, *changing, *moves, *held_up]))


def _lapsed(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Held, and nobody has booked it in time."""
    rows = Reservation.objects.filter(pool=pool_id, state=State.HELD, hold_until__lte=now)
    return rows.order_by("hold_until", "pk")


def _over(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(pool=pool_id, period__endswith__lte=now)
    return rows.filter(state__in=(State.SCHEDULED, State.STARTING, State.ACTIVE)).order_by(
        "period__endswith", "pk"
    )


def _to_start(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(pool=pool_id, state=State.SCHEDULED, period__startswith__lte=now)
    return rows.order_by("period__startswith", "pk")


def _waiting(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Starts that something was in the way of; a frozen pool has told them, and gets no further look."""
    unwanted = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True, wanted_at=None)
    rows = Reservation.objects.filter(Exists(unwanted), pool=pool_id, state=State.STARTING)
    rows = rows.exclude(pool__frozen=True, state_reason=Reason.FROZEN)
    return rows.order_by("period__startswith", "pk")


#: What says which rows are due, for one reason.
Select = Callable[[int, datetime], QuerySet[Reservation]]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that came from `of` (None: several), swept together as far as none of them breaks it."""

    pool_id: int
    now: datetime
    aside: Aside
    pace: Pace
    of: Select | None

    def sweep(self, ids: Collection[UUID]) -> Swept:
        """Suspects each alone, after the rest."""
        bad = [pk for pk in ids if pk in self.aside.suspects]
        good = [pk for pk in ids if pk not in self.aside.suspects]
        done = self._try(good) if good else Swept()
        return sum((self._try([pk], alone=True) for pk in bad), done)

    def _try(self, ids: list[UUID], *, alone: bool = False) -> Swept:
        """`alone`: without what starts where these end."""
        try:
            done = self._once(ids, alone=alone)
        except Exception as error:
            if _passes(error):
                raise
            broke = error
        else:
            self.aside.clear(ids)
            return done
        # Not where it was caught: each error would carry all those before it.
        return self._after(broke, ids, alone=alone)

    def _once(self, ids: list[UUID], *, alone: bool) -> Swept:
        without = {*self.aside.hidden, *self.aside.suspects}.difference(ids)
        due = _Due(self.pool_id, ids, self.now, self.of, without)
        return _sweep(due=due, alone=alone, learn=partial(self._learn, len(ids), time.monotonic()))

    def _learn(self, rows: int, began: float) -> None:
        self.pace.learn(rows, time.monotonic() - began)

    def _after(self, broke: Exception, ids: list[UUID], *, alone: bool) -> Swept:
        """Those that are to blame by themselves, where it is known who; else each half."""
        if alone:
            self.aside.put(ids[0], broke)
            return Swept(set_aside=1)
        if self.aside.suspect(broke, pool_id=self.pool_id):
            return self.sweep(ids)
        if len(ids) == 1:
            return self._try(ids, alone=True)
        half = len(ids) // 2
        return self.sweep(ids[:half]) + self.sweep(ids[half:])


def _passes(error: Exception) -> bool:
    """Whether it is no fault of a row: no database, no lock in time. The next run tries again."""
    if isinstance(error, Refusal):
        return error.code == Code.BUSY
    return isinstance(error, OperationalError | InterfaceError)


def _warn(*, pool_id: int, now: datetime) -> None:
    """Have the signal sent that owners asked for before what they have is taken back."""
    if recalls.to_warn(pool_id, now):
        _send_warning(pool_id=pool_id, now=now)


@locks.use_case
def _send_warning(*, pool_id: int, now: datetime) -> None:
    locks.pool(pool_id)
    commands.issue(locks.gpus(recalls.to_warn(pool_id, now)), now)


@dataclass(frozen=True, slots=True)
class _Due:
    """Rows that are due still, under the lock; only what they were selected by is asked."""

    pool_id: int
    ids: Collection[UUID]
    now: datetime
    of: Select | None
    without: Collection[UUID]

    def rows(self, select: Select) -> list[Reservation]:
        if self.of not in (None, select):
            return []
        return list(select(self.pool_id, self.now).filter(pk__in=self.ids))


@locks.use_case
def _sweep(*, due: _Due, alone: bool, learn: Callable[[], None]) -> Swept:
    """Do what is due for these rows as they are under the lock, and command each GPU once.

    A start on a GPU where something ends comes in the same transaction: the
    wanted layout goes from one stay to the next without a gap; not so `alone`,
    nor those in `without`. `learn` is called once the lock is given back.
    """
    # First of what comes after the commit: sending what was commanded holds up nobody.
    transaction.on_commit(learn)
    pool, now = locks.pool(due.pool_id), due.now
    lapsed = due.rows(_lapsed)
    reservations.lapse([row for row in lapsed if not row.from_wait], Reason.HOLD_LAPSED, now=now)
    turns.lapse_offers([row for row in lapsed if row.from_wait], now=now)
    undecided = due.rows(thresholds.undecided)
    thresholds.lapse(undecided, now=now)
    recalled = due.rows(recalls.due)
    touched = recalls.carry_out(recalled, now)
    stay = recalls.put_back(pool, due.rows(recalls.unneeded), now)
    over = due.rows(_over)
    touched |= _end_over(over, now)
    new = _to_begin(due, () if alone else touched)
    held_up = due.rows(_waiting)
    touched |= starts.start(pool, [*new, *held_up], now)
    waiting.queue_up([*new, *held_up], now=now)
    # Asked again under the lock: its node may have come back.
    touched |= outages.fail(pool, due.rows(outages.overdue), now=now)
    touched |= modes.gpus_of(due.rows(modes.soon), now)
    touched |= starts.rescue(pool, due.rows(starts.stranded), now)
    moved = starts.relocate(pool, due.rows(starts.displaced), now)
    commands.issue(locks.gpus(touched), now)
    if lapsed or undecided or recalled or stay or over or new or touched or moved:
        locks.changed(pool)
    ended = len(lapsed) + len(undecided) + len(recalled) + len(over)
    return Swept(ended=ended, started=len(new))


def _end_over(rows: Collection[Reservation], now: datetime) -> set[int]:
    """Their time is over; the GPUs to be commanded."""
    in_state = {state: [row for row in rows if row.state == state] for state in State}
    reservations.lapse(in_state[State.SCHEDULED], now=now)
    touched = reservations.end(in_state[State.STARTING], Reason.NEVER_STARTED, now=now)
    return touched | reservations.end(in_state[State.ACTIVE], Reason.TIME_UP, now=now)


def _to_begin(due: _Due, touched: Collection[int]) -> list[Reservation]:
    """Those of these whose start has come, and what comes next on the GPUs that were touched."""
    if due.of not in (None, _to_start) and not touched:
        return []
    theirs = Q(pk__in=due.ids)
    if touched:
        theirs |= Q(allocations__gpu__in=touched) & ~Q(pk__in=due.without)
    return list(_to_start(due.pool_id, due.now).filter(theirs).distinct())
