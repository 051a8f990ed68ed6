"""Which of several plans a team's budgets can pay. For those who wait: before a turn, and under the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pool.core.errors import Refusal
from pool.core.period import Period
from pool.models import Pool
from pool.services import spending
from pool.services.plans import Plan

#: What a plan counts on each model.
_Costs = tuple[tuple[str, int], ...]


def payable(pool: Pool, team_id: int, found: Sequence[Plan], period: Period) -> list[Plan]:
    """Those that can be paid, in their order; where there are none, refuses as `spending.check` does."""
    told: dict[_Costs, Refusal | None] = {}
    for plan in found:
        costs = _costs(plan)
        if costs not in told:
            told[costs] = _refusal(pool, team_id, plan, period)
    able = [plan for plan in found if told[_costs(plan)] is None]
    refused = next((one for one in told.values() if one is not None), None)
    if refused is not None and not able:
        raise refused
    return able


def is_payable(pool: Pool, team_id: int, plan: Plan, period: Period) -> bool:
    """Under the lock on the pool: what others of the team were given meanwhile counts."""
    return _refusal(pool, team_id, plan, period) is None


def _refusal(pool: Pool, team_id: int, plan: Plan, period: Period) -> Refusal | None:
    try:
        spending.check(pool, team_id, plan.picks, period)
    except Refusal as refusal:
        return refusal
    return None


def _costs(plan: Plan) -> _Costs:
    sums: Counter[str] = Counter()
    for pick in plan.picks:
        sums[pick.model] += pick.charge_milli
    return tuple(sorted(sums.items()))
