"""Budgets: months as the zone has them, charges with the hours written out, the price of a late release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import budget
from pool.core.budget import Charged
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_lines import Grant, Line
from tests.core.worlds import at, span

BERLIN, SHANGHAI, HAVANA = (ZoneInfo(name) for name in ("Europe/Berlin", "Asia/Shanghai", "America/Havana"))
UTC_ZONE = ZoneInfo("UTC")
HOUR = timedelta(hours=1)


def utc(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour, tzinfo=UTC)


def days(first: datetime, number: float, milli: int = 1000, **more: object) -> Charged:
    return Charged(milli, Period(first, first + timedelta(days=number)), **more)  # type: ignore[arg-type]


# --- Months -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("month", "hours"), [(1, 744), (2, 672), (3, 743), (4, 720), (10, 745), (11, 720), (12, 744)]
)
def test_a_month_is_as_long_as_the_clocks_of_the_zone_make_it(month: int, hours: int) -> None:
    found = budget.month_of(datetime(2027, month, 15, 12, tzinfo=BERLIN), BERLIN)
    assert found.duration == hours * HOUR
    everything = Charged(1000, Period(utc(2026, 1, 1), None))
    assert budget.charge([everything], found) == hours * 1000


def test_a_month_begins_at_midnight_there() -> None:
    assert budget.month_of(utc(2027, 3, 31, 15), SHANGHAI) == Period(
        utc(2027, 2, 28, 16), utc(2027, 3, 31, 16)
    )
    assert budget.month_of(utc(2027, 3, 31, 16), SHANGHAI).start == utc(2027, 3, 31, 16)
    assert budget.month_of(utc(2027, 12, 31, 23), BERLIN) == Period(
        utc(2027, 12, 31, 23), utc(2028, 1, 31, 23)
    )


def test_months_follow_one_another_without_gaps_also_where_midnight_is_shown_twice() -> None:
    found = budget.months(Period(utc(2026, 9, 3), utc(2027, 5, 1)), HAVANA)
    assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]
    assert [one.start.astimezone(HAVANA).day for one in found] == [1] * len(found)
    # On 1 November 2026 the clocks in Havana go from 1:00 back to 0:00: the first midnight counts.
    assert found[2].start == utc(2026, 11, 1, 4)


def test_a_period_touches_the_months_in_which_it_has_an_instant() -> None:
    assert len(budget.months(Period(utc(2027, 1, 31, 22), utc(2027, 1, 31, 23)), BERLIN)) == 1
    assert len(budget.months(Period(utc(2027, 1, 31, 22), utc(2027, 1, 31, 23) + HOUR), BERLIN)) == 2
    assert len(budget.months(Period(utc(2027, 1, 1), None), BERLIN)) == 13


# --- Charges ------------------------------------------------------------------------------


def test_each_month_is_charged_with_the_hours_that_lie_in_it() -> None:
    """Half a GPU from 31 January 18:00 until 2 February 06:00, in Berlin: 6 hours and 30 hours."""
    item = Charged(500, Period(utc(2027, 1, 31, 17), utc(2027, 2, 2, 5)))
    january, february = budget.months(item.period, BERLIN)
    assert budget.charge([item], january) == 3000
    assert budget.charge([item], february) == 15_000


def test_a_night_on_which_the_clocks_change_has_as_many_hours_as_pass() -> None:
    """From 27 March 20:00 until 28 March 08:00 in Berlin there are 11 hours; on 30 October, 13."""
    for start, end, hours in (((3, 27), (3, 28), 11), ((10, 30), (10, 31), 13)):
        night = Period(datetime(2027, *start, 20, tzinfo=BERLIN), datetime(2027, *end, 8, tzinfo=BERLIN))
        assert budget.charge([Charged(1000, night)], budget.month_of(night.start, BERLIN)) == hours * 1000


def test_what_was_not_there_in_an_outage_is_not_charged_and_no_hour_is_refunded_twice() -> None:
    outages = (span(1, 3), span(2, 4), span(7, 12), span(-5, 0))
    assert budget.charge([Charged(1000, span(0, 8), outages)], budget.month_of(at(0), UTC_ZONE)) == 4000


def test_giving_back_early_refunds_the_rest_but_for_what_is_retained() -> None:
    month = budget.month_of(at(0), UTC_ZONE)
    booked, ended = Charged(2000, span(0, 8)), Charged(2000, span(0, 3), retained=1500, ended_at=at(3))
    assert (budget.charge([booked], month), budget.charge([ended], month)) == (16_000, 7500)


def test_what_is_retained_is_charged_in_the_month_of_the_release() -> None:
    item = days(utc(2027, 1, 31), 0.5, retained=700, ended_at=utc(2027, 2, 1))
    january, february = budget.month_of(utc(2027, 1, 5), UTC_ZONE), budget.month_of(utc(2027, 2, 5), UTC_ZONE)
    assert (budget.charge([item], january), budget.charge([item], february)) == (12_000, 700)


def test_parts_of_an_hour_are_charged_as_such() -> None:
    assert budget.cost(1000, timedelta(minutes=20)) == 333
    assert budget.cost(125, timedelta(seconds=1)) == 0
    assert budget.cost(7000, timedelta(minutes=90)) == 10_500


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.sampled_from([125, 1000])), max_size=5))
def test_months_sum_up_to_all_that_was_reserved(spans: list[tuple[int, int, int]]) -> None:
    items = [days(utc(2027, 9, 20) + timedelta(days=first), n, milli) for first, n, milli in spans]
    every = budget.months(Period(utc(2027, 9, 1), utc(2028, 2, 1)), BERLIN)
    total = sum(milli * 24 * n for _, n, milli in spans)
    assert sum(budget.charge(items, month) for month in every) == total


# --- Limits -------------------------------------------------------------------------------

LINE = Line(5, None, 0, 9000, team=3, budget_milli_hours=100_000)
MARCH = Period(utc(2027, 3, 1), utc(2027, 4, 1))


def test_a_booking_over_the_budget_is_refused_with_the_numbers() -> None:
    budget.check(LINE, 60_000, 40_000, MARCH)
    with pytest.raises(Refusal) as caught:
        budget.check(LINE, 60_000, 40_001, MARCH)
    assert caught.value.code is Code.QUOTA_EXCEEDED
    assert caught.value.data == {
        "reason": "over_budget", "line": 5, "team": 3, "model": None, "month": "2027-03-01T00:00:00+00:00",
        "budget": 100_000, "used": 60_000, "asked": 40_001,
    }  # fmt: skip


def test_a_month_that_a_booking_adds_nothing_to_is_not_looked_at() -> None:
    budget.check(LINE, 200_000, 0, MARCH)


def test_without_a_budget_there_is_no_limit() -> None:
    free = Line(5, None, 0, 9000, team=3)
    budget.check(free, 10**9, 10**9, MARCH)
    assert budget.limit(free, [], MARCH) is None


def test_a_grant_adds_its_budget_once_to_every_month_in_which_it_is_valid() -> None:
    granted = Grant(3, None, 0, 0, 0, 50_000, Period(utc(2027, 3, 31, 23), utc(2027, 5, 1)))
    other = Grant(4, None, 0, 0, 0, 50_000, granted.period)
    april, may = Period(utc(2027, 4, 1), utc(2027, 5, 1)), Period(utc(2027, 5, 1), utc(2027, 6, 1))
    assert [budget.limit(LINE, [granted, other], one) for one in (MARCH, april, may)] == [
        150_000,
        150_000,
        100_000,
    ]
    budget.check(LINE, 60_000, 90_000, MARCH, [granted])


def test_80_and_100_percent_are_told_once_each() -> None:
    steps = [
        (0, 79_999),
        (79_999, 80_000),
        (80_000, 99_999),
        (99_999, 100_000),
        (100_000, 120_000),
        (0, 100_000),
    ]
    assert [budget.crossed(100_000, *step) for step in steps] == [None, 80, None, 100, None, 100]
    assert [budget.crossed(0, *step) for step in ((0, 0), (0, 1), (1, 2))] == [None, 100, None]


# --- The price of a late release --------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "released", "retained"),
    [
        # 2 h used, 6 unused: free = min((2 + 6) / 2, 8) = 4, so 2 of the 6 are retained.
        (0, 8, 2, 2000),
        # 4 h used, 4 unused: free = 4; nothing is retained.
        (0, 8, 4, 0),
        (0, 8, 6, 0),
        # Given back as it starts: of 8 h 4 are free.
        (0, 8, 0, 4000),
        # 10 h ahead, 8 h booked: all of it lies in the next 24 h.
        (10, 18, 0, 4000),
        # 20 h ahead: only 4 h lie in the next 24 h; 2 of them are free.
        (20, 44, 0, 2000),
        # A day and more ahead nothing is retained.
        (24, 48, 0, 0),
        (100, 148, 0, 0),
        # A long one: 24 h can cost, 8 of them are free.
        (0, 240, 0, 16_000),
        (0, 240, 120, 16_000),
        (0, None, 120, 16_000),
        # After its end there is nothing to give back.
        (0, 8, 8, 0),
        (0, 8, 9, 0),
    ],
)
def test_a_late_release_retains(start: int, end: int | None, released: int, retained: int) -> None:
    assert budget.late_release(1000, span(start, end), at(released)) == retained


def test_the_price_counts_every_gpu() -> None:
    assert budget.late_release(8000, span(0, 8), at(2)) == 16_000
    assert budget.late_release(125, span(0, 8), at(2)) == 250


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 130), st.integers(0, 30))
def test_waiting_to_give_back_never_costs_less_in_all(
    start: int, length: int, released: int, later: int
) -> None:
    """What was used is charged, too: who gives back earlier pays no more."""

    def paid(hour: int) -> int:
        used = max(0, min(hour, start + length) - start)
        return used * 1000 + budget.late_release(1000, span(start, start + length), at(hour))

    assert paid(released) <= paid(released + later)
