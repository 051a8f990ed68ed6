"""The line of those who wait for room: what failed is at its head, and each has its turn when something fits.

Steps under the lock on the pool; the due lane calls them. What waits holds
nothing and counts in no quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from django.db.models import Min
from psycopg.types.range import TimestamptzRange

from pool.core.errors import Refusal
from pool.core.shapes import Ask, GpuAsk
from pool.core.states import Reason, State
from pool.models import Allocation, Pool, Reservation
from pool.queries import snapshot
from pool.queries import waiting as queries
from pool.services import events, grants, plans, reservations, starts, turns, wishes
from pool.services.plans import NoRoom
from pool.services.turns import Turn

#: By pool: its change number, and who waited, when nothing was found. Without a change nothing will be.
_in_vain: dict[int, tuple[int, tuple[UUID, ...]]] = {}


def restart(
    old: Reservation, since: datetime, *, now: datetime, reason: Reason = Reason.GPU_LOST
) -> Reservation | None:
    """What was left of `old` at `since` is a new reservation at the head of the line; None: too little was.

    It is the same owner's, and asks for the same on the same terms. `reason`: what ended the old one.
    """
    left = None if old.period.upper is None else old.period.upper - since
    if left is not None and left < wishes.SHORTEST:
        return None
    row = Reservation(
        team_id=old.team_id,
        pool_id=old.pool_id,
        owner_id=old.owner_id,
        booked_by_id=old.booked_by_id,
        title=old.title,
        ask=old.ask,
        klass=old.klass,
        state=State.WAITING,
        state_reason=reason,
        period=TimestamptzRange(now, None if left is None else now + left),
        created_at=now,
        charge_milli=old.charge_milli,
        visibility=old.visibility,
        restartable=old.restartable,
        preemptible=old.preemptible,
        priority=old.priority,
        preempt_signal=old.preempt_signal,
        preempt_grace_s=old.preempt_grace_s,
        justification=old.justification,
        waiting_since=now,
        continues=old,
        waiting_order=_head(old.pool_id),
    )
    row.save(force_insert=True)
    events.record(
        "reservation.restarted",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        after=grants.facts(row, []) | {"continues": str(old.pk)},
    )
    return row


def queue_up(rows: Sequence[Reservation], *, now: datetime) -> None:
    """What still meets a blocker after the fence, and fits nowhere else, joins the line at its head.

    Earliest start first, each with what is left of its time. `rows` are starts
    that were tried; none of their slices was ever wanted, so they go without a trace.
    """
    stuck = [row for row in rows if _is_stuck(row, now)]
    for row in sorted(stuck, key=lambda row: (row.period.lower, row.pk), reverse=True):
        Allocation.objects.filter(reservation=row, wanted_at=None).delete()
        row.period = TimestamptzRange(now, row.period.upper)
        row.waiting_order, row.waiting_since = _head(row.pool_id), now
        row.save(update_fields=["period", "waiting_order", "waiting_since"])
        reservations.queue(row, now=now)


def _is_stuck(row: Reservation, now: datetime) -> bool:
    waits = row.state == State.STARTING and row.state_reason == Reason.BLOCKED
    if not waits or now - row.period.lower < starts.FENCE:
        return False
    return row.period.upper is None or row.period.upper - now >= wishes.SHORTEST


def _head(pool_id: int) -> int:
    """A place before all who wait."""
    first = Reservation.objects.filter(pool=pool_id, state=State.WAITING).aggregate(at=Min("waiting_order"))
    return min(first["at"] or 0, 0) - 1


def next_tries(pool_id: int, now: datetime) -> list[UUID]:
    """Those whose turn it is: the head always, of the others some at a time, and who has waited for too long.

    Only the last while the pool is frozen, or has not changed since nothing was found.
    """
    rows = list(queries.line(pool_id))
    if not rows:
        return []
    ids = [row.pk for row in rows]
    turn = {row.pk for row in rows if now > queries.last_start(row)}
    open_ = [row.pk for row in rows if row.window is None or row.window.lower <= now]
    is_vain = _in_vain.get(pool_id) == (snapshot.change_of(pool_id), tuple(open_))
    if open_ and not is_vain and not Pool.objects.filter(pk=pool_id, frozen=True).exists():
        turn |= {open_[0], *starts.in_turn(open_[1:], starts.MOST_MOVES - 1, now)}
    return [pk for pk in ids if pk in turn]


def serve(pool: Pool, rows: Sequence[Reservation], now: datetime) -> set[int]:
    """Give each of these, in order, its whole time from now, where that fits; the GPUs to be commanded.

    What can no longer be had in time is over.
    """
    late = [row for row in rows if now > queries.last_start(row)]
    turns.lapse_waits(late, now=now)
    touched: set[int] = set()
    for row in rows:
        if row.state == State.WAITING:
            touched |= _try(pool, row, now)
    if rows and not touched and not late:
        _note_vain(pool, rows, now)
    return touched


def _note_vain(pool: Pool, tried: Sequence[Reservation], now: datetime) -> None:
    ids = tuple(row.pk for row in queries.line(pool.pk) if row.window is None or row.window.lower <= now)
    if len(tried) == len(ids):
        _in_vain[pool.pk] = (pool.change, ids)


def _try(pool: Pool, row: Reservation, now: datetime) -> set[int]:
    reason: Reason | None = None
    for turn in _turns(pool, row, now):
        snap = snapshot.take(pool.pk, turn.wanted.blocked, team_id=row.team_id, now=now)
        try:
            plan = plans.choose(snap, turn.wanted)[0]
        except NoRoom:
            reason = reason or Reason.NO_CAPACITY
        except Refusal:
            reason = reason or Reason.NO_QUOTA
        else:
            return turns.give(pool, row, plan, turn, now)
    if reason is not None:
        reservations.note([row], reason, now=now)
    return set()


def _turns(pool: Pool, row: Reservation, now: datetime) -> Iterator[Turn]:
    """What is tried for it, best first: all it asks for; where part of it will do, ever fewer pieces."""
    until = queries.hold_until(row, now)
    wanted = wishes.again(row, pool, queries.taken(row, now))
    yield Turn(wanted, until)
    for ask in fewer(wanted.ask) if row.partial_ok else ():
        yield Turn(replace(wanted, ask=ask), until)


def fewer(ask: Ask) -> Iterator[Ask]:
    """The same ask for ever fewer pieces: all counts below its own that its segments divide."""
    step = (ask.segment or 1) if isinstance(ask, GpuAsk) else 1
    for count in range(ask.count - step, 0, -step):
        yield replace(ask, count=count)
