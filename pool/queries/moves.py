"""Bookings that may be placed anew for somebody else: they have not begun, nothing of them is wanted yet."""

from __future__ import annotations

from collections.abc import Callable

from django.db.models import Exists, OuterRef, Q
from psycopg.types.range import TimestamptzRange

from pool.core.moves import Movable
from pool.core.period import Period
from pool.core.shapes import Class, stored_ask
from pool.core.states import State
from pool.models import Allocation, Reservation, Team, User

#: So many of them are looked at, the least first: more sets are never tried.
MOST = 64

_FROZEN = Q(gpu__frozen=True) | Q(gpu__node__frozen=True) | Q(gpu__node__agent_frozen=True)


def movable(pool_id: int, period: Period, account: Callable[[User, Team], str]) -> list[Movable]:
    """Those that block something in `period`: scheduled, never online, and on nothing that is frozen.

    `account` says whose MPS server the shares of an owner need.
    """
    held = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True)
    there = held.filter(blocked__overlap=TimestamptzRange(period.start, period.end))
    rows = (
        Reservation.objects.filter(Exists(there), pool=pool_id, state=State.SCHEDULED, pool__frozen=False)
        .exclude(klass=Class.ONLINE)
        .exclude(Exists(held.filter(_FROZEN | Q(wanted_at__isnull=False))))
        .select_related("owner", "team")
        .prefetch_related("allocations")
        .order_by("charge_milli", "pk")
    )
    return [_movable(row, account) for row in rows[:MOST]]


def _movable(row: Reservation, account: Callable[[User, Team], str]) -> Movable:
    held = [one for one in row.allocations.all() if one.holds]
    # All of a booking is blocked for the same time but for a change of mode before it.
    return Movable(
        reservation=row.pk,
        ask=stored_ask(row.ask),
        period=Period(row.period.lower, max(one.blocked.upper for one in held)),
        charge_milli=row.charge_milli,
        gpus=frozenset(one.gpu_id for one in held),
        account=account(row.owner, row.team),
    )
