"""What the reserved time of teams has cost in a month, counted from the rows; nothing is kept.

The rule and its rounding are core.budget's; here is which rows are charged: those that hold,
and those that held until they ended. What waits, was cancelled, denied or expired costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

from pool.core import budget
from pool.core.budget import Charged
from pool.core.calendar import zone
from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.quota_lines import Grant, Line
from pool.core.states import HOLDING, State
from pool.models import Pool

#: States in which reserved time is charged.
CHARGED = sorted(state.value for state in HOLDING | {State.ENDED, State.PREEMPTED, State.FAILED})

# Of what was given up before anybody saw it only the place that followed counts (left_at).
# One line a reservation and GPU, so that an outage takes off what was out.
_ROWS = """
SELECT booked.id, alloc.gpu_id, sum(alloc.charge_milli)::bigint, lower(booked.period),
    CASE WHEN booked.ended_at IS NOT NULL THEN greatest(booked.ended_at, lower(booked.period))
         ELSE least(booked.recall_at, upper(booked.period)) END,
    coalesce(booked.retained_milli_hours, 0), booked.ended_at, booked.charge_milli
FROM pool_reservation booked
JOIN pool_allocation alloc ON alloc.reservation_id = booked.id AND alloc.left_at IS NULL
WHERE booked.pool_id = %(pool)s AND booked.team_id = ANY(%(teams)s) AND booked.state = ANY(%(states)s)
  AND (booked.period && tstzrange(%(start)s, %(end)s)
       OR booked.retained_milli_hours > 0 AND booked.ended_at >= %(start)s AND booked.ended_at < %(end)s)
  AND (%(model)s::text IS NULL OR alloc.model = %(model)s)
  AND (%(without)s::uuid IS NULL OR booked.id <> %(without)s)
GROUP BY booked.id, alloc.gpu_id ORDER BY booked.id, alloc.gpu_id
"""

_OUTAGES = """
SELECT out.reservation_id, out.gpu_id, lower(out.period), upper(out.period) FROM pool_outage out
WHERE out.reservation_id = ANY(%(ids)s)
"""


def spent(
    pool_id: int,
    team_ids: Collection[int],
    model: str | None,
    month: Period,
    without: UUID | None = None,
) -> int:
    """What these teams are charged in `month`, in milli-hours, as the rows are now.

    `model` None: all models; else what lies on that model alone. `without` leaves one
    reservation out. Booked time counts as soon as it is booked, also of what is yet to come.
    """
    wanted = {
        "pool": pool_id,
        "teams": list(team_ids),
        "states": CHARGED,
        "start": month.start,
        "end": month.end,
        "model": model,
        "without": without,
    }
    return budget.charge(_charged(_fetch(_ROWS, wanted)), month)


def _charged(rows: Sequence[tuple[Any, ...]]) -> list[Charged]:
    """One for each reservation; where a GPU of it was out, one for each of its GPUs."""
    outages: dict[tuple[UUID, int], list[Period]] = defaultdict(list)
    for reservation, gpu, since, until in _fetch(_OUTAGES, {"ids": list({row[0] for row in rows})}):
        outages[reservation, gpu].append(Period(since, until))
    out = {reservation for reservation, _gpu in outages}
    merged: dict[tuple[UUID, int | None], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        merged[row[0], row[1] if row[0] in out else None].append(row)
    told: set[UUID] = set()
    items = []
    for (reservation, gpu), parts in merged.items():
        milli = sum(part[2] for part in parts)
        gone = outages[reservation, gpu] if gpu is not None else []
        retained = 0 if reservation in told else _retained(rows, reservation, parts)
        told.add(reservation)
        items += _item(milli, parts[0], gone, retained)
    return items


def _item(milli: int, row: tuple[Any, ...], gone: Iterable[Period], retained: int) -> list[Charged]:
    start, end, ended_at = row[3], row[4], row[6]
    if end is not None and end <= start:
        # It ended before its time began: there is only what giving it back late has cost.
        after = Period(start, None)
        return [Charged(0, after, (), retained, ended_at)] if retained else []
    return [Charged(milli, Period(start, end), tuple(gone), retained, ended_at)]


def _retained(rows: Sequence[tuple[Any, ...]], reservation: UUID, parts: Sequence[tuple[Any, ...]]) -> int:
    """What giving it back late has cost: of one model only its part of it, rounded up."""
    whole, retained = parts[0][7], parts[0][5]
    if not retained or not whole:
        return 0
    here = sum(row[2] for row in rows if row[0] == reservation)
    return int(min(retained, -(-retained * here // whole)))


# --- Lines and their budgets --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Burn:
    """A budget in the month that runs, in milli-hours: how much there is, and how much is charged."""

    month: Period
    budget: int
    spent: int

    @property
    def share(self) -> float:
        return self.spent / self.budget if self.budget else (1.0 if self.spent else 0.0)


def zone_of(pool: Pool) -> ZoneInfo:
    """The zone whose months the pool's budgets go by; UTC where it has none that is known."""
    try:
        return zone(pool.zone)
    except Refusal:
        return ZoneInfo("UTC")


def burn(
    pool: Pool, line: Line, grants: Sequence[Grant], parents: Mapping[int, int | None], now: datetime
) -> Burn | None:
    """How the line's budget stands in the month of `now`; None where it has none."""
    if line.budget_milli_hours is None:
        return None
    month = budget.month_of(now, zone_of(pool))
    most = budget.limit(line, grants, month)
    if most is None:
        return None
    return Burn(month, most, spent(pool.pk, below(parents, line.team), line.model, month))


def below(parents: Mapping[int, int | None], team: int) -> frozenset[int]:
    """The team and every team below it."""
    found, fresh = {team}, {team}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return frozenset(found)


def _fetch(sql: str, wanted: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        return list(cursor.fetchall())
