"""Gives those who wait what comes to them, in the order of the line; called by the due lane for each pool.

It is decided without the lock (lineup); each turn is then one short transaction of its own. A
team within its guarantee that finds no room takes back what was lent (reclaim); what asks first
takes nothing from anybody, since its owner may say no.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError

from pool.core.errors import Code, Refusal
from pool.core.states import Reason, State
from pool.core.waitline import Given, Left
from pool.models import Pool, Reservation
from pool.queries import snapshot
from pool.queries import waiting as queries
from pool.services import (
    commands,
    events,
    lineup,
    locks,
    payable,
    plans,
    reclaim,
    reservations,
    turns,
    wishes,
)
from pool.services.lineup import Lineup
from pool.services.plans import NoRoom, Plan
from pool.services.reclaim import Recalled
from pool.services.turns import Turn

#: Without a change nothing is found that was not found before, but windows open and grants begin.
LOOK_AGAIN = timedelta(minutes=1)
#: Thinking takes no more than this part of the lane's time.
SHARE_OF_TIME = 0.25
#: What is to come as soon as this is not waited for as such: the lane's clock was read before the ask.
SOON = timedelta(seconds=30)
#: Only what took so many seconds is thought about less often.
LONG = 0.25
#: So many look for what could be taken back for them, in one run.
MOST_RECLAIMS = 2

#: By pool: its change number, who waited, and the minute at which nothing was found.
_in_vain: dict[int, tuple[int, tuple[UUID, ...], int]] = {}
#: By pool: until when (monotonic) there is no thought given to it again.
_rests: dict[int, float] = {}

#: Hides a row that something cannot be decided for, with the error, until it is tried again.
Aside = Callable[[UUID, Exception], None]

#: What the line says (waitline.Left) -> the reason that is kept.
REASONS: Mapping[str, Reason] = {
    "first": Reason.NO_CAPACITY,
    "no_room": Reason.NO_CAPACITY,
    "behind": Reason.NOT_ITS_TURN,
    "strict": Reason.NOT_ITS_TURN,
    "borrowing_stopped": Reason.BORROWING_STOPPED,
    "not_lent": Reason.NOT_LENT,
}


def serve(*, pool_id: int, now: datetime, hidden: Collection[UUID], aside: Aside) -> int:
    """Give what comes to those who wait, and say why the others do; how many got something.

    `hidden` are left out; whom nothing can be decided for is set aside. Running it again at once
    gives nothing twice: a turn is for one that waits still.
    """
    rows = [row for row in queries.line(pool_id) if row.pk not in hidden]
    late = [row.pk for row in rows if now > queries.last_start(row)]
    if late:
        _lapse(pool_id=pool_id, ids=late, now=now)
        rows = [row for row in rows if row.pk not in late]
    pool = Pool.objects.get(pk=pool_id)
    state = (pool.change, tuple(row.pk for row in rows), int(now.timestamp() // LOOK_AGAIN.total_seconds()))
    if not rows or pool.frozen or _in_vain.get(pool_id) == state or time.monotonic() < _rests.get(pool_id, 0):
        return 0
    began = time.monotonic()
    found = _decided(pool, rows, now, aside)
    given = 0 if found is None else _give_all(pool, found, now, aside)
    took = time.monotonic() - began
    _rests[pool_id] = time.monotonic() + took * (1 / SHARE_OF_TIME - 1) if took > LONG else 0.0
    if not given:
        _in_vain[pool_id] = state
    return given


def _decided(pool: Pool, rows: Sequence[Reservation], now: datetime, aside: Aside) -> Lineup | None:
    """The decision about all of them; where that breaks, those of whom it does are set aside."""
    try:
        return lineup.decide(pool, now, rows=rows)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        if len(rows) == 1:
            aside(rows[0].pk, error)
            return None
        for row in rows:
            _decided(pool, [row], now, aside)
        return None


def _give_all(pool: Pool, found: Lineup, now: datetime, aside: Aside) -> int:
    seen, number = found.change, 0
    for one in found.decision.given:
        if _tried(pool, found, one, seen, now, aside):
            seen, number = seen + 1, number + 1
    number += _reclaim(pool, found, now, aside)
    reasons = {left.waiting.id: _reason(left, now) for left in found.decision.left}
    other = [pk for pk, reason in reasons.items() if reason not in (None, found.rows[pk].state_reason)]
    if other:
        _tell_why(pool_id=pool.pk, reasons={pk: reasons[pk] for pk in other}, now=now)
    return number


def _tried(pool: Pool, found: Lineup, one: Given, seen: int, now: datetime, aside: Aside) -> bool:
    """Whether it got it: who left meanwhile gets nothing now."""
    chosen = [found.plans[one.waiting.id, candidate] for candidate in one.candidates]
    turn = partial(_give, pool_id=pool.pk, one=one, chosen=chosen, seen=seen, now=now)
    return _guarded(one.waiting.id, turn, aside)


def _guarded(pk: UUID, turn: Callable[[], bool], aside: Aside) -> bool:
    """What one turn came to; a lost race is nothing, and a row that breaks its own turn breaks no other."""
    try:
        return turn()
    except DatabaseError as error:
        if locks.lost_a_race(error):
            return False
        if isinstance(error, OperationalError | InterfaceError):
            raise
        aside(pk, error)
    except Refusal as refusal:
        if refusal.code == Code.BUSY:
            raise
        aside(pk, refusal)
    except Exception as error:
        aside(pk, error)
    return False


@locks.use_case
def _give(*, pool_id: int, one: Given, chosen: Sequence[Plan], seen: int, now: datetime) -> bool:
    """Its turn, under the lock. What has changed since it was decided is looked at again."""
    pool = locks.pool(pool_id)
    row = queries.line(pool_id).filter(pk=one.waiting.id).first()
    if row is None or pool.frozen:
        return False
    turn = _turn(pool, row, one, now)
    plan = chosen[0] if pool.change == seen else _still_holding(pool, row, chosen, turn, now)
    if plan is None or not payable.is_payable(pool, row.team_id, plan, turn.wanted.period):
        return False
    commands.issue(locks.gpus(turns.give(pool, row, plan, turn, now)), now)
    _note_passed(pool_id, one.passed, now)
    locks.changed(pool)
    return True


def _turn(pool: Pool, row: Reservation, one: Given, now: datetime) -> Turn:
    wanted = wishes.again(row, pool, one.period)
    return Turn(replace(wanted, ask=one.ask), queries.hold_until(row, now))


def _still_holding(
    pool: Pool, row: Reservation, chosen: Sequence[Plan], turn: Turn, now: datetime
) -> Plan | None:
    """The first of what was decided that is free and legal still; nothing else, which could delay others."""
    gpu_ids = {pick.gpu_id for plan in chosen for pick in plan.picks}
    ask = turn.wanted.ask
    snap = snapshot.take(
        pool.pk,
        turn.wanted.blocked,
        team_id=row.team_id,
        now=now,
        gpu_ids=gpu_ids,
        whole_nodes=bool(ask.node_cpu_milli or ask.node_memory_mib),
        without=row.pk,
    )
    try:
        there = {frozenset(plan.picks): plan for plan in plans.choose(snap, turn.wanted)}
    except (NoRoom, Refusal):
        return None
    return next((there[picks] for plan in chosen if (picks := frozenset(plan.picks)) in there), None)


def _note_passed(pool_id: int, passed: Sequence[UUID], now: datetime) -> None:
    """Each time that somebody behind was given room that it could have had: so that this has an end."""
    rows = Reservation.objects.filter(pk__in=passed, state=State.WAITING).values_list("pk", "team_id")
    events.write(
        events.draft(
            "reservation.passed",
            actor=None,
            now=now,
            team_id=team_id,
            pool_id=pool_id,
            reservation_id=pk,
        )
        for pk, team_id in rows
    )


# --- Within the guarantee -------------------------------------------------------


def _reclaim(pool: Pool, found: Lineup, now: datetime, aside: Aside) -> int:
    """For the first of those who wait for what is guaranteed to them."""
    left = [one for one in found.decision.left if one.why != "over_budget"]
    waits = [one.waiting for one in left if one.waiting.guaranteed]
    open_ = [one for one in waits if one.window.start <= now and not found.rows[one.id].asks_first]
    number = 0
    for one in open_[:MOST_RECLAIMS]:
        number += _guarded(one.id, partial(_reclaim_for, pool, found.rows[one.id], now), aside)
    return number


def _reclaim_for(pool: Pool, row: Reservation, now: datetime) -> bool:
    wanted = wishes.again(row, pool, queries.taken(row, now))
    recalled = reclaim.think(pool, wanted, now, without=row.pk)
    if recalled is None or not _in_time(row, recalled):
        return False
    return _take(pool_id=pool.pk, pk=row.pk, recalled=recalled, now=now)


def _in_time(row: Reservation, recalled: Recalled) -> bool:
    last, end = queries.window_of(row).end, recalled.wanted.period.end
    return last is None or (end is not None and end <= last)


@locks.use_case
def _take(*, pool_id: int, pk: UUID, recalled: Recalled, now: datetime) -> bool:
    pool = locks.pool(pool_id)
    row = queries.line(pool_id).filter(pk=pk).first()
    if row is None or pool.frozen:
        return False
    if not payable.is_payable(pool, row.team_id, recalled.plans[0], recalled.wanted.period):
        return False
    if not reclaim.make_room(pool, recalled, row, now):
        return False
    turn = Turn(recalled.wanted, None)
    commands.issue(locks.gpus(turns.give(pool, row, recalled.plans[0], turn, now)), now)
    locks.changed(pool)
    return True


# --- Why the rest waits ---------------------------------------------------------


def _reason(left: Left, now: datetime) -> Reason | None:
    """None: it is over, and somebody else says so."""
    if left.why == "too_late":
        return None
    if left.waiting.window.start > now + SOON:
        return Reason.NOT_YET
    return REASONS.get(left.why, Reason.NO_QUOTA)


@locks.use_case
def _tell_why(*, pool_id: int, reasons: Mapping[UUID, Reason | None], now: datetime) -> None:
    locks.pool(pool_id)
    rows = list(queries.line(pool_id).filter(pk__in=list(reasons)))
    for reason in {one for one in reasons.values() if one is not None}:
        reservations.note([row for row in rows if reasons[row.pk] == reason], reason, now=now)


@locks.use_case
def _lapse(*, pool_id: int, ids: Collection[UUID], now: datetime) -> None:
    """What they asked for can no longer be had in time."""
    pool = locks.pool(pool_id)
    rows = [row for row in queries.line(pool_id).filter(pk__in=ids) if now > queries.last_start(row)]
    turns.lapse_waits(rows, now=now)
    if rows:
        locks.changed(pool)
