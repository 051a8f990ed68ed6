"""Steps of the due lane for what is taken back: the word before, the end at its time, and putting back.

Whom is taken from, and for whom, is decided in reclaim.py. The pool is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import DatabaseError
from django.db.models import DateTimeField, Exists, ExpressionWrapper, F, Func, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Lower

from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.states import Reason, State
from pool.models import Allocation, Pool, Reservation
from pool.services import events, extension, locks, notices, reservations, starts, waiting, wishes

#: Still there, or still to come: what can be taken back.
_THERE = (State.SCHEDULED, State.STARTING, State.ACTIVE, State.PAUSED)
#: For whom it is taken back still wants it.
_WANTED = (State.HELD, State.PENDING_APPROVAL, *_THERE)


def due(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Those whose time to leave has come; a freeze keeps everybody where they are."""
    frozen = Allocation.objects.filter(starts.FROZEN, reservation=OuterRef("pk"), holds=True)
    rows = _recalled(pool_id).filter(~Exists(frozen), recall_at__lte=now, pool__frozen=False)
    return rows.order_by("recall_at", "pk")


def unneeded(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Those who need not leave any more: what was to have their place is over before it began."""
    rows = _recalled(pool_id).filter(recall_at__gt=now)
    return rows.filter(Q(recall_for=None) | ~Q(recall_for__state__in=_WANTED)).order_by("recall_at", "pk")


def to_warn(pool_id: int, now: datetime) -> set[int]:
    """The GPUs of those whose owner asked for a signal before, and for whom that has not been commanded."""
    grace = F("preempt_grace_s") * Value(timedelta(seconds=1))
    at = ExpressionWrapper(F("recall_at") - grace, output_field=DateTimeField())
    rows = _recalled(pool_id).exclude(preempt_signal="").annotate(at=at).filter(at__lte=now)
    slices = Allocation.objects.filter(
        reservation__in=rows, holds=True, wanted_at__isnull=False, reservation__state__in=_COMMANDED
    )
    return {
        gpu_id
        for pk, gpu_id, wanted in slices.values_list("pk", "gpu_id", "gpu__wanted")
        if not _is_warned(str(pk), wanted)
    }


_COMMANDED = (State.STARTING, State.ACTIVE)


def _is_warned(allocation: str, wanted: dict[str, object] | None) -> bool:
    held = (wanted or {}).get("held") or ()
    assert isinstance(held, list | tuple)
    return any(one["allocation"] == allocation and one.get("phase") == "checkpoint" for one in held)


def _recalled(pool_id: int) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(pool=pool_id, recall_at__isnull=False, state__in=_THERE)
    return rows.select_related("team", "owner", "booked_by", "pool")


def carry_out(rows: Sequence[Reservation], now: datetime) -> set[int]:
    """End them; the rest of each one's time waits at the head of the line. The GPUs to be commanded."""
    idle = [row for row in rows if row.state in (State.SCHEDULED, State.PAUSED)]
    reservations.preempt(idle, now=now)
    running = [row for row in rows if row.state in (State.STARTING, State.ACTIVE)]
    touched = reservations.end(running, Reason.RECLAIMED, now=now)
    for row in rows:
        waiting.restart(row, max(now, row.period.lower), now=now, reason=Reason.RECLAIMED)
    return touched


def put_back(pool: Pool, rows: Sequence[Reservation], now: datetime) -> list[Reservation]:
    """Let those stay whose room nobody has taken meanwhile, within quota; returns them."""
    return [row for row in rows if _stays(pool, row, now)]


def _stays(pool: Pool, row: Reservation, now: datetime) -> bool:
    assert row.recall_at is not None
    again = Period(row.recall_at, row.period.upper)
    try:
        extension.check_again(pool, row, again, now)
        with locks.part():
            _widen(pool, row, again)
    except Refusal:
        return False
    except DatabaseError as error:
        if not locks.lost_a_race(error):
            raise
        return False
    events.record(
        "reservation.put_back",
        actor=None,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        reservation_id=row.pk,
        before={"recall_at": again.start.isoformat()},
        after={"version": row.version},
    )
    key = f"returned:{row.pk}:{again.start.isoformat()}"
    notices.tell(notices.concerned(row), "returned", key=key, now=now, reservation=row)
    return True


def _widen(pool: Pool, row: Reservation, again: Period) -> None:
    until = wishes.blocked(again, pool).end
    blocked = Func(Lower("blocked"), Value(until), function="tstzrange")
    Allocation.objects.filter(reservation=row, holds=True).update(blocked=blocked)
    row.recall_at = row.recall_for = row.notice_until = None
    row.notice_why = ""
    row.version += 1
    row.save(update_fields=["recall_at", "recall_for", "notice_until", "notice_why", "version"])
