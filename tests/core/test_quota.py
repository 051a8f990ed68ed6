"""Charges, and peaks against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import mig
from pool.core.period import Period
from pool.core.quota import WHOLE, charge_milli, peak
from tests.core import worlds
from tests.core.worlds import at, span

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
    day = [(span(h, h + 1), 500) for h in range(4)]
    assert peak(day, span(0, 4)) == 500
    assert peak([*day, (span(2, 3), 250)], span(0, 4)) == 750
    assert peak([*day, (span(2, 3), 250)], span(0, 2)) == 500
    assert peak([], span(0, 4)) == 0


def test_what_has_no_end_counts_for_ever() -> None:
    assert peak([(span(0, None), 125), (span(500, 501), 125)], span(400, None)) == 250
