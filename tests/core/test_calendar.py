"""Local times: read into UTC, or asked back when the clocks skip or repeat them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.calendar import local_instant, zone
from pool.core.errors import Code, Invalid, Refusal
from pool.core.period import parse_instant

BERLIN, BEIJING = zone("Europe/Berlin"), zone("Asia/Shanghai")


def error(text: object) -> Invalid:
    with pytest.raises(Invalid) as caught:
        local_instant(text, BERLIN, "/start")
    return caught.value


@pytest.mark.parametrize("text", ["2027-07-01T09:00", "2027-07-01 09:00", "2027-07-01T09:00:00"])
def test_a_local_time_is_read_in_its_zone(text: str) -> None:
    assert local_instant(text, BERLIN, "/start") == datetime(2027, 7, 1, 7, tzinfo=UTC)
    assert local_instant(text, BEIJING, "/start") == datetime(2027, 7, 1, 1, tzinfo=UTC)


def test_a_time_that_the_clocks_skip_is_a_question() -> None:
    found = error("2027-03-28T02:30").errors[0]
    assert (found.pointer, found.code) == ("/start", "no_such_time")
    assert found.data["choices"] == ["2027-03-28T01:30:00+01:00", "2027-03-28T03:30:00+02:00"]
    assert local_instant("2027-03-28T03:00", BERLIN, "/start") == datetime(2027, 3, 28, 1, tzinfo=UTC)


def test_a_time_that_comes_twice_is_a_question_with_both_answers() -> None:
    found = error("2027-10-31T02:30").errors[0]
    assert found.code == "ambiguous_time"
    instants = [parse_instant(choice, "/start") for choice in found.data["choices"]]
    assert instants == [datetime(2027, 10, 31, hour, 30, tzinfo=UTC) for hour in (0, 1)]


def test_no_time_is_a_question_where_the_clocks_stay() -> None:
    for text in ("2027-03-28T02:30", "2027-10-31T02:30"):
        assert local_instant(text, BEIJING, "/start").hour == 18


@pytest.mark.parametrize(
    "text", [None, 5, "", "2027-07-01", "2027-07-01T09:00Z", "2027-02-30T09:00", "2027-07-01T24:00", "\ud800"]
)
def test_what_is_no_local_time_is_malformed(text: object) -> None:
    with pytest.raises(Refusal) as caught:
        local_instant(text, BERLIN, "/start")
    assert caught.value.code is Code.MALFORMED


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00", "1970-01-01T00:00", "2999-01-01T00:00", "9999-12-31T23:59"]
)
def test_a_year_far_away_is_refused(text: str) -> None:
    for tz in (BERLIN, BEIJING):
        with pytest.raises(Refusal):
            local_instant(text, tz, "/start")


@given(st.datetimes(datetime(1971, 1, 1), datetime(2998, 1, 1)))  # noqa: DTZ001
def test_an_answer_shows_the_wall_clock_that_was_asked(wall: datetime) -> None:
    wall = wall.replace(microsecond=0)
    found = outcome(wall.isoformat())
    if isinstance(found, Invalid):
        assert wall.month in (3, 4, 10, 9, 11)
    else:
        assert found.astimezone(BERLIN).replace(tzinfo=None) == wall


def outcome(text: str) -> datetime | Invalid:
    try:
        return local_instant(text, BERLIN, "/start")
    except Invalid as refused:
        return refused


@pytest.mark.parametrize(
    "name", ["", "Nowhere/Else", "../zone", "/etc/localtime", "a\x00b", "\ud800", "x" * 5000]
)
def test_a_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        zone(name)
    assert caught.value.errors[0].code == "unknown_zone"
