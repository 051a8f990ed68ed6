"""Rows of a fleet: times, masks and ids as columns hold them, and what stays when some are replaced."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import numpy as np
import pytest

from pool.core.fleet_rows import (
    ALWAYS,
    NEVER,
    ROW,
    Records,
    Rows,
    as_mask,
    halves,
    instant,
    masks,
    micros,
    span_of,
    whole_id,
)
from tests.core.worlds import DAWN


def records(*of: tuple[int, int]) -> Records:
    """(GPU, start) each."""
    made = np.zeros(len(of), dtype=ROW)
    made["gpu"], made["start"] = [gpu for gpu, _ in of], [start for _, start in of]
    made["end"], made["mask"] = made["start"] + 5, 1
    return made


def at(*places: int) -> np.ndarray:
    return np.array(places, dtype=np.int64)


def test_an_instant_is_microseconds_and_no_end_is_never() -> None:
    moment = DAWN + timedelta(microseconds=1)
    assert micros(moment) - micros(DAWN) == 1
    assert instant(micros(moment)) == moment
    assert (micros(None), instant(NEVER)) == (NEVER, None)
    assert ALWAYS < micros(DAWN) < NEVER


@pytest.mark.parametrize("grid", [4, 8, 12, 64])
def test_a_mask_is_its_span(grid: int) -> None:
    spans = [(start, size) for size in range(1, grid + 1) for start in range(grid - size + 1)]
    told = masks(at(*(s for s, _ in spans)), at(*(n for _, n in spans)))
    assert [span_of(one) for one in told.tolist()] == spans
    assert [as_mask(one) for one in told.tolist()] == [((1 << n) - 1) << s for s, n in spans]


@pytest.mark.parametrize("number", [0, 1, 2**127, 2**128 - 1, 0x01A23204A84F75B59C416954746B761C])
def test_an_id_is_two_halves(number: int) -> None:
    assert whole_id(halves(UUID(int=number))) == UUID(int=number)


def test_rows_lie_in_the_order_of_places_and_starts() -> None:
    rows = Rows.of(at(1, 0, 1), records((7, 30), (5, 10), (7, 20)))
    assert (rows.at.tolist(), rows.start.tolist()) == ([0, 1, 1], [10, 20, 30])
    assert rows.on(1) == slice(1, 3)
    assert rows.on(9) == slice(3, 3)
    assert rows.field("gpu", slice(None)).tolist() == [5, 7, 7]


def test_only_what_is_replaced_changes() -> None:
    old = Rows.of(at(0, 1, 1, 3), records((5, 1), (6, 2), (6, 3), (8, 4)))
    new = old.replaced(at(1, 2), at(2, 2, 0), records((7, 9), (7, 8), (5, 99)))
    # What is not at one of the places is not looked at.
    assert (new.at.tolist(), new.start.tolist()) == ([0, 2, 2, 3], [1, 8, 9, 4])
    assert new.field("gpu", slice(None)).tolist() == [5, 7, 7, 8]
    assert old.start.tolist() == [1, 2, 3, 4]


def test_gpus_may_change_their_places() -> None:
    old = Rows.of(at(0, 1, 2), records((5, 1), (6, 2), (7, 3)))
    new = old.moved(at(2, -1, 0))
    assert (new.at.tolist(), new.start.tolist()) == ([0, 2], [3, 1])
    assert new.field("gpu", at(0, 1)).tolist() == [7, 5]


def test_what_is_no_longer_in_use_is_let_go() -> None:
    first = rows = Rows.of(at(0, 1), records((5, 0), (6, 0)))
    for turn in range(20_000):
        rows = rows.replaced(at(0), at(0), records((5, turn)))
    assert len(rows._book.records) < 10_000
    assert (rows.start.tolist(), rows.field("start", slice(None)).tolist()) == ([19_999, 0], [19_999, 0])
    assert first.records(slice(None))["start"].tolist() == [0, 0]


def test_a_booking_of_thousands_at_once_finds_room() -> None:
    rows = Rows.of(at(0), records((5, 0)))
    many = records(*((6, n) for n in range(9000)))
    rows = rows.replaced(at(1), np.ones(9000, dtype=np.int64), many)
    assert rows.field("start", slice(None)).tolist() == [0, *range(9000)]


def test_rows_can_end_earlier_or_never_begin() -> None:
    rows = Rows.of(at(0, 0, 1), records((7, 0), (7, 6), (8, 3)))
    ended = rows.ended(np.array([True, True, False]), 4)
    assert [*zip(ended.at.tolist(), ended.start.tolist(), ended.end.tolist(), strict=True)] == [
        (0, 0, 4),
        (1, 3, 8),
    ]
    assert ended.records(slice(None))["end"].tolist() == [4, 8]
    assert rows.records(slice(None))["end"].tolist() == [5, 11, 8]
