"""Warns leads when a month's budget is used up to 80 and to 100 %; once for each month, line and step."""

from __future__ import annotations

from datetime import datetime

from pool.core import budget
from pool.models import Pool, QuotaLine
from pool.queries import budgets as queries
from pool.queries import quota
from pool.services import locks, notices

#: The slow lane looks at a part of the lines each time, so that each has its turn every ten minutes.
PARTS = 40
TURN_SECONDS = 15


def warn(*, now: datetime, everything: bool = False) -> int:
    """Tell the leads of each line whose budget has passed a step; how many were told anew.

    Of all lines only those whose turn it is, but with `everything`. What is booked for the
    month counts, whether or not its time has come.
    """
    turn = int(now.timestamp()) // TURN_SECONDS % PARTS
    rows = QuotaLine.objects.exclude(budget_milli_hours=None).select_related("team__parent", "pool")
    chosen = [row for row in rows.order_by("pk") if everything or row.pk % PARTS == turn]
    pools = {row.pool_id: row.pool for row in chosen}
    return sum(_warn(pool, [row for row in chosen if row.pool_id == pk], now) for pk, pool in pools.items())


def _warn(pool: Pool, rows: list[QuotaLine], now: datetime) -> int:
    known = quota.rules(pool)
    told = 0
    for row in rows:
        burn = queries.burn(pool, quota.as_line(row), known.grants, known.parents, now)
        step = budget.crossed(burn.budget, 0, burn.spent) if burn else None
        if burn is not None and step is not None:
            told += _tell(row, burn, step, now)
    return told


@locks.use_case
def _tell(row: QuotaLine, burn: queries.Burn, step: int, now: datetime) -> int:
    data = {
        "percent": step,
        "team": row.team.name,
        "pool": row.pool.name,
        "model": row.model or None,
        "spent_hours": f"{burn.spent / 1000:g}",
        "budget_hours": f"{burn.budget / 1000:g}",
        "month": burn.month.start.isoformat(),
    }
    key = f"budget:{row.pk}:{burn.month.start.date().isoformat()}:{step}"
    return notices.tell(notices.leads(row.team), "budget", key=key, now=now, data=data)
