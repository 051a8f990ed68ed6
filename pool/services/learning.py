"""What pools are asked for, learnt again each day, one pool after the other, beside the slow lane.

The lesson itself (core/lesson.py) takes up to minutes, so a thread of the lane's worker
takes it; a later run of the lane stores it. A worker that ends forgets it, and the next begins anew.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import datetime, timedelta

from django.db.models import F, Q

from pool.core.asks import Ask
from pool.core.errors import Invalid
from pool.core.fleet_cards import Inventory
from pool.core.lesson import lesson
from pool.core.mix import Mix, from_json, learn
from pool.core.shapes import stored_ask
from pool.models import Pool, PoolMix, Reservation
from pool.queries import fleets
from pool.services import locks

log = logging.getLogger(__name__)

#: So often a pool learns, from asks that are not older than this, and not more than these.
EVERY = timedelta(days=1)
LOOK_BACK = timedelta(days=90)
MOST = 20_000
#: From fewer asks nothing is learnt: the prior knows better.
LEAST = 50
#: As nice(1) counts.
LEAST_URGENT = 19


class Lesson(threading.Thread):
    """One lesson of one pool, on its way or done: then it has its `mix`, or the `error` that ended it."""

    def __init__(self, pool_id: int, asks: list[Ask], known: Inventory, before: Mix | None) -> None:
        super().__init__(name=f"lesson-{pool_id}", daemon=True)
        self.pool_id = pool_id
        self.mix: Mix | None = None
        self.error: Exception | None = None
        self._given = (asks, known, before)

    def run(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            # Tens of seconds of a core, which whoever waits for an answer needs more.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_URGENT)
        try:
            self.mix = lesson(*self._given)
        except Exception as error:
            self.error = error


_current: Lesson | None = None


def go_on(*, now: datetime) -> None:
    """Store the lesson that is done, else begin the next that is due; returns at once.

    A lesson that failed raises its error, and comes again with the next day.
    """
    global _current
    if _current is None:
        _current = _next(now)
        if _current is not None:
            _current.start()
    elif not _current.is_alive():
        done, _current = _current, None
        _store(done.pool_id, done.mix, now=now)
        if done.error is not None:
            raise done.error


def _next(now: datetime) -> Lesson | None:
    """A pool with enough asks that has learnt nothing for a day, the one that never did first."""
    due = Pool.objects.filter(Q(mix=None) | Q(mix__at__lte=now - EVERY))
    for pool in due.select_related("mix").order_by(F("mix__at").asc(nulls_first=True), "pk"):
        before: PoolMix | None = getattr(pool, "mix", None)
        asks = _asks(pool.pk, now)
        if len(asks) >= LEAST:
            mix = from_json(before.mix) if before else None
            return Lesson(pool.pk, asks, fleets.current(pool.pk), mix)
    return None


def _asks(pool_id: int, now: datetime) -> list[Ask]:
    """What was asked of the pool of late, granted or not."""
    rows = Reservation.objects.filter(pool=pool_id, created_at__gt=now - LOOK_BACK, created_at__lte=now)
    asks = []
    for raw in rows.order_by("-created_at", "-pk").values_list("ask", flat=True)[:MOST]:
        try:
            asks.append(stored_ask(raw))
        except Invalid:
            log.warning("learning.unreadable_ask", extra={"pool_id": pool_id})
    return asks


@locks.use_case
def _store(pool_id: int, mix: Mix | None, *, now: datetime) -> None:
    """Keep what was learnt; if nothing was, what is there already. The pool may be gone by now."""
    if not Pool.objects.filter(pk=pool_id).exists():
        return
    values = {"at": now} if mix is None else {"at": now, "mix": mix.as_json()}
    first = {"mix": learn(()).as_json(), **values}
    PoolMix.objects.update_or_create(pool_id=pool_id, defaults=values, create_defaults=first)
