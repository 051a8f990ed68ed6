"""What is granted, written: the reservation, its rectangles on GPUs, its line in the audit.

Steps under the lock on the pool; what is granted is decided in plans.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg.types.range import Int4Range, TimestamptzRange

from pool.core import mig
from pool.core.period import Period
from pool.core.shapes import ask_json
from pool.core.states import Reason, State
from pool.models import Allocation, Pool, Reservation
from pool.models.reservations import new_id
from pool.services import commands, events, locks
from pool.services.plans import Plan, Wanted
from pool.services.wishes import Wish


def write(wish: Wish, pool: Pool, plan: Plan) -> Reservation:
    state, reason, goes = _first_state(wish, pool, plan)
    reservation = Reservation(
        team=wish.team,
        pool=pool,
        owner=wish.owner,
        booked_by=wish.actor,
        title=wish.title,
        ask=ask_json(wish.wanted.ask),
        klass=wish.wanted.klass,
        state=state,
        state_reason=reason,
        period=_range(wish.wanted.period),
        created_at=wish.now,
        charge_milli=sum(pick.charge_milli for pick in plan.picks),
        visibility=wish.visibility,
    )
    reservation.save(force_insert=True)
    rows = allocate(reservation, plan, wish.wanted, wanted_at=wish.now if goes else None)
    events.record(
        "reservation.booked",
        actor=wish.actor,
        now=wish.now,
        team_id=wish.team.pk,
        pool_id=pool.pk,
        reservation_id=reservation.pk,
        after=facts(reservation, rows),
    )
    locks.changed(pool)
    if goes:
        commands.issue(locks.gpus(row.gpu_id for row in rows), wish.now)
    return reservation


def _first_state(wish: Wish, pool: Pool, plan: Plan) -> tuple[State, Reason, bool]:
    """State, reason, and whether its slices are wanted at once."""
    if not wish.starts_now:
        return State.SCHEDULED, Reason.BOOKED, False
    if pool.frozen:
        return State.STARTING, Reason.FROZEN, False
    if not plan.clean:
        return State.STARTING, Reason.WAITING_FOR_CLEANUP, False
    return State.STARTING, Reason.WAITING_FOR_NODE, True


def allocate(
    reservation: Reservation, plan: Plan, wanted: Wanted, *, wanted_at: datetime | None
) -> list[Allocation]:
    """Write the rectangles of a plan; they hold from here on."""
    rows = []
    for pick in plan.picks:
        key = new_id()
        rows.append(
            Allocation(
                id=key,
                reservation=reservation,
                gpu_id=pick.gpu_id,
                kind=Allocation.Kind.MIG if pick.profile else Allocation.Kind.GPU,
                model=pick.model,
                profile=pick.profile.name if pick.profile else "",
                profile_id=pick.profile.profile_id if pick.profile else None,
                span=Int4Range(pick.start, pick.start + pick.size),
                period=_range(wanted.period),
                blocked=_range(wanted.blocked),
                tenancy=key,
                holds=True,
                takes_media=bool(pick.profile and mig.takes_media(pick.profile)),
                media_group=mig.media_group(pick.profile) if pick.profile else None,
                charge_milli=pick.charge_milli,
                wanted_at=wanted_at,
            )
        )
    Allocation.objects.bulk_create(rows)
    return rows


def _range(period: Period) -> TimestamptzRange:
    return TimestamptzRange(period.start, period.end)


def facts(reservation: Reservation, rows: list[Allocation]) -> dict[str, Any]:
    """What the audit keeps of a reservation and its rectangles."""
    start, end = reservation.period.lower, reservation.period.upper
    return {
        "state": str(reservation.state),
        "reason": str(reservation.state_reason),
        "version": reservation.version,
        "start": start.isoformat(),
        "end": end.isoformat() if end else None,
        "owner_id": reservation.owner_id,
        "class": str(reservation.klass),
        "ask": reservation.ask,
        "charge_milli": reservation.charge_milli,
        "allocations": [
            {
                "id": str(row.pk),
                "gpu_id": row.gpu_id,
                "profile": row.profile or None,
                "span": [row.span.lower, row.span.upper],
            }
            for row in rows
        ],
    }
