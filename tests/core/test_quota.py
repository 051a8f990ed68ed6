"""Charges, peaks against brute force, and which line says no with which numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota import WHOLE, Line, Use_, charge_milli, check, closed, left, peak
from tests.core import worlds
from tests.core.worlds import at, span

H100, A100 = "H100-80GB", "A100-40GB"
ANY = Line(1, None, 2000, 4000)
ON_H100 = Line(2, H100, 0, 1000)


def refusal(lines: list[Line], asked: dict[str, int], uses: dict[int, list[Use_]] | None = None) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check(lines, asked, uses or {}, span(0, 4))
    assert caught.value.code is Code.QUOTA_EXCEEDED
    return caught.value


# --- Charges --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "grid", "milli"),
    [
        (1, 8, 125),
        (2, 8, 250),
        (4, 8, 500),
        (8, 8, 1000),
        (1, 4, 250),
        (3, 12, 250),
        (6, 12, 500),
        (1, 12, 83),
    ],
)
def test_a_slice_is_charged_its_share_of_the_grid(size: int, grid: int, milli: int) -> None:
    assert charge_milli(size, grid) == milli


@pytest.mark.parametrize("model", mig.models().values(), ids=lambda m: m.name)
def test_charges_are_exact_for_every_model(model: mig.Model) -> None:
    for p in model.profiles:
        assert charge_milli(p.size, model.grid) * model.grid == WHOLE * p.size


@given(st.data(), st.integers(1, mig.MAX_GRID))
def test_the_charges_of_a_gpu_never_sum_above_a_whole_one(data: st.DataObject, grid: int) -> None:
    free, total = grid, 0
    while free:
        size = data.draw(st.integers(1, free))
        free, total = free - size, total + charge_milli(size, grid)
    assert total <= WHOLE


@pytest.mark.parametrize(("size", "grid"), [(0, 8), (-1, 8), (9, 8), (1, 0)])
def test_a_span_that_is_none_has_no_charge(size: int, grid: int) -> None:
    with pytest.raises(ValueError, match="size"):
        charge_milli(size, grid)


# --- Peaks ----------------------------------------------------------------------


@given(st.lists(st.tuples(worlds.periods, st.integers(0, 9)), max_size=6), worlds.periods)
def test_the_peak_is_the_largest_sum_at_any_instant(uses: list[tuple[Period, int]], within: Period) -> None:
    hours = [at(h / 2) for h in range(4 * worlds.HOURS + 4) if within.contains(at(h / 2))]
    sums = [sum(milli for period, milli in uses if period.contains(hour)) for hour in hours]
    assert peak(uses, within) == max(sums)


def test_bookings_behind_one_another_are_not_summed() -> None:
    day = [Use_(span(h, h + 1), 500) for h in range(4)]
    assert peak(day, span(0, 4)) == 500
    assert peak([*day, Use_(span(2, 3), 250)], span(0, 4)) == 750
    assert peak([*day, Use_(span(2, 3), 250)], span(0, 2)) == 500
    assert peak([], span(0, 4)) == 0


def test_what_has_no_end_counts_for_ever() -> None:
    assert peak([Use_(span(0, None), 125), Use_(span(500, 501), 125)], span(400, None)) == 250


# --- Lines ----------------------------------------------------------------------


def test_without_a_line_the_cap_is_zero() -> None:
    error = refusal([], {H100: 125})
    assert error.data == {
        "reason": "no_line", "line": None, "model": H100, "cap": 0, "used": 0, "asked": 125,
    }  # fmt: skip
    assert refusal([ON_H100], {A100: 125}).data["reason"] == "no_line"


def test_up_to_the_cap_is_allowed_and_one_more_is_not() -> None:
    used = {1: [Use_(span(1, 2), 3000)]}
    check([ANY], {H100: 1000}, used, span(0, 4))
    error = refusal([ANY], {H100: 1001}, used)
    assert error.data == {
        "reason": "over_cap", "line": 1, "model": None, "cap": 4000, "used": 3000, "asked": 1001,
    }  # fmt: skip


def test_only_use_within_the_period_counts() -> None:
    used = {1: [Use_(span(4, 9), 4000), Use_(span(-3, 0), 4000)]}
    check([ANY], {H100: 4000}, used, span(0, 4))
    assert refusal([ANY], {H100: 1}, {1: [Use_(span(3, 9), 4000)]}).data["used"] == 4000


def test_each_line_that_applies_has_to_allow_it() -> None:
    check([ANY, ON_H100], {H100: 1000}, {}, span(0, 4))
    assert refusal([ANY, ON_H100], {H100: 1125}).data["line"] == 2
    assert refusal([ON_H100, ANY], {H100: 500}, {1: [Use_(span(0, 4), 3600)]}).data["line"] == 1
    check([ANY, ON_H100], {A100: 4000}, {}, span(0, 4))


def test_a_booking_of_several_models_counts_as_a_whole_on_the_line_for_any() -> None:
    check([ANY, ON_H100], {A100: 3000, H100: 1000}, {}, span(0, 4))
    assert refusal([ANY, ON_H100], {A100: 3125, H100: 1000}).data["asked"] == 4125


def test_what_is_left_is_never_below_zero() -> None:
    assert left(ANY, [Use_(span(0, 1), 1500)], span(0, 4)) == 2500
    assert left(ANY, [Use_(span(0, 1), 9000)], span(0, 4)) == 0


# --- When a line is closed ----------------------------------------------------------


@given(uses=st.lists(st.tuples(worlds.periods, st.sampled_from([500, 1000, 2500])), max_size=6))
def test_a_line_is_closed_exactly_where_less_is_left(uses: list[tuple[Period, int]]) -> None:
    shut = closed(ON_H100, uses, 600, span(1, 12))
    assert all(one.end is None or one.end < other.start for one, other in pairwise(shut))
    for hour in range(1, 12):
        moment = span(hour, hour + 0.5)
        assert any(one.overlaps(moment) for one in shut) == (left(ON_H100, uses, moment) < 600)


def test_a_line_without_enough_is_always_closed() -> None:
    assert closed(ON_H100, [], 1001, span(0, 4)) == [span(0, None)]
    assert closed(ON_H100, [], 1000, span(0, 4)) == []
