"""Nonsense is dropped alone and counted; a silent node is unknown, never free."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import wire
from pool.core.health import (
    BOUNDS,
    BY_BOOT,
    OUT_OF_USE,
    XIDS,
    Action,
    FaultKind,
    Freshness,
    Kind,
    Reading,
    action,
    clean_int,
    clean_window,
    heard,
    is_good,
    signs,
    silent,
    stale,
)
from tests.core.worlds import DAWN

NAN, INF = float("nan"), float("inf")


def window(low: Any, mean: Any, high: Any, last: Any, source: str = "nvml") -> wire.Window:
    return wire.Window(min=low, mean=mean, max=high, last=last, source=source)


# --- Windows --------------------------------------------------------------------


def test_a_sound_window_is_kept_as_it_is() -> None:
    assert clean_window(window(1, 2.5, 4, 3, "gpm"), Kind.UTILIZATION) == (Reading(1, 2.5, 4, 3, "gpm"), 0)


def test_what_was_not_measured_is_not_nonsense() -> None:
    assert clean_window(None, Kind.POWER) == (None, 0)
    assert clean_window(window(None, None, None, None), Kind.POWER) == (None, 0)
    assert clean_window(window(None, None, None, 0), Kind.POWER) == (Reading(None, None, None, 0, "nvml"), 0)


@pytest.mark.parametrize("value", [-1, 101, NAN, INF, -INF, True, False, "5", [], {}, 10**400, -(10**400)])
def test_one_nonsense_value_is_dropped_alone(value: object) -> None:
    reading, dropped = clean_window(window(1, 2, 3, value), Kind.UTILIZATION)
    assert (reading, dropped) == (Reading(1, 2, 3, None, "nvml"), 1)
    assert clean_window(window(value, value, value, value), Kind.UTILIZATION) == (None, 4)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (Kind.UTILIZATION, 0, 100),
        (Kind.MEMORY, 0, 4 * 1024 * 1024),
        (Kind.POWER, 0, 5000),
        (Kind.TEMPERATURE, -50, 150),
    ],
)
def test_the_bounds_belong_to_it(kind: Kind, low: float, high: float) -> None:
    assert BOUNDS[kind] == (low, high)
    assert clean_window(window(low, low, high, high), kind)[1] == 0
    assert clean_window(window(low - 1, low, high, high + 1), kind.value)[1] == 2


@pytest.mark.parametrize(
    "raw",
    ["hot", 7, [1, 2], True, {"min": 1}, {"min": 1, "mean": 1, "max": 1, "last": 1, "source": 3}],
)
def test_what_is_no_window_is_dropped_alone(raw: object) -> None:
    assert clean_window(raw, Kind.POWER) == (None, 1)


def test_a_window_may_come_as_json() -> None:
    raw = {"min": 1, "mean": 2, "max": 3, "last": 2}
    assert clean_window(raw, Kind.POWER) == (Reading(1, 2, 3, 2, "nvml"), 0)


def test_memory_in_use_is_not_more_than_there_is() -> None:
    assert clean_window(window(0, 0, 0, 1020), Kind.MEMORY, total_mib=1000)[1] == 0
    assert clean_window(window(0, 0, 0, 1021), Kind.MEMORY, total_mib=1000)[1] == 1
    assert clean_window(window(0, 0, 0, 1021), Kind.POWER, total_mib=1000)[1] == 0


@pytest.mark.parametrize(("low", "mean", "high"), [(5, 4, 9), (5, 6, 5.5), (9, None, 5), (2, 1, None)])
def test_a_window_that_contradicts_itself_keeps_only_its_last_value(low: Any, mean: Any, high: Any) -> None:
    given_values = sum(v is not None for v in (low, mean, high))
    assert clean_window(window(low, mean, high, 7), Kind.POWER) == (
        Reading(None, None, None, 7, "nvml"),
        given_values,
    )


def test_a_rounded_mean_may_leave_its_window_a_little() -> None:
    assert clean_window(window(5.04, 5.0, 5.04, 5), Kind.POWER)[1] == 0


def test_a_source_that_is_no_word_is_unknown() -> None:
    reading, _ = clean_window(window(1, 1, 1, 1, "x" * 999), Kind.POWER)
    assert reading is not None
    assert reading.source == "unknown"


any_value = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@given(st.sampled_from(Kind), any_value, any_value, any_value, any_value)
def test_what_is_kept_is_in_bounds_and_what_is_not_is_counted(
    kind: Kind, a: Any, b: Any, c: Any, d: Any
) -> None:
    reading, dropped = clean_window(window(a, b, c, d), kind)
    kept = [] if reading is None else [reading.min, reading.mean, reading.max, reading.last]
    present = [v for v in kept if v is not None]
    low, high = BOUNDS[kind]
    assert all(low <= v <= high for v in present)
    assert len(present) + dropped == sum(v is not None for v in (a, b, c, d))


# --- Whole numbers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (None, (None, 0)),
        (0, (0, 0)),
        (9, (9, 0)),
        (9.0, (9, 0)),
        (10, (None, 1)),
        (-1, (None, 1)),
        (1.5, (None, 1)),
        (NAN, (None, 1)),
        (INF, (None, 1)),
        (True, (None, 1)),
        ("1", (None, 1)),
        (10**400, (None, 1)),
    ],
)
def test_a_whole_number_within_bounds_or_nothing(value: object, answer: tuple[int | None, int]) -> None:
    assert clean_int(value, 0, 9) == answer


def test_a_large_whole_number_stays_exact() -> None:
    assert clean_int(2**53 + 1, 0, 2**60) == (2**53 + 1, 0)


# --- Freshness ------------------------------------------------------------------


def after(seconds: float) -> Any:
    return DAWN + timedelta(seconds=seconds)


def test_a_node_is_stale_after_three_reports_that_did_not_come() -> None:
    assert not stale(DAWN, after(45), 15)
    assert stale(DAWN, after(45.001), 15)
    assert stale(DAWN, after(16), 15, missed=1)
    assert stale(None, DAWN, 15)
    assert not stale(after(60), DAWN, 15)


def test_it_is_back_with_its_second_good_report() -> None:
    gone = Freshness(DAWN, 0)
    once = heard(gone)
    assert once == Freshness(DAWN, 1)
    assert heard(once) == Freshness(None, 0)
    assert heard(Freshness(None, 0)) == Freshness(None, 0)


def test_it_is_unknown_since_it_was_last_heard() -> None:
    fresh = Freshness(None, 0)
    assert silent(fresh, DAWN, after(45), 15) == fresh
    assert silent(fresh, DAWN, after(46), 15) == Freshness(DAWN, 0)
    assert silent(fresh, None, after(46), 15) == Freshness(after(46), 0)


def test_a_new_silence_forgets_the_good_report_and_keeps_the_first_time() -> None:
    half_back = heard(Freshness(DAWN, 0))
    assert silent(half_back, after(100), after(200), 15) == Freshness(DAWN, 0)
    assert silent(half_back, after(190), after(200), 15) == half_back


# --- Faults ---------------------------------------------------------------------


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_program_s_own_mistake_is_only_noted(xid: int) -> None:
    assert action(xid) == Action.NOTE


@pytest.mark.parametrize(
    ("xid", "wanted"),
    [(94, Action.END), (79, Action.LOST), *((xid, Action.RESET) for xid in (46, 48, 63, 64, 95))],
)
def test_an_xid_calls_for_what_the_driver_s_table_says(xid: int, wanted: Action) -> None:
    assert action(xid) == wanted


@given(st.integers(0, 2**32).filter(lambda xid: xid not in XIDS))
def test_an_xid_that_is_not_known_drains(xid: int) -> None:
    assert action(xid) == Action.DRAIN


def test_what_is_no_fault_of_the_gpu_leaves_it_in_use() -> None:
    assert set(Action) - OUT_OF_USE == {Action.NOTE, Action.END}


def test_the_state_of_a_gpu_tells_what_is_wrong_with_it() -> None:
    assert signs(lost=False, pending=None, failure=None) == {}
    assert signs(lost=False, pending=False, failure=False) == {}
    assert signs(lost=True, pending=True, failure=True) == {
        FaultKind.LOST: Action.LOST,
        FaultKind.REMAP: Action.RESET,
        FaultKind.REMAP_FAILED: Action.DRAIN,
    }


@pytest.mark.parametrize(
    ("wanted", "asked", "done", "good"),
    [
        (Action.DRAIN, None, 0, True),
        (Action.LOST, None, 0, True),
        (Action.RESET, None, 5, False),
        (Action.RESET, 3, 2, False),
        (Action.RESET, 3, 3, True),
        (Action.RESET, BY_BOOT, 0, True),
    ],
)
def test_what_calls_for_a_reset_is_not_well_before_it(
    wanted: Action, asked: int | None, done: int, good: bool
) -> None:
    assert is_good(wanted, asked, done, readable=True, signs=()) is good
    assert not is_good(wanted, asked, done, readable=False, signs=())
    assert not is_good(wanted, asked, done, readable=True, signs={FaultKind.REMAP})
