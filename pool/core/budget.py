"""What a team's reserved time costs: GPU-hours by month in the pool's zone, and the price of a late release.

Amounts are thousandths of a GPU-hour (milli-hours), rounded up for each reservation and month.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from pool.core.period import Period
from pool.core.quota_lines import Grant, Line


@dataclass(frozen=True, slots=True)
class Charged:
    """A reservation as it is charged: `milli` over `period`, cut where it ended or is recalled.

    `outages` are when it had nothing. `retained` milli-hours are charged in the month of `ended_at`.
    `model` None: several, of which `milli` is the sum.
    """

    milli: int
    period: Period
    outages: tuple[Period, ...] = ()
    retained: int = 0
    ended_at: datetime | None = None


def month_of(instant: datetime, zone: ZoneInfo) -> Period:
    """The calendar month there in which `instant` lies; its length follows the clocks of the zone."""
    raise NotImplementedError


def months(period: Period, zone: ZoneInfo) -> list[Period]:
    """The months that `period` touches, in order; of one without end only the first 13."""
    raise NotImplementedError


def charge(items: Iterable[Charged], month: Period) -> int:
    """What these are charged in `month`, in milli-hours."""
    raise NotImplementedError


def limit(line: Line, grants: Sequence[Grant], month: Period) -> int | None:
    """The budget of the line in `month`: its own, and that of every grant valid at some instant of it."""
    raise NotImplementedError


def check(line: Line, used: int, asked: int, month: Period, grants: Sequence[Grant] = ()) -> None:
    """Refuses with QUOTA_EXCEEDED, reason over_budget: month (ISO, its start), budget, used and asked."""
    raise NotImplementedError


def crossed(budget: int, before: int, after: int) -> int | None:
    """The highest of 80 and 100 (percent) that was passed from `before` to `after`; else None."""
    raise NotImplementedError


def late_release(milli: int, period: Period, released_at: datetime) -> int:
    """What giving the reservation back at `released_at` retains, in milli-hours.

    Of the unused hours only those within the next 24 h can cost (pen). Of these
    free = min((used + pen) / 2, 8 h) cost nothing: retained = cost(pen) x max(0, pen - free) / pen.
    """
    raise NotImplementedError
