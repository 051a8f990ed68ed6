"""Extending a reservation: the added time is checked like a new booking, on the same GPUs and spans.

Doors reach `extend` as services.reservations.extend. What was asked never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db.models import Func, Value
from django.db.models.functions import Lower
from psycopg.types.range import TimestamptzRange

from pool.core import limits, placement, shares
from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period
from pool.core.placement import Busy, Pick
from pool.core.roles import Action
from pool.core.states import State
from pool.models import Allocation, Blocker, Pool, Reservation
from pool.queries import access, snapshot
from pool.queries.snapshot import Snapshot
from pool.services import events, grants, idempotency, locks, plans, spending, thresholds, wishes
from pool.services.idempotency import Claim

if TYPE_CHECKING:
    from pool.models import User

#: What has begun to end, or is over, gets no more time.
EXTENDABLE = (State.SCHEDULED, State.STARTING, State.ACTIVE)


@locks.use_case
def extend(
    *,
    actor: User,
    reservation_id: UUID,
    end: datetime | None = None,
    duration: timedelta | None = None,
    version: int | None = None,
    now: datetime,
    claim: Claim | None = None,
) -> Reservation:
    """Move the end to a later `end`, or by `duration`; exactly one of them.

    A `claim` that was carried out before answers the reservation as it is now
    (`replayed`). Refuses with NOT_FOUND, FORBIDDEN, INVALID, STALE, WRONG_STATE
    (state, doing), NEEDS_APPROVAL, KEY_REUSED, IN_PROGRESS, BUSY, and for the added time with
    NO_CAPACITY (asked, free, counts, latest_end) and QUOTA_EXCEEDED.
    """
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    seen = access.reservation(actor, reservation_id)
    own = seen.owner_id == actor.pk and access.can(actor, Action.EXTEND_OWN, seen.team)
    if not own:
        access.require(actor, Action.EXTEND_TEAM, seen.team)
    pool = locks.pool(seen.pool_id)
    row = locks.reservation(reservation_id, version)
    if row.state not in EXTENDABLE:
        raise Refusal(Code.WRONG_STATE, state=row.state, doing="extend")
    if row.recall_at is not None:
        raise Refusal(Code.WRONG_STATE, state="recalled", doing="extend")
    thresholds.no_extension(pool, row.charge_milli)
    added = _added(row, end, duration, now)
    slices = list(Allocation.objects.filter(reservation=row, holds=True).order_by("pk"))
    _check(pool, row, slices, added, now)
    _write(pool, row, added, actor, now)
    if claim:
        idempotency.keep(claim, resource=row.pk, now=now, status=200)
    return row


def _added(row: Reservation, end: datetime | None, duration: timedelta | None, now: datetime) -> Period:
    """The time to be added: from the present end to the new one."""
    if (end is None) == (duration is None):
        raise invalid("/end" if end else "/duration", "one_of", choices=["end", "duration"])
    pointer = "/end" if end else "/duration"
    old = row.period.upper
    new = Period(row.period.lower, end or old + duration).end
    assert new is not None
    if new <= old:
        raise invalid(pointer, "not_later", end=new.isoformat(), current=old.isoformat())
    if new <= now:
        raise invalid(pointer, "end_in_past", end=new.isoformat(), now=now.isoformat())
    wishes.check_duration(Period(row.period.lower, new), pointer)
    return Period(old, new)


def _check(pool: Pool, row: Reservation, slices: Sequence[Allocation], added: Period, now: datetime) -> None:
    wanted = replace(wishes.again(row, pool, added), period=added, blocked=wishes.blocked(added, pool))
    snap = snapshot.take(
        pool.pk,
        wanted.blocked,
        team_id=row.team_id,
        now=now,
        gpu_ids={one.gpu_id for one in slices},
        whole_nodes=any(one.cpu_milli or one.ram_mib for one in slices),
        without=row.pk,
    )
    _check_room(snap, slices, wanted.blocked, pool)
    picks = _picks(snap, slices)
    plans.borrowed(snap, picks, wanted)
    _check_limits(snap, row, picks, added)
    spending.check(
        pool, row.team_id, picks, added, without=row.pk if added.start <= row.period.lower else None
    )


def _check_limits(snap: Snapshot, row: Reservation, picks: Sequence[Pick], added: Period) -> None:
    """What one booking may be holds for all of its time, also that which it had."""
    path = set(snap.standing.charter.tree.path(row.team_id))
    models = {pick.model for pick in picks}
    lines = snap.standing.charter.all_lines.values()
    limits.check(
        [one for one in lines if one.team in path and (one.model is None or one.model in models)],
        kind=str(row.ask.get("kind", "")),
        largest_milli=max(pick.charge_milli for pick in picks),
        milli=sum(pick.charge_milli for pick in picks),
        period=Period(min(row.period.lower, added.start), added.end),
        now=min(snap.now, row.period.lower),
    )


def recheck(pool: Pool, row: Reservation, now: datetime) -> None:
    """A step: whether what it holds can still be given for all of its time. As `extend` refuses."""
    slices = list(Allocation.objects.filter(reservation=row, holds=True).order_by("pk"))
    _check(pool, row, slices, Period(row.period.lower, row.period.upper), now)


def check_again(pool: Pool, row: Reservation, again: Period, now: datetime) -> None:
    """A step: whether what was to be taken back at the start of `again` can stay for that time after all."""
    slices = list(Allocation.objects.filter(reservation=row, holds=True).order_by("pk"))
    _check(pool, row, slices, again, now)


def _check_room(snap: Snapshot, slices: Sequence[Allocation], added: Period, pool: Pool) -> None:
    """Refuses with NO_CAPACITY; `latest_end` is the end that would still fit."""
    picks = _picks(snap, slices)
    why = placement.clash(snap.gpus, picks, added) if len(picks) == len(slices) else "no_such_profile"
    why = why or placement.node_clash(snap.fleet, picks, added, snap.now, without=snap.without)
    if why is None:
        return
    if why == "busy":
        why = _standing_there(snap, picks, added) or why
    free = sum(placement.clash(snap.gpus, [pick], added) is None for pick in picks)
    latest = _latest(snap, picks, added, why)
    if latest is not None:
        latest = max(latest - timedelta(seconds=pool.scrub_seconds), added.start)
    raise Refusal(
        Code.NO_CAPACITY,
        asked=len(slices),
        free=min(free, len(slices) - 1),
        counts={why: len(slices) - free or 1},
        latest_end=latest.isoformat() if latest else None,
    )


#: What stands where nothing is booked, by the words of what is in the way.
_THERE = {
    Blocker.Kind.OVERRUN: "overrun",
    Blocker.Kind.FOREIGN: "foreign",
    Blocker.Kind.UNKNOWN: "unknown",
    Blocker.Kind.HEALTH: "unhealthy",
}


def _standing_there(snap: Snapshot, picks: Sequence[Pick], added: Period) -> str | None:
    """What stands on these spans without being booked; None where a booking is in the way."""
    if any(one.tenancy != snapshot.BLOCKER for one in _on_spans(snap, picks, added)):
        return None
    found = Blocker.objects.filter(gpu__in={pick.gpu_id for pick in picks}).order_by("since", "pk")
    spans = {(pick.gpu_id, at) for pick in picks for at in range(pick.start, pick.start + pick.size)}
    for one in found:
        if any((one.gpu_id, at) in spans for at in range(one.span.lower, one.span.upper)):
            return _THERE[Blocker.Kind(one.kind)]
    return None


def _picks(snap: Snapshot, slices: Sequence[Allocation]) -> list[Pick]:
    """The slices as placement knows them, without those whose profile is not offered any more."""
    profiles = {(gpu.id, p.profile_id): p for gpu in snap.gpus for p in gpu.profiles}
    return [
        Pick(
            one.gpu_id,
            one.model,
            profiles.get((one.gpu_id, one.profile_id)) if one.profile_id is not None else None,
            one.span.lower,
            one.span.upper - one.span.lower,
            one.charge_milli,
            grants.portion(one) if one.kind == Allocation.Kind.SHARE else None,
            one.cpu_milli,
            one.ram_mib,
        )
        for one in slices
        if one.profile_id is None or (one.gpu_id, one.profile_id) in profiles
    ]


def _latest(snap: Snapshot, picks: Sequence[Pick], added: Period, why: str) -> datetime | None:
    """Until when they could stay: slices until their spans are booked, shares until a ledger is full."""
    if why == "busy":
        return _next_booking(snap, picks, added)
    if why not in shares.FULL:
        return None
    on = {pick.gpu_id for pick in picks}
    starts = {busy.period.start for gpu in snap.gpus if gpu.id in on for busy in gpu.busy}
    later = sorted(start for start in starts if added.contains(start) and start > added.start)
    fitting = (at for at in reversed(later) if not placement.clash(snap.gpus, picks, Period(added.start, at)))
    return next(fitting, added.start)


def _next_booking(snap: Snapshot, picks: Sequence[Pick], added: Period) -> datetime | None:
    """When the first of the spans is wanted by somebody else."""
    return min((busy.period.start for busy in _on_spans(snap, picks, added)), default=None)


def _on_spans(snap: Snapshot, picks: Sequence[Pick], added: Period) -> list[Busy]:
    """What is in the way of slices on their spans at any time of that."""
    spans = {(pick.gpu_id, at) for pick in picks for at in range(pick.start, pick.start + pick.size)}
    return [
        busy
        for gpu in snap.gpus
        for busy in gpu.busy
        if busy.period.overlaps(added)
        and any((gpu.id, at) in spans for at in range(busy.start, busy.start + busy.size))
    ]


def _write(pool: Pool, row: Reservation, added: Period, actor: User, now: datetime) -> None:
    before = {"end": row.period.upper.isoformat(), "version": row.version}
    row.period = TimestamptzRange(row.period.lower, added.end)
    row.version += 1
    row.save(update_fields=["period", "version"])
    until = wishes.blocked(added, pool).end
    Allocation.objects.filter(reservation=row, holds=True).update(
        period=_until("period", added.end), blocked=_until("blocked", until)
    )
    events.record(
        "reservation.extended",
        actor=actor,
        now=now,
        team_id=row.team_id,
        pool_id=pool.pk,
        reservation_id=row.pk,
        before=before,
        after={"end": row.period.upper.isoformat(), "version": row.version},
    )
    locks.changed(pool)


def _until(field: str, end: datetime | None) -> Func:
    return Func(Lower(field), Value(end), function="tstzrange")
