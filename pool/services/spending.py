"""Steps that keep a booking within its team's budgets: each month of it, on each line above it that has one.

Under the lock on the pool, so that two bookings do not spend the same hours. Offers look into
the same purse without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from pool.core import budget
from pool.core.budget import Charged
from pool.core.charter import Tree
from pool.core.period import Period
from pool.core.placement import Pick
from pool.core.quota_lines import Grant, Line, with_grants
from pool.models import Pool
from pool.queries import budgets, standing


class Told(Protocol):
    """What people decided, as queries.standing.Frame and core.standing.Standing have it."""

    @property
    def lines(self) -> tuple[Line, ...]: ...
    @property
    def grants(self) -> tuple[Grant, ...]: ...
    @property
    def parents(self) -> Mapping[int, int | None]: ...


def check(
    pool: Pool,
    team_id: int,
    picks: Sequence[Pick],
    period: Period,
    *,
    without: UUID | None = None,
    told: Told | None = None,
) -> None:
    """Refuses with QUOTA_EXCEEDED, reason over_budget (month, budget, used, asked, in milli-hours).

    `without`: a reservation that counts already and is placed anew. `told`: what was just read of the
    lines; None: it is read here.
    """
    Purse(pool, team_id, told or standing.frame(pool.pk), without=without).check(picks, period)


class Purse:
    """The budgets on a team's lines and on those above it; what is spent of a month is read once."""

    def __init__(self, pool: Pool, team_id: int, told: Told, *, without: UUID | None = None) -> None:
        path = set(Tree(told.parents).path(team_id))
        self._grants = [one for one in told.grants if one.team in path]
        lines = with_grants([one for one in told.lines if one.team in path], self._grants)
        self._limited = [one for one in lines if one.budget_milli_hours is not None]
        self._pool, self._told, self._without = pool, told, without
        self._spent: dict[tuple[int, str | None, Period], int] = {}

    def check(self, picks: Sequence[Pick], period: Period) -> None:
        """Refuses as the function `check` does."""
        if not self._limited:
            return
        for month in budget.months(period, budgets.zone_of(self._pool)):
            for line in self._limited:
                asked = budget.charge([Charged(_milli(line, picks), period)], month)
                if asked:
                    budget.check(line, self._used(line, month), asked, month, self._grants)

    def _used(self, line: Line, month: Period) -> int:
        key = line.team, line.model, month
        if key not in self._spent:
            teams = budgets.below(self._told.parents, line.team)
            self._spent[key] = budgets.spent(self._pool.pk, teams, line.model, month, self._without)
        return self._spent[key]


def _milli(line: Line, picks: Iterable[Pick]) -> int:
    """What counts on this line."""
    return sum(pick.charge_milli for pick in picks if line.model in (None, pick.model))
