"""What a team's reserved time costs: GPU-hours by month in the pool's zone, and the price of a late release.

Amounts are thousandths of a GPU-hour (milli-hours), exact to the microsecond and rounded to the
nearest once for each reservation and month: never an hour that was not reserved, and no
part of one is charged as a whole. A month is charged with the time that lies in it. What is given back
early is not charged any more, but for what a late release retains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_lines import Grant, Line

_HOUR = timedelta(hours=1)
#: Of one without end so many months are looked at: this one and a year.
_MONTHS = 13
#: In percent of the budget: when the team is told.
NOTICES = (80, 100)
#: Only what would have been used within this time can cost when it is given back.
PEN = timedelta(hours=24)
#: So much of it costs nothing at the most.
FREE = timedelta(hours=8)


@dataclass(frozen=True, slots=True)
class Charged:
    """A reservation as it is charged: `milli` over `period`, cut where it ended or is recalled.

    `outages` are when it had nothing. `retained` milli-hours are charged in the month of `ended_at`.
    """

    milli: int
    period: Period
    outages: tuple[Period, ...] = ()
    retained: int = 0
    ended_at: datetime | None = None


def month_of(instant: datetime, zone: ZoneInfo) -> Period:
    """The calendar month there in which `instant` lies, in UTC.

    Its length follows the clocks of the zone: where they change in it, it is an hour longer or shorter.
    """
    local = instant.astimezone(zone)
    year, month = local.year, local.month
    after = (year + 1, 1) if month == 12 else (year, month + 1)
    return Period(_first(year, month, zone), _first(*after, zone))


def months(period: Period, zone: ZoneInfo) -> list[Period]:
    """The months that `period` touches, in order; of one without end the first 13."""
    found = [month_of(period.start, zone)]
    while (end := found[-1].end) is not None and (
        end < period.end if period.end is not None else len(found) < _MONTHS
    ):
        found.append(month_of(end, zone))
    return found


def _first(year: int, month: int, zone: ZoneInfo) -> datetime:
    """The first instant of the month: the first of two midnights; where there is none, the jump over it."""
    return datetime(year, month, 1, tzinfo=zone).astimezone(UTC)


def charge(items: Iterable[Charged], month: Period) -> int:
    """What these are charged in `month`, in milli-hours."""
    return sum(_charge(item, month) for item in items)


def _charge(item: Charged, month: Period) -> int:
    took = _overlap(item.period, month)
    if took is None:
        return item.retained if item.ended_at is not None and month.contains(item.ended_at) else 0
    had = took.duration or timedelta(0)
    had -= _covered([one for outage in item.outages if (one := _overlap(outage, took)) is not None])
    retained = item.retained if item.ended_at is not None and month.contains(item.ended_at) else 0
    return cost(item.milli, had) + retained


def cost(milli: int, length: timedelta) -> int:
    """What `milli` of a GPU cost over this time, in milli-hours, rounded to the nearest."""
    return (2 * milli * length + _HOUR) // (2 * _HOUR)


def _overlap(one: Period, month: Period) -> Period | None:
    start = max(one.start, month.start)
    ends = [end for end in (one.end, month.end) if end is not None]
    end = min(ends) if ends else None
    return None if end is not None and end <= start else Period(start, end)


def _covered(periods: Iterable[Period]) -> timedelta:
    """How long at least one of these lasts; all of them have an end."""
    total, done = timedelta(0), None
    for period in sorted(periods, key=lambda one: one.start):
        assert period.end is not None
        start = period.start if done is None else max(period.start, done)
        if period.end > start:
            total += period.end - start
            done = period.end
    return total


def limit(line: Line, grants: Sequence[Grant], month: Period) -> int | None:
    """The budget of the line in `month`, in milli-hours; None: not limited.

    Its own, and that of every grant that is valid at some instant of the month: once a month,
    not by days.
    """
    if line.budget_milli_hours is None:
        return None
    mine = [one for one in grants if (one.team, one.model) == (line.team, line.model)]
    return line.budget_milli_hours + sum(one.budget_milli_hours for one in mine if one.period.overlaps(month))


def check(line: Line, used: int, asked: int, month: Period, grants: Sequence[Grant] = ()) -> None:
    """Refuses with QUOTA_EXCEEDED, reason over_budget, when the month has less left than is asked.

    `used` and `asked` are what is charged in the month, in milli-hours. Data: line, team, model,
    month (ISO, its start), budget, used, asked.
    """
    budget = limit(line, grants, month)
    if budget is None or not asked or used + asked <= budget:
        return
    known = {"line": line.id, "team": line.team, "model": line.model, "month": month.start.isoformat()}
    raise Refusal(Code.QUOTA_EXCEEDED, reason="over_budget", **known, budget=budget, used=used, asked=asked)


def crossed(budget: int, before: int, after: int) -> int | None:
    """The highest of 80 and 100 (percent) that was reached from `before` to `after`; else None.

    A budget of 0 is used up with the first that is charged, and not before.
    """
    for percent in reversed(NOTICES):
        if before * 100 < percent * budget <= after * 100 or (budget == 0 and before == 0 < after):
            return percent
    return None


def late_release(milli: int, period: Period, released_at: datetime) -> int:
    """What giving the reservation back at `released_at` retains, in milli-hours.

    Of the unused hours only those within the next 24 h can cost (pen). Of these
    free = min((used + pen) / 2, 8 h) cost nothing: retained is what the free hours leave,
    cost(pen) x max(0, pen - free) / pen, on top of what was used, which is charged as ever.
    A no-show is a release when it is declared: until then it was used.
    """
    until = released_at + PEN
    end = until if period.end is None else min(until, period.end)
    pen = end - max(period.start, released_at)
    if pen <= timedelta(0):
        return 0
    used = max(timedelta(0), min(released_at, end) - period.start)
    free = min((used + pen) / 2, FREE)
    return cost(milli, max(timedelta(0), pen - free))
