"""Quota lines and what is used of them, counted from the rows of reservations that hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from psycopg.types.range import TimestamptzRange

from pool.core.period import Period
from pool.core.quota import peak
from pool.models import Allocation, Pool, QuotaLine, Team
from pool.queries import clock, teams

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import User

#: What "now" means for a bar: the peak of the coming minute.
SOON = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Usage:
    """One line and the most that is used of it at any instant of a period, in milli. `model` None: any."""

    team: str
    pool: str
    model: str | None
    guaranteed_milli: int
    cap_milli: int
    used_milli: int
    version: int


def lines(team: Team, pool: Pool) -> Sequence[QuotaLine]:
    """The team's lines in the pool, the one for any model first."""
    return list(QuotaLine.objects.filter(team=team, pool=pool).order_by("model"))


def usage(team: Team, pool: Pool, period: Period) -> list[Usage]:
    """Each line with its peak in `period`."""
    found = QuotaLine.objects.filter(team=team, pool=pool).select_related("team", "pool")
    return _usages(list(found.order_by("model")), period)


def bars_for(user: User | AnonymousUser) -> list[Usage]:
    """The lines of the user's teams, as they are used now."""
    now = clock.now()
    found = QuotaLine.objects.filter(team__in=teams.reach(user)).select_related("team", "pool")
    return _usages(list(found.order_by("team__name", "pool__name", "model")), Period(now, now + SOON))


def _usages(found: Sequence[QuotaLine], period: Period) -> list[Usage]:
    uses = _uses({line.team_id for line in found}, period)
    return [
        Usage(
            team=line.team.name,
            pool=line.pool.name,
            model=line.model or None,
            guaranteed_milli=line.guaranteed_milli,
            cap_milli=line.cap_milli,
            used_milli=peak(
                (
                    (span, milli)
                    for team_id, pool_id, model, span, milli in uses
                    if (team_id, pool_id) == (line.team_id, line.pool_id) and line.model in ("", model)
                ),
                period,
            ),
            version=line.version,
        )
        for line in found
    ]


def _uses(team_ids: set[int], period: Period) -> list[tuple[int, int, str, Period, int]]:
    """(team, pool, model, period, milli) of what holds; quota counts the reservation's own time."""
    rows = Allocation.objects.filter(
        holds=True,
        reservation__team__in=team_ids,
        reservation__period__overlap=TimestamptzRange(period.start, period.end),
    ).values_list("reservation__team", "reservation__pool", "model", "reservation__period", "charge_milli")
    return [
        (team, pool, model, Period(span.lower, span.upper), milli) for team, pool, model, span, milli in rows
    ]
