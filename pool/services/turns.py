"""What comes of a turn in the line: it is given at once, or offered and held until its owner accepts.

Steps under the lock on the pool. Who has the turn is decided in waiting.py.

The rule of offers: one is held for 15 minutes, or until its window could not be kept any more.
Accepted, it begins then (or at its own later start) and lasts for all that was asked. One that
lapses goes to the next in order at once; who let it lapse waits on, behind all who wait then,
and the second that lapses ends the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.range import TimestamptzRange

from pool.core.period import Period
from pool.core.shapes import ask_json
from pool.core.states import Reason
from pool.models import Allocation, Event, Pool, Reservation
from pool.services import events, grants, notices, reservations, wishes
from pool.services.plans import Plan, Wanted

#: So many that lapse end the wait.
MOST_LAPSED = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """`wanted` is what is tried for one that waits. `hold_until` None: it asks nobody first."""

    wanted: Wanted
    hold_until: datetime | None


def give(pool: Pool, row: Reservation, plan: Plan, turn: Turn, now: datetime) -> set[int]:
    """Write its places, and start it or hold it; the GPUs to be commanded.

    Fewer pieces than asked become what it asks for from here on; the event keeps what was asked.
    """
    before = {"ask": row.ask, "waiting_since": row.waiting_since.isoformat() if row.waiting_since else None}
    slices = grants.allocate(row, plan, turn.wanted, wanted_at=None)
    row.ask = ask_json(turn.wanted.ask)
    row.period = TimestamptzRange(turn.wanted.period.start, turn.wanted.period.end)
    row.charge_milli = sum(one.charge_milli for one in slices)
    row.imex_channel = grants.channel_of(pool, plan, turn.wanted, own=row.pk)
    row.waiting_order = None
    row.hold_until, row.from_wait = turn.hold_until, turn.hold_until is not None
    row.save(
        update_fields=[
            *("ask", "period", "charge_milli", "imex_channel"),
            *("waiting_order", "hold_until", "from_wait"),
        ],
    )
    events.record(
        "reservation.placed",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        before=before,
        after=grants.facts(row, slices),
    )
    return _begun(row, plan, turn, now)


def _begun(row: Reservation, plan: Plan, turn: Turn, now: datetime) -> set[int]:
    """Hold it, book it ahead, or start it, and tell; the GPUs to be commanded."""
    if turn.hold_until is not None:
        reservations.offer(row, now=now)
        _tell(row, "offered", now, hold_until=turn.hold_until.isoformat(), start=_start(row))
        return set()
    _tell(row, "started_from_wait", now, start=_start(row), end=row.period.upper.isoformat())
    if turn.wanted.period.start > now:
        reservations.schedule([row], now=now, actor=None)
        return set()
    if not plan.clean:
        reservations.wait([row], Reason.WAITING_FOR_CLEANUP, now=now)
        return set()
    return reservations.begin([row], Reason.WAITING_FOR_NODE, now=now)


def accept(pool: Pool, row: Reservation, now: datetime) -> None:
    """Let an offer that is held begin now, or at its own later start, for all of its time."""
    assert row.hold_until is not None
    begin = max(row.period.lower, now)
    length = row.period.upper - max(row.period.lower, row.hold_until)
    row.period = TimestamptzRange(begin, begin + length)
    row.save(update_fields=["period"])
    last = wishes.blocked(Period(begin, begin + length), pool).end
    for one in Allocation.objects.filter(reservation=row, holds=True):
        one.period = row.period
        one.blocked = TimestamptzRange(min(one.blocked.lower, begin), last)
        one.save(update_fields=["period", "blocked"])


def lapse_offers(rows: Sequence[Reservation], *, now: datetime) -> None:
    """Nobody accepted in time: they wait on behind the others, or their wait is over."""
    for row in rows:
        if _lapsed_before(row) + 1 >= MOST_LAPSED:
            reservations.lapse([row], Reason.OFFER_LAPSED, now=now)
            _tell(row, "offer_lapsed", now, waits=False)
            continue
        assert row.hold_until is not None
        length = row.period.upper - max(row.period.lower, row.hold_until)
        Allocation.objects.filter(reservation=row, wanted_at=None).delete()
        row.ask = _asked(row)
        row.period = TimestamptzRange(now, now + length)
        row.waiting_since, row.hold_until, row.from_wait = now, None, False
        row.save(update_fields=["ask", "period", "waiting_since", "hold_until", "from_wait"])
        reservations.queue(row, Reason.OFFER_LAPSED, now=now)
        _tell(row, "offer_lapsed", now, waits=True)


def lapse_waits(rows: Sequence[Reservation], *, now: datetime) -> None:
    """What they asked for can no longer be had in time: their wait is over."""
    reservations.lapse(rows, Reason.WAIT_LAPSED, now=now)
    for row in rows:
        _tell(row, "wait_lapsed", now)


def _tell(row: Reservation, kind: str, now: datetime, **data: Any) -> None:
    """Its owner and who asked for it, once each time: an offer may come again."""
    key = f"{kind}:{row.pk}:{row.version}"
    notices.tell(notices.concerned(row), kind, key=key, now=now, reservation=row, data=data)


def _start(row: Reservation) -> str:
    start: str = row.period.lower.isoformat()
    return start


def _asked(row: Reservation) -> dict[str, Any]:
    """What it asked for before it was offered fewer pieces."""
    placed = Event.objects.filter(reservation_id=row.pk, verb="reservation.placed").order_by("-pk").first()
    asked: dict[str, Any] = row.ask if placed is None or placed.before is None else placed.before["ask"]
    return asked


def _lapsed_before(row: Reservation) -> int:
    told = Event.objects.filter(
        reservation_id=row.pk, verb="reservation.waiting", after__reason=Reason.OFFER_LAPSED
    )
    return told.count()
