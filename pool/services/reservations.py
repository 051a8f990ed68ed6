"""Reservations after they were booked: extend, release, and the steps that move them through their states.

`_move` and `_end_window` are the only places that change `holds`. Which starts
may go is decided in starts.py, what a report settles in settling.py, and what
is due in lanes.py. The steps need the lock on the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Case, DateTimeField, Func, QuerySet, Value, When
from django.db.models.functions import Greatest, Lower

from pool.core import budget, states
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.roles import Action, TeamRole
from pool.core.states import HOLDING, TERMINAL, Reason, State
from pool.models import Allocation, Reservation
from pool.queries import access, teams
from pool.services import commands, events, idempotency, locks, suspects
from pool.services.booking import book as book
from pool.services.extension import extend as extend
from pool.services.holds import confirm as confirm
from pool.services.holds import hold as hold
from pool.services.idempotency import Claim
from pool.services.waitlist import join as join

if TYPE_CHECKING:
    from pool.models import User

#: What has begun to end, or is over, has nothing left to give back.
RELEASABLE = (
    *(State.HELD, State.PENDING_APPROVAL, State.WAITING),
    *(State.SCHEDULED, State.STARTING, State.ACTIVE, State.PAUSED),
)
#: Its start has not come: it is cancelled, not ended.
NOT_BEGUN = (State.HELD, State.PENDING_APPROVAL, State.WAITING, State.SCHEDULED)
#: Nobody else could have had it meanwhile: giving it back late may cost something.
PRICED = (State.SCHEDULED, State.STARTING, State.ACTIVE, State.PAUSED)

#: What an end is for -> what it is when it is over, if not simply ended.
_OVER = {
    Reason.NEVER_STARTED: State.EXPIRED,
    Reason.GPU_LOST: State.FAILED,
    Reason.NODE_LOST: State.FAILED,
    Reason.RECLAIMED: State.PREEMPTED,
}


@locks.use_case
def release(
    *,
    actor: User,
    reservation_id: UUID,
    version: int | None = None,
    waive: bool = False,
    now: datetime,
    claim: Claim | None = None,
) -> Reservation:
    """Give it back: before its start it is cancelled, later it ends and its GPUs are cleaned.

    The owner, a lead of the team or an operator may. Where the pool has a price for giving back late
    (`late_price`), that is retained, unless a lead (not of their own) or an approver waives it. A
    `claim` that was carried out before answers the reservation as it is now (`replayed`). Refuses
    with NOT_FOUND, FORBIDDEN, STALE (version, known), WRONG_STATE (state, doing), KEY_REUSED,
    IN_PROGRESS, BUSY.
    """
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    seen = access.reservation(actor, reservation_id)
    own = _may_release(actor, seen, waive=waive)
    pool = locks.pool(seen.pool_id)
    row = locks.reservation(reservation_id, version)
    if row.state not in RELEASABLE:
        raise Refusal(Code.WRONG_STATE, state=row.state, doing="release")
    row.pool = pool
    _retain(row, 0 if waive else late_price(row, now))
    if row.state in NOT_BEGUN:
        reason = Reason.CANCELLED if own else _by_whom(actor, row, Reason.CANCELLED_BY_LEAD)
        _move([row], State.CANCELLED, reason, now=now, actor=actor)
    else:
        reason = Reason.RELEASED if own else _by_whom(actor, row, Reason.RELEASED_BY_LEAD)
        commands.issue(locks.gpus(end([row], reason, now=now, actor=actor)), now)
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=row.pk, now=now, status=200)
    return row


def _may_release(actor: User, row: Reservation, *, waive: bool) -> bool:
    """FORBIDDEN, or whether it is the actor's own."""
    own = row.owner_id == actor.pk and access.can(actor, Action.RELEASE_OWN, row.team)
    if not own:
        access.require(actor, Action.RELEASE_TEAM, row.team)
    if waive:
        _require_waiver(actor, row)
    return own


def late_price(row: Reservation, now: datetime) -> int:
    """What giving it back at `now` would retain, in milli-GPU-hours; 0 where the pool has no such price."""
    if not row.pool.late_release_price or row.state not in PRICED or row.period.upper is None:
        return 0
    return budget.late_release(row.charge_milli, Period(row.period.lower, row.period.upper), now)


def _retain(row: Reservation, price: int) -> None:
    """`None`, as it was, says that nothing was decided because there is no such price."""
    if row.pool.late_release_price and row.state in PRICED:
        row.retained_milli_hours = price
        row.save(update_fields=["retained_milli_hours"])


def _require_waiver(actor: User, row: Reservation) -> None:
    """A lead of the team, but not of their own booking, or an approver."""
    if row.owner_id == actor.pk or not access.can(actor, Action.BOOK_FOR_OTHERS, row.team):
        access.require(actor, Action.SET_QUOTA)


def _by_whom(actor: User, row: Reservation, lead: Reason) -> Reason:
    role = teams.reach(actor).get(row.team_id)
    return lead if role == TeamRole.LEAD else Reason.STOPPED_BY_OPERATOR


# --- Steps --------------------------------------------------------------------


def begin(rows: Sequence[Reservation], reason: Reason, *, now: datetime) -> set[int]:
    """Their start has come and nothing is in the way: want their slices. The GPUs to be commanded."""
    if not rows:
        return set()
    _move([row for row in rows if row.state in NOT_BEGUN], State.STARTING, reason, now=now)
    note(rows, reason, now=now)
    slices = Allocation.objects.filter(reservation__in=rows, holds=True)
    slices.filter(wanted_at=None).update(wanted_at=now)
    return set(slices.values_list("gpu_id", flat=True))


def wait(rows: Sequence[Reservation], reason: Reason, *, now: datetime) -> None:
    """Their start has come, but something is in the way: they are starting, and nothing is wanted yet."""
    _move([row for row in rows if row.state in NOT_BEGUN], State.STARTING, reason, now=now)
    note(rows, reason, now=now)


def schedule(
    rows: Sequence[Reservation], *, now: datetime, actor: User | None, reason: Reason = Reason.BOOKED
) -> None:
    """Held: booked by whom it was held for. Waited: given a later start. Pending: an approver said yes."""
    _move(rows, State.SCHEDULED, reason, now=now, actor=actor)


def submit(rows: Sequence[Reservation], *, now: datetime, actor: User) -> None:
    """What was held is booked, and needs an approver."""
    _move(rows, State.PENDING_APPROVAL, Reason.NEEDS_APPROVAL, now=now, actor=actor)


def deny(rows: Sequence[Reservation], *, now: datetime, actor: User) -> None:
    """An approver said no."""
    _move(rows, State.DENIED, Reason.DENIED, now=now, actor=actor)


def queue(row: Reservation, reason: Reason = Reason.NO_CAPACITY, *, now: datetime) -> None:
    """It could not start where it was to, or let an offer lapse; it waits in line and holds nothing."""
    _move([row], State.WAITING, reason, now=now)


def offer(row: Reservation, *, now: datetime) -> None:
    """What waited is held until its owner accepts."""
    _move([row], State.HELD, Reason.OFFERED, now=now)


def activate(rows: Sequence[Reservation], reason: Reason, *, now: datetime, label: str) -> None:
    """All their slices have been seen."""
    _move(rows, State.ACTIVE, reason, now=now, label=label)


def preempt(rows: Sequence[Reservation], *, now: datetime) -> None:
    """What of them was borrowed is taken back before they began, or between their windows."""
    _move(rows, State.PREEMPTED, Reason.RECLAIMED, now=now)


def lapse(rows: Sequence[Reservation], reason: Reason = Reason.NEVER_STARTED, *, now: datetime) -> None:
    """Their whole time went by while nobody looked, or they have waited for too long."""
    _move(rows, State.EXPIRED, reason, now=now)


def end(rows: Sequence[Reservation], reason: Reason, *, now: datetime, actor: User | None = None) -> set[int]:
    """Take their slices out of what is wanted; the GPUs to be commanded.

    They hold until a report shows them gone. What was never wanted has never
    been on a GPU and is over at once.
    """
    if not rows:
        return set()
    _move(rows, State.ENDING, reason, now=now, actor=actor)
    _end_window(Allocation.objects.filter(reservation__in=rows, holds=True, wanted_at=None), now)
    close(rows, now=now)
    left = Allocation.objects.filter(reservation__in=rows, holds=True)
    return set(left.values_list("gpu_id", flat=True))


def fail(rows: Sequence[Reservation], gone: Collection[UUID], reason: Reason, *, now: datetime) -> set[int]:
    """Their hardware is gone, with it the allocations `gone`; the GPUs to be commanded.

    Nothing there will ever be seen clean, so what was only there has failed at
    once. Where a booking has more, that ends first, and it fails when it is over.
    """
    held = Allocation.objects.filter(reservation__in=rows, holds=True)
    left = set(held.exclude(pk__in=gone).values_list("reservation_id", flat=True))
    touched = set(held.values_list("gpu_id", flat=True))
    _move([row for row in rows if row.pk not in left], State.FAILED, reason, now=now)
    _end_window(held.filter(pk__in=gone), now)
    return touched | end([row for row in rows if row.pk in left], reason, now=now)


def clean(allocation_ids: Collection[UUID], *, now: datetime) -> None:
    """A report shows that nothing is left of these allocations of ending reservations."""
    _end_window(Allocation.objects.filter(pk__in=allocation_ids, holds=True), now)


def leave(allocation_ids: Collection[UUID], *, now: datetime) -> None:
    """Give up these allocations, which nobody has seen: their booking is placed anew. The rows stay."""
    left = Allocation.objects.filter(pk__in=allocation_ids)
    _end_window(left.filter(holds=True), now)
    left.update(left_at=now, cleaned_at=None)


def close(rows: Sequence[Reservation], *, now: datetime, label: str = "") -> list[Reservation]:
    """End those of these ending reservations that hold nothing any more; returns them."""
    if not rows:
        return []
    holding = set(
        Allocation.objects.filter(reservation__in=rows, holds=True).values_list("reservation_id", flat=True)
    )
    done = [row for row in rows if row.pk not in holding]
    for reason in {Reason(row.state_reason) for row in done}:
        same = [row for row in done if row.state_reason == reason]
        _move(same, _OVER.get(reason, State.ENDED), reason, now=now, label=label)
    return done


def note(rows: Sequence[Reservation], reason: Reason, *, now: datetime, label: str = "") -> None:
    """Say why they are in their state; what says so already is left alone."""
    other = [row for row in rows if row.state_reason != reason]
    _write(other, "reservation.noted", {"state_reason": reason}, now=now, label=label)


def _move(
    rows: Sequence[Reservation],
    to: State,
    reason: Reason,
    *,
    now: datetime,
    actor: User | None = None,
    label: str = "",
) -> None:
    """Change the state of all of them, in one statement; WRONG_STATE if one may not. Holds follow."""
    if not rows:
        return
    for row in rows:
        states.move(State(row.state), to)
    values: dict[str, Any] = {"state": to, "state_reason": reason}
    if to == State.ACTIVE:
        values["started_at"] = now
    if to in TERMINAL:
        values["ended_at"] = now
    _write(rows, f"reservation.{to.value}", values, now=now, actor=actor, label=label)
    if to not in HOLDING:
        _end_window(Allocation.objects.filter(reservation__in=rows, holds=True), now)


def _end_window(slices: QuerySet[Allocation], now: datetime) -> None:
    """These allocations hold no longer; what they block is cut to now.

    `period` is never cut: it is what was booked.
    """
    least = Lower("blocked", output_field=DateTimeField()) + Value(timedelta(microseconds=1))
    cut = Func(Lower("blocked"), Greatest(Value(now), least), function="tstzrange")
    slices.update(
        holds=False,
        blocked=cut,
        cleaned_at=Case(When(wanted_at__isnull=False, then=Value(now)), output_field=DateTimeField()),
    )


def _write(
    rows: Sequence[Reservation],
    verb: str,
    values: dict[str, Any],
    *,
    now: datetime,
    actor: User | None = None,
    label: str = "",
) -> None:
    """Set the same values on all, raise their versions, and write an event for each."""
    if not rows:
        return
    before = [_state(row) for row in rows]
    suspects.update([row.pk for row in rows], values)
    for row in rows:
        row.version += 1
        for name, value in values.items():
            setattr(row, name, value)
    events.write(
        events.draft(
            verb,
            actor=actor,
            now=now,
            label=label,
            team_id=row.team_id,
            pool_id=row.pool_id,
            reservation_id=row.pk,
            before=was,
            after=_state(row),
        )
        for row, was in zip(rows, before, strict=True)
    )


def _state(row: Reservation) -> dict[str, Any]:
    return {"state": str(row.state), "reason": str(row.state_reason), "version": row.version}


def by_id(rows: Iterable[Allocation]) -> dict[UUID, Reservation]:
    """The reservations of these allocations, each once."""
    return {row.reservation_id: row.reservation for row in rows}
