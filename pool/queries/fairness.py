"""The fair share of each team of a pool now: what it deserves, its weight, what it has, wants and had.

The rule is core.fairness's. Past use is what reservations really had of the pool, up to
eight half-lives ago: what lies further back counts less than half a percent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import numpy as np
from django.db import connection

from pool.core import fairness, standing
from pool.core.fairness import Claimant, Demand, Share
from pool.core.standing import Standing
from pool.core.terms import ORDINARY
from pool.models import Pool

HALF_LIVES = 8

_USED = """
SELECT team_id, charge_milli, (extract(epoch FROM coalesce(started_at, lower(period))) * 1000000)::bigint,
    (extract(epoch FROM least(coalesce(ended_at, %(now)s), upper(period), %(now)s)) * 1000000)::bigint
FROM pool_reservation
WHERE pool_id = %(pool)s AND started_at < %(now)s AND charge_milli > 0
    AND (ended_at IS NULL OR ended_at > %(since)s)
    AND (upper(period) IS NULL OR upper(period) > %(since)s)
"""


def now(pool: Pool, where: Standing, waiting: Iterable[Demand], at: datetime) -> Mapping[int, Share]:
    """Of every team that has a line in the pool, holds or wants something there. `where`: as it is then."""
    stand = standing.shares(where, at)
    capacity = sum(where.capacity.values())
    half_life = timedelta(hours=pool.half_life_hours)
    had = _had(pool, at, half_life, capacity)
    demands = [*waiting, *(Demand(team, one.used, ORDINARY, at) for team, one in stand.items() if one.used)]
    teams = stand.keys() | {demand.team for demand in demands}
    nothing = standing.Share(0, 0, 0, 1)
    claimants = []
    for team in sorted(teams):
        one = stand.get(team, nothing)
        claimants.append(Claimant(team, one.guaranteed, one.weight, had.get(team, 0.0)))
    return fairness.shares(capacity, claimants, demands)


def _had(pool: Pool, at: datetime, half_life: timedelta, capacity: int) -> dict[int, float]:
    """The part of the pool (0..1) that each team has had, what is long ago counting less."""
    if not capacity:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_USED, {"pool": pool.pk, "now": at, "since": at - HALF_LIVES * half_life})
        rows = cursor.fetchall()
    of_team: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for team, *one in rows:
        of_team[team].append((one[0], one[1], one[2]))
    found = {}
    for team, mine in of_team.items():
        milli, since, until = np.array(mine, dtype=np.int64).T
        found[team] = fairness.used_part(
            since, np.maximum(since, until), milli, now=at, half_life=half_life, capacity=capacity
        )
    return found
