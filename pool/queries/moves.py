"""Bookings that may be placed anew for somebody else: they have not begun, nothing of them is wanted yet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from pool.core.moves import Movable
from pool.core.period import Period
from pool.core.shapes import Class, stored_ask
from pool.core.states import State
from pool.models import Allocation, Reservation, Team, User

_FROZEN = Q(gpu__frozen=True) | Q(gpu__node__frozen=True) | Q(gpu__node__agent_frozen=True)


def movable(
    pool_id: int, some: Collection[UUID], account: Callable[[User, Team], str], *, now: datetime
) -> list[Movable]:
    """Those of `some` that are scheduled, not yet begun, never online, and on nothing that is frozen.

    Neither what is taken back nor for whom it is.

    Those that count least first. `account` says whose MPS server the shares of an owner need.
    Which of a pool's bookings are worth asking for: core/clearing and core/defrag.
    """
    held = Allocation.objects.filter(reservation=OuterRef("pk"), holds=True)
    rows = (
        Reservation.objects.filter(pk__in=some, pool=pool_id, state=State.SCHEDULED, pool__frozen=False)
        .filter(Exists(held), period__startswith__gt=now)
        .exclude(klass=Class.ONLINE)
        .exclude(Exists(held.filter(_FROZEN | Q(wanted_at__isnull=False))))
        # What is taken back, or waits for that, has places that belong together.
        .filter(recall_at=None, recalls=None)
        .select_related("owner", "team")
        .prefetch_related("allocations")
        .order_by("charge_milli", "pk")
    )
    return [_movable(row, account) for row in rows]


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
