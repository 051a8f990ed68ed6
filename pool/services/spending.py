"""Steps that keep a booking within its team's budgets: each month of it, on each line above it that has one.

Under the lock on the pool, so that two bookings do not spend the same hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from pool.core import budget
from pool.core.budget import Charged
from pool.core.charter import Tree
from pool.core.period import Period
from pool.core.placement import Pick
from pool.core.quota_lines import Line, with_grants
from pool.models import Pool
from pool.queries import budgets, standing


def check(
    pool: Pool, team_id: int, picks: Sequence[Pick], period: Period, *, without: UUID | None = None
) -> None:
    """Refuses with QUOTA_EXCEEDED, reason over_budget (month, budget, used, asked, in milli-hours).

    `without`: a reservation that counts already and is placed anew.
    """
    frame = standing.frame(pool.pk)
    path = set(Tree(frame.parents).path(team_id))
    lines = [one for one in with_grants(frame.lines, frame.grants) if one.team in path]
    limited = [one for one in lines if one.budget_milli_hours is not None]
    if not limited:
        return
    zone = budgets.zone_of(pool)
    for month in budget.months(period, zone):
        for line in limited:
            asked = budget.charge([Charged(_milli(line, picks), period)], month)
            if asked:
                teams = budgets.below(frame.parents, line.team)
                used = budgets.spent(pool.pk, teams, line.model, month, without)
                budget.check(line, used, asked, month, frame.grants)


def _milli(line: Line, picks: Iterable[Pick]) -> int:
    """What counts on this line."""
    return sum(pick.charge_milli for pick in picks if line.model in (None, pick.model))
