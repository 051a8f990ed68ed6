"""Half-open periods in UTC; instants and durations as the API takes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pool.core.errors import Code, Invalid, Refusal
from pool.core.period import LONGEST, Period, duration_text, parse_duration, parse_instant
from tests.core.worlds import at, span

T = TypeVar("T")
BEIJING = timezone(timedelta(hours=8))


def outcome(read: Callable[[object, str], T], text: object) -> T | Refusal:
    """What reading gives, or how it is refused; anything else it raises is a failure."""
    try:
        return read(text, "/start")
    except Refusal as refused:
        return refused


def refusal(text: object, read: Callable[[object, str], object] = parse_instant) -> Refusal:
    found = outcome(read, text)
    assert isinstance(found, Refusal)
    return found


def first_error(error: Refusal) -> tuple[str, str]:
    assert isinstance(error, Invalid)
    return error.errors[0].pointer, error.errors[0].code


# --- Periods --------------------------------------------------------------------


def test_the_end_does_not_belong_to_it() -> None:
    assert span(1, 2).contains(at(1))
    assert not span(1, 2).contains(at(2))
    assert not span(1, 2).contains(at(0))
    assert span(1, None).contains(at(10**5))


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (span(0, 2), span(1, 3), True),
        (span(0, 2), span(2, 3), False),
        (span(0, 9), span(2, 3), True),
        (span(0, None), span(2, 3), True),
        (span(3, None), span(2, 3), False),
        (span(3, None), span(9, None), True),
    ],
)
def test_periods_that_touch_do_not_overlap(a: Period, b: Period, answer: bool) -> None:
    assert a.overlaps(b) == b.overlaps(a) == answer


@given(st.tuples(*[st.integers(0, 6)] * 2), st.tuples(*[st.integers(0, 6)] * 2))
def test_an_overlap_is_an_instant_in_both(a: tuple[int, int], b: tuple[int, int]) -> None:
    one, other = span(a[0], a[0] + 1 + a[1]), span(b[0], b[0] + 1 + b[1])
    shared = [h for h in range(14) if one.contains(at(h)) and other.contains(at(h))]
    assert one.overlaps(other) == bool(shared)


def test_it_refuses_an_end_that_is_not_after_the_start() -> None:
    for end in (0, 1):
        with pytest.raises(Invalid) as caught:
            span(1, end)
        assert first_error(caught.value) == ("/end", "end_before_start")
    assert span(1, 1.001).duration == timedelta(seconds=3.6)


def test_it_refuses_naive_times() -> None:
    naive = datetime(2027, 1, 1)  # noqa: DTZ001
    for start, end in ((naive, None), (at(0), naive)):
        with pytest.raises(Refusal) as caught:
            Period(start, end)
        assert caught.value.code is Code.NAIVE_TIME


def test_other_zones_become_utc() -> None:
    period = Period(datetime(2027, 1, 1, 8, tzinfo=BEIJING), datetime(2027, 1, 1, 9, tzinfo=BEIJING))
    assert period == Period(datetime(2027, 1, 1, 0, tzinfo=UTC), datetime(2027, 1, 1, 1, tzinfo=UTC))
    assert period.start.tzinfo is UTC
    assert period.end is not None
    assert period.end.tzinfo is UTC


def test_a_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(Refusal):
        Period(datetime(1, 1, 1, tzinfo=BEIJING), None)


def test_what_has_no_end_has_no_duration() -> None:
    assert span(0, None).duration is None
    assert span(0, 3).duration == timedelta(hours=3)


# --- Instants -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-10-31T09:00:00Z", datetime(2027, 10, 31, 9, tzinfo=UTC)),
        ("2027-10-31t09:00:00z", datetime(2027, 10, 31, 9, tzinfo=UTC)),
        ("2027-10-31 09:00:00+08:00", datetime(2027, 10, 31, 1, tzinfo=UTC)),
        ("2027-10-31T09:00:00-00:00", datetime(2027, 10, 31, 9, tzinfo=UTC)),
        ("2027-10-31T09:00:00.5Z", datetime(2027, 10, 31, 9, 0, 0, 500_000, tzinfo=UTC)),
        ("2027-10-31T09:00:00.123456789Z", datetime(2027, 10, 31, 9, 0, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_into_utc(text: str, instant: datetime) -> None:
    found = parse_instant(text, "/start")
    assert found == instant
    assert found.tzinfo is UTC


def test_an_instant_without_offset_is_refused_and_named() -> None:
    error = refusal("2027-10-31T09:00:00")
    assert (error.code, error.data["pointer"]) == (Code.NAIVE_TIME, "/start")


@pytest.mark.parametrize(
    "text",
    [
        None, True, 5, 1.5, [], {}, "", "now", "2027-10-31", "2027-10-31T09:00Z", "2027-02-29T00:00:00Z",
        "2027-10-31T24:00:00Z", "2027-10-31T23:59:60Z", "2027-13-01T00:00:00Z", "2027-10-31T09:00:00+24:00",
        "2027-10-31T09:00:00+0800", "2027-10-31T09:00:00+08:60", "2027-10-31T09:00:00 Z",
        " 2027-10-31T09:00:00Z",
        "2027-10-31T09:00:00Z\n", "٢٠٢٧-10-31T09:00:00Z", "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00", "\ud800", "2027-10-31T09:00:00.Z",
    ],
)  # fmt: skip
def test_what_is_no_instant_is_malformed(text: object) -> None:
    error = refusal(text)
    assert (error.code, error.data["pointer"]) == (Code.MALFORMED, "/start")


def test_instants_are_within_the_years_that_can_be_asked_for() -> None:
    assert first_error(refusal("1969-12-31T23:59:59Z")) == ("/start", "too_early")
    assert first_error(refusal("3000-01-01T00:00:00Z")) == ("/start", "too_late")
    assert parse_instant("2999-12-31T23:59:59Z", "/start") + LONGEST


@given(st.datetimes(datetime(1971, 1, 1), datetime(2998, 1, 1), timezones=st.timezones()))  # noqa: DTZ001
def test_an_instant_survives_being_written_and_read(instant: datetime) -> None:
    # In UTC, since Python calls two zones' readings of an hour that comes twice never equal.
    assert parse_instant(instant.astimezone(UTC).isoformat(), "/start") == instant.astimezone(UTC)


@example("2027-10-31T09:00:00." + "9" * 12 + "Z")
@given(st.text() | st.from_regex(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?\Z"))
def test_no_text_makes_an_instant_fail_otherwise(text: str) -> None:
    found = outcome(parse_instant, text)
    if isinstance(found, Refusal):
        assert found.code in (Code.MALFORMED, Code.NAIVE_TIME, Code.INVALID)
    else:
        assert found.tzinfo is UTC


# --- Durations ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT2H", timedelta(hours=2)),
        ("P1D", timedelta(days=1)),
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P2W", timedelta(weeks=2)),
        ("P1W1DT1H1M1S", timedelta(weeks=1, days=1, hours=1, minutes=1, seconds=1)),
        ("PT90M", timedelta(minutes=90)),
        ("PT1S", timedelta(seconds=1)),
        ("P366D", LONGEST),
    ],
)
def test_a_duration_is_read(text: str, length: timedelta) -> None:
    assert parse_duration(text, "/duration") == length


@pytest.mark.parametrize(
    "text",
    [
        None, 7200, True, [], "", "P", "PT", "P1DT", "2H", "PT2", "P1M", "P1Y", "P1Y2M", "PT1.5H", "-PT1H",
        "PT-1H", "pt1h", "PT1M1H", "P1D1W", "PT1H ", "PT1H\n", "PT٢H", "PT1234567890H", "\ud800", "PT1HH",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_malformed(text: object) -> None:
    assert refusal(text, parse_duration).code is Code.MALFORMED


@pytest.mark.parametrize("text", ["PT0S", "P0D", "P0W", "P0DT0H"])
def test_no_time_at_all_is_too_small(text: str) -> None:
    assert first_error(refusal(text, parse_duration)) == ("/start", "too_small")


@pytest.mark.parametrize("text", ["P366DT1S", "P53W", "P999999999D", "P999999999W", "PT999999999H"])
def test_more_than_a_year_is_too_large(text: str) -> None:
    assert first_error(refusal(text, parse_duration)) == ("/start", "too_large")


@given(st.timedeltas(timedelta(seconds=1), LONGEST))
def test_a_duration_survives_being_written_and_read(length: timedelta) -> None:
    whole = timedelta(seconds=length // timedelta(seconds=1))
    assert parse_duration(duration_text(length), "/duration") == whole


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(0), "PT0S"),
        (timedelta(days=1, hours=2), "P1DT2H"),
        (timedelta(days=14), "P14D"),
        (timedelta(minutes=90), "PT1H30M"),
    ],
)
def test_a_duration_is_written_short(length: timedelta, text: str) -> None:
    assert duration_text(length) == text


@given(st.text(alphabet="PTWDHMS0123456789-. ", max_size=14))
def test_no_text_makes_a_duration_fail_otherwise(text: str) -> None:
    found = outcome(parse_duration, text)
    if isinstance(found, Refusal):
        assert found.code in (Code.MALFORMED, Code.INVALID)
    else:
        assert timedelta(0) < found <= LONGEST
