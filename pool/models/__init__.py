"""Tables and constraints, nothing else; one noun a file."""

from __future__ import annotations

from pool.models.commands import Command
from pool.models.events import Event
from pool.models.faults import Fault, Outage
from pool.models.idempotency import IdempotencyKey
from pool.models.inventory import Blocker, Gpu, GpuMark, GpuState, JoinCode, Node, NodeToken, Pool, PoolMix
from pool.models.lanes import ClockOffset, Lane, SetAside
from pool.models.notices import OutboxMessage
from pool.models.quota import QuotaComment, QuotaGrant, QuotaLine, QuotaRequest
from pool.models.reservations import Allocation, Reservation
from pool.models.teams import Membership, Team, User
from pool.models.tokens import Token

__all__ = [
    "Allocation",
    "Blocker",
    "ClockOffset",
    "Command",
    "Event",
    "Fault",
    "Gpu",
    "GpuMark",
    "GpuState",
    "IdempotencyKey",
    "JoinCode",
    "Lane",
    "Membership",
    "Node",
    "NodeToken",
    "Outage",
    "OutboxMessage",
    "Pool",
    "PoolMix",
    "QuotaComment",
    "QuotaGrant",
    "QuotaLine",
    "QuotaRequest",
    "Reservation",
    "SetAside",
    "Team",
    "Token",
    "User",
]
