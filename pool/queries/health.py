"""How the portal is: database, broker, workers, lanes by their heartbeats, agents. No names of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, Q
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pool.core import health as core
from pool.models import Lane, Node, NodeToken
from pool.queries import clock

#: Lane -> seconds without a heartbeat after which it is stale.
LANES = {"due": 10.0, "slow": 60.0}


@dataclass(frozen=True, slots=True)
class Part:
    ok: bool


@dataclass(frozen=True, slots=True)
class Workers:
    """`count`: workers that ran a lane lately."""

    ok: bool
    count: int


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """`age_s` None: it has never run."""

    name: str
    ok: bool
    age_s: float | None
    took_ms: int | None
    error: str


@dataclass(frozen=True, slots=True)
class Agents:
    """Nodes that have joined: heard lately, not heard for three reports, never heard."""

    ok: bool
    fresh: int
    stale: int
    never: int


@dataclass(frozen=True, slots=True)
class HealthView:
    """`status`: ok, degraded (people can still work) or down. None: the database could not tell."""

    status: str
    database: Part
    broker: Part
    workers: Workers | None
    lanes: tuple[LaneHealth, ...]
    agents: Agents | None


def health() -> HealthView:
    """One reading; takes at most about a second when something is away. Raises nothing."""
    broker = Part(_broker_answers())
    now = clock.real_now()
    try:
        lanes, holders = _lanes(now)
        agents = _agents(now)
    except Error:
        return HealthView("down", Part(False), broker, None, (), None)
    workers = Workers(holders > 0, holders)
    well = broker.ok and workers.ok and agents.ok and all(lane.ok for lane in lanes)
    return HealthView("ok" if well else "degraded", Part(True), broker, workers, lanes, agents)


def migrations_pending() -> int:
    """How many migrations the database lacks; raises `django.db.Error` when it does not answer."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _lanes(now: datetime) -> tuple[tuple[LaneHealth, ...], int]:
    rows = {row.name: row for row in Lane.objects.all()}
    lanes = tuple(_lane(name, rows.get(name), limit, now) for name, limit in LANES.items())
    fresh = {lane.name for lane in lanes if lane.ok}
    return lanes, len({row.holder for name, row in rows.items() if name in fresh})


def _lane(name: str, row: Lane | None, limit: float, now: datetime) -> LaneHealth:
    if row is None:
        return LaneHealth(name, False, None, None, "")
    age = max((now - row.beat_at).total_seconds(), 0.0)
    return LaneHealth(name, age <= limit, round(age, 1), row.took_ms, row.error)


def _agents(now: datetime) -> Agents:
    last = now - timedelta(seconds=settings.REPORT_SECONDS * core.MISSED)
    joined = Node.objects.filter(pk__in=NodeToken.objects.filter(revoked_at=None).values("node"))
    fresh = Q(received_at__gte=last, unknown_since=None)
    count = joined.aggregate(
        all=Count("pk"), fresh=Count("pk", filter=fresh), never=Count("pk", filter=Q(received_at=None))
    )
    stale = count["all"] - count["fresh"] - count["never"]
    return Agents(stale == 0, count["fresh"], stale, count["never"])


def _broker_answers() -> bool:
    try:
        with Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=0.25,
            socket_connect_timeout=0.25,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False
