"""What is granted, written: the reservation, its rectangles on GPUs, its line in the audit.

Steps under the lock on the pool; what is granted is decided in plans.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.range import Int4Range, TimestamptzRange

from pool.core import mig
from pool.core.period import Period
from pool.core.placement import SWITCH, Pick, Portion
from pool.core.shapes import ALL_PCT, GpuAsk, ask_json
from pool.core.states import HOLDING, Reason, State
from pool.core.topology import channel
from pool.models import Allocation, Gpu, Pool, Reservation
from pool.models.reservations import SHARED, new_id
from pool.services import commands, events, locks, notices, thresholds
from pool.services.plans import Plan, Wanted, charged
from pool.services.wishes import Wish

_VERBS = {State.HELD: "reservation.held", State.PENDING_APPROVAL: "reservation.pending_approval"}


def write(wish: Wish, pool: Pool, plan: Plan, *, reclaiming: bool = False) -> Reservation:
    """Refuses with NEEDS_APPROVAL what is above the pool's threshold and leaves no time to ask.

    `reclaiming`: others are still there, who leave when it begins.
    """
    approve_by = _approve_by(wish, pool, charged(plan))
    state, reason, goes = _first_state(wish, pool, plan, pending=approve_by is not None)
    if reclaiming:
        state, reason, goes = State.SCHEDULED, Reason.RECLAIMING, False
    reservation = _row(wish, pool, plan)
    reservation.state, reservation.state_reason, reservation.approve_by = state, reason, approve_by
    reservation.save(force_insert=True)
    rows = allocate(reservation, plan, wish.wanted, wanted_at=wish.now if goes else None)
    events.record(
        _VERBS.get(state, "reservation.booked"),
        actor=wish.actor,
        now=wish.now,
        team_id=wish.team.pk,
        pool_id=pool.pk,
        reservation_id=reservation.pk,
        after=facts(reservation, rows),
    )
    locks.changed(pool)
    if state == State.PENDING_APPROVAL:
        notices.ask_approvers(reservation, now=wish.now)
    if goes:
        commands.issue(locks.gpus(row.gpu_id for row in rows), wish.now)
    return reservation


def _row(wish: Wish, pool: Pool, plan: Plan) -> Reservation:
    return Reservation(
        team=wish.team,
        pool=pool,
        owner=wish.owner,
        booked_by=wish.actor,
        title=wish.title,
        ask=ask_json(wish.wanted.ask),
        klass=wish.wanted.klass,
        period=_range(wish.wanted.period),
        created_at=wish.now,
        charge_milli=charged(plan),
        hold_until=wish.hold_until,
        imex_channel=channel_of(pool, plan, wish.wanted),
        visibility=wish.visibility,
        restartable=wish.restartable,
        **terms(wish),
    )


def terms(wish: Wish) -> dict[str, Any]:
    """The columns that keep the terms of a wish."""
    preempt = wish.terms.preempt
    return {
        "preemptible": not wish.terms.firm,
        "priority": wish.terms.priority,
        "preempt_signal": preempt.signal if preempt else "",
        "preempt_grace_s": int(preempt.grace.total_seconds()) if preempt else None,
        "justification": wish.terms.justification,
    }


def channel_of(pool: Pool, plan: Plan, wanted: Wanted, own: UUID | None = None) -> int | None:
    """The IMEX channel by which GPUs on several nodes share memory; None where no GPU needs one.

    Nobody else's in the pool, whenever that holds: either may be extended, or take longer to end.
    `own` is the reservation itself, where it has a row.
    """
    ask = wanted.ask
    if not isinstance(ask, GpuAsk) or not ask.same_nvlink_domain:
        return None
    ids = [pick.gpu_id for pick in plan.picks]
    if Gpu.objects.filter(pk__in=ids).values("node_id").distinct().count() < 2:
        return None
    others = Reservation.objects.filter(pool=pool, state__in=HOLDING, imex_channel__isnull=False)
    if own is not None:
        others = others.exclude(pk=own)
    taken = others.values_list("imex_channel", flat=True)
    return channel([one for one in taken if one is not None])


def _approve_by(wish: Wish, pool: Pool, milli: int) -> datetime | None:
    """Until when it has to be approved; None where nobody has to."""
    if not thresholds.needs(pool, milli):
        return None
    return thresholds.approve_by(pool, milli, wish.wanted.period, team_id=wish.team.pk, now=wish.now)


def _first_state(wish: Wish, pool: Pool, plan: Plan, *, pending: bool) -> tuple[State, Reason, bool]:
    """State, reason, and whether its slices are wanted at once."""
    if wish.hold_until is not None:
        return State.HELD, Reason.OFFERED, False
    if pending:
        return State.PENDING_APPROVAL, Reason.NEEDS_APPROVAL, False
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
                model=pick.model,
                span=Int4Range(pick.start, pick.start + pick.size),
                period=_range(wanted.period),
                blocked=_range(_blocked(wanted.blocked, pick)),
                holds=True,
                cpu_milli=pick.cpu_milli,
                ram_mib=pick.ram_mib,
                charge_milli=pick.charge_milli,
                wanted_at=wanted_at,
                **_kind(pick, key),
            )
        )
    Allocation.objects.bulk_create(rows)
    return rows


def _blocked(period: Period, pick: Pick) -> Period:
    """With the time before it in which the GPU changes its mode, where it has to."""
    return Period(period.start - SWITCH, period.end) if pick.switch else period


def _kind(pick: Pick, key: UUID) -> dict[str, Any]:
    """The columns by which a slice, a share and a whole GPU differ. Shares have one tenancy in common."""
    if pick.portion is not None:
        return {
            "kind": Allocation.Kind.SHARE,
            "tenancy": SHARED,
            "share_memory_mib": pick.portion.memory_mib,
            "share_compute_pct": pick.portion.compute_pct,
            "share_limit_pct": pick.portion.limit_pct,
            "mps_user": pick.portion.user,
        }
    if pick.profile is None:
        return {"kind": Allocation.Kind.GPU, "tenancy": key}
    return {
        "kind": Allocation.Kind.MIG,
        "tenancy": key,
        "profile": pick.profile.name,
        "profile_id": pick.profile.profile_id,
        "takes_media": mig.takes_media(pick.profile),
        "media_group": mig.media_group(pick.profile),
    }


def portion(one: Allocation) -> Portion:
    """What an allocation that is a share takes of its GPU."""
    assert one.share_memory_mib is not None
    limit = one.share_limit_pct or ALL_PCT
    return Portion(one.share_memory_mib, one.share_compute_pct or 0, limit, one.mps_user)


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
                **_share_facts(row),
            }
            for row in rows
        ],
    }


def _share_facts(row: Allocation) -> dict[str, Any]:
    if row.kind != Allocation.Kind.SHARE:
        return {}
    compute = {"guaranteed": row.share_compute_pct, "limit": row.share_limit_pct}
    return {"memory_mib": row.share_memory_mib, "compute": compute}
