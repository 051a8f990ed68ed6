"""Joining the wait list: what cannot be had now is asked for within a window, and given when its turn comes.

Doors reach `join` as services.reservations.join. Leaving it is releasing what waits; what is
given, and when, is decided in turns.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.types.range import TimestamptzRange

from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period
from pool.core.serving import serving
from pool.core.shapes import ask_json
from pool.core.states import Reason, State
from pool.models import Reservation
from pool.queries import snapshot
from pool.queries import waiting as queries
from pool.queries.snapshot import Snapshot
from pool.services import events, grants, idempotency, locks, payable, plans, thresholds, wishes
from pool.services.idempotency import Claim
from pool.services.plans import NoRoom
from pool.services.wishes import Asked, Wish

if TYPE_CHECKING:
    from pool.models import User

#: So many one person may have waiting in a pool.
MOST = 20
#: Of what keeps GPUs out (placement.shortfall): what may come back by itself, or by an operator's hand.
MAY_COME_BACK = frozenset(
    {"unknown", "frozen", "observe", "lost", "blocked", "unusable", "unhealthy", "memory_unknown"}
    | {"managed_elsewhere", "update_needed"}
)
#: By what of its quota an ask can be kept waiting; nothing else of a quota changes by waiting.
WAITS_FOR = frozenset(
    {"over_cap", "over_memory", "over_budget", "not_lent", "borrowing_stopped"}
    | {"firm_over_guaranteed", "online_over_guaranteed"}
)
#: Of these the figures are what others leave, which may become more.
_NOT_OWN = frozenset({"not_lent", "borrowing_stopped"})


def join(
    *,
    asked: Asked,
    latest: datetime | None = None,
    partial_ok: bool = False,
    asks_first: bool = False,
    claim: Claim | None = None,
) -> Reservation:
    """Wait for what is asked: from its `start` (None: now) on, for its duration, until its turn comes.

    All of it has to end by `latest` (None: a week of waiting beside its duration). `partial_ok`:
    fewer pieces will do. `asks_first`: what comes is held for 15 minutes, for its owner to accept. A `claim`
    that was carried out before answers its first result (`replayed`). Refuses with NOT_FOUND,
    FORBIDDEN, INVALID (also for a window that is too short, and for the 21st that waits),
    QUOTA_EXCEEDED (no_line) and NO_CAPACITY (asked, offered) for what no waiting brings,
    KEY_REUSED, IN_PROGRESS, BUSY; then nothing is written.
    """
    wish = wishes.check(asked)
    if asked.duration is None:
        raise invalid("/duration", "required")
    window = _window(wish.wanted.period, latest, wish.now, asks_first=asks_first)
    _check_ever(wish, partial_ok=partial_ok)
    row = _row(wish, window, partial_ok=partial_ok, asks_first=asks_first)
    return _join(actor=asked.actor, row=row, now=wish.now, claim=claim)


@locks.use_case
def _join(*, actor: User, row: Reservation, now: datetime, claim: Claim | None) -> Reservation:
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    pool = locks.pool(row.pool_id)
    if Reservation.objects.filter(pool=pool, booked_by=actor, state=State.WAITING).count() >= MOST:
        raise invalid("/pool", "too_many", max=MOST)
    row.save(force_insert=True)
    events.record(
        "reservation.joined",
        actor=actor,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        after=grants.facts(row, []) | _facts(row),
    )
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=row.pk, now=now)
    return row


def _window(first: Period, latest: datetime | None, now: datetime, *, asks_first: bool) -> Period:
    """From the earliest start to the latest end. Refuses with INVALID (too_early, too_far), NAIVE_TIME."""
    assert first.end is not None
    if latest is None:
        return Period(first.start, first.end + queries.LONGEST)
    last = Period(first.start, latest).end
    assert last is not None
    least = first.end + (queries.LEAST_OFFER if asks_first else timedelta())
    if last < least:
        raise invalid("/latest", "too_early", min=least.isoformat())
    if last > now + wishes.AHEAD:
        raise invalid("/latest", "too_far", max=(now + wishes.AHEAD).isoformat())
    return Period(first.start, last)


def may_help(code: str, told: Mapping[str, Any], *, partial_ok: bool) -> bool:
    """Whether waiting may bring what was refused with this code and these numbers."""
    if code == Code.NO_CAPACITY:
        there = {why for why, number in told.get("counts", {}).items() if number}
        enough = 1 if partial_ok else told.get("asked", 1)
        return bool(told.get("offered", 0) >= enough or there & MAY_COME_BACK)
    if code != Code.QUOTA_EXCEEDED or told.get("reason") not in WAITS_FOR:
        return False
    most = told.get("budget" if told.get("reason") == "over_budget" else "cap", 0)
    return partial_ok or told.get("asked", 0) <= most or told.get("reason") in _NOT_OWN


def _check_ever(wish: Wish, *, partial_ok: bool) -> None:
    """Refuses what no waiting brings: more than the pool has when it is empty, or than the team may have."""
    snap = snapshot.take(wish.pool.pk, wish.wanted.reading, team_id=wish.team.pk, now=wish.now)
    _check_threshold(wish, snap)
    try:
        payable.payable(wish.pool, wish.team.pk, plans.choose(snap, wish.wanted), wish.wanted.period)
    except NoRoom:
        told = plans.no_capacity(snap, wish.wanted, None)
        if not may_help(told.code, told.data, partial_ok=partial_ok):
            raise told from None
    except Refusal as refusal:
        if not may_help(refusal.code, refusal.data, partial_ok=partial_ok):
            raise


def _check_threshold(wish: Wish, snap: Snapshot) -> None:
    """What needs an approver is not waited for: it is asked for with a start that can still be approved."""
    wanted = wish.wanted
    charges = serving(snap.fleet, wanted.ask, wish.now, account=wanted.account, window=snap.window)
    milli = wanted.ask.count * min(charges.values(), default=0)
    if thresholds.needs(wish.pool, milli):
        above = wish.pool.approve_above_milli
        raise Refusal(Code.NEEDS_APPROVAL, reason="not_from_wait", above_milli=above, asked_milli=milli)


def _row(wish: Wish, window: Period, *, partial_ok: bool, asks_first: bool) -> Reservation:
    wanted, terms = wish.wanted, wish.terms
    preempt = terms.preempt
    return Reservation(
        team=wish.team,
        pool=wish.pool,
        owner=wish.owner,
        booked_by=wish.actor,
        title=wish.title,
        ask=ask_json(wanted.ask),
        klass=wanted.klass,
        state=State.WAITING,
        state_reason=Reason.NOT_YET if window.start > wish.now else Reason.NO_CAPACITY,
        period=TimestamptzRange(wanted.period.start, wanted.period.end),
        created_at=wish.now,
        charge_milli=0,
        visibility=wish.visibility,
        restartable=wish.restartable,
        preemptible=not terms.firm,
        priority=terms.priority,
        preempt_signal=preempt.signal if preempt else "",
        preempt_grace_s=round(preempt.grace.total_seconds()) if preempt else None,
        justification=terms.justification,
        window=TimestamptzRange(window.start, window.end),
        waiting_since=wish.now,
        partial_ok=partial_ok,
        asks_first=asks_first,
    )


def _facts(row: Reservation) -> dict[str, Any]:
    return {
        "earliest": row.window.lower.isoformat(),
        "latest": row.window.upper.isoformat(),
        "partial_ok": row.partial_ok,
        "asks_first": row.asks_first,
    }
