"""What a node has to know of the reservations on it, and of its pool's policy, beside the layouts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.urls import reverse

from pool.core import wire
from pool.core.states import State
from pool.models import Pool
from pool.queries import clock

_STAYS = """
SELECT alloc.id, resv.id, gpu.uuid, team.name, owner.username, owner.posix_name, team.posix_name,
    lower(resv.period), upper(resv.period), resv.notice_until, resv.notice_why,
    resv.state = 'ending' AND NOT EXISTS (
        SELECT 1 FROM pool_allocation heir JOIN pool_reservation next ON next.id = heir.reservation_id
        WHERE heir.gpu_id = alloc.gpu_id AND heir.span = alloc.span AND heir.kind = alloc.kind
            AND heir.holds AND heir.wanted_at IS NOT NULL AND next.state IN ('starting', 'active')
            AND next.team_id = resv.team_id AND next.owner_id = resv.owner_id AND next.ask = resv.ask
            AND (alloc.kind <> 'share' OR lower(next.period) = upper(resv.period)))
FROM pool_allocation alloc
JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
JOIN pool_reservation resv ON resv.id = alloc.reservation_id
JOIN pool_team team ON team.id = resv.team_id
JOIN pool_user owner ON owner.id = resv.owner_id
WHERE gpu.node_id = %s AND alloc.holds AND alloc.wanted_at IS NOT NULL AND resv.state = ANY(%s)
ORDER BY gpu.index, alloc.span, alloc.id
"""


def of_node(node_id: int) -> tuple[wire.Stay, ...]:
    """The stays on the node's GPUs, also those that are on their way there or away; one statement.

    `ending` is not set where the same owner's next booking goes on in the same
    place. Times are those of the node's clock, also where the portal's is moved.
    """
    moved = clock.offset()
    with connection.cursor() as cursor:
        cursor.execute(_STAYS, [node_id, [State.STARTING, State.ACTIVE, State.ENDING]])
        return tuple(_stay(moved, *row) for row in cursor.fetchall())


def _stay(
    moved: timedelta,
    allocation: UUID,
    reservation: UUID,
    gpu: str,
    team: str,
    owner: str,
    owner_account: str,
    team_account: str,
    start: datetime,
    end: datetime | None,
    notice_until: datetime | None,
    why: str,
    ending: Any,
) -> wire.Stay:
    return wire.Stay(
        allocation=str(allocation),
        reservation=str(reservation),
        gpu=gpu,
        team=team,
        owner=owner,
        users=accounts(owner_account, team_account),
        start=start - moved,
        end=None if end is None else end - moved,
        notice_until=None if notice_until is None else notice_until - moved,
        why=why,
        url=settings.URL + reverse("reservation", args=[reservation]),
        ending=bool(ending),
    )


def accounts(owner: str, team: str) -> tuple[str, ...]:
    """The accounts on the nodes whose processes are a holder's: the owner's own, and the team's."""
    return tuple(dict.fromkeys(name for name in (owner, team) if name))


def policy(pool: Pool) -> wire.Policy:
    """What the pool allows on its nodes."""
    return wire.Policy(
        kill=pool.may_kill,
        grace_s=float(pool.grace_seconds),
        over_memory=pool.over_memory,  # type: ignore[arg-type]
        over_grace_s=float(pool.over_grace_seconds),
        foreign=pool.foreign,  # type: ignore[arg-type]
        lines=pool.terminal_lines,
    )
