"""When what is borrowed, row by row, against the slow way at every instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import borrowing
from pool.core.borrowing import Spans
from pool.core.fleet_rows import micros
from tests.core import standings
from tests.core.standings import Slow, Work, World, line
from tests.core.worlds import at

seeds = st.integers(0, 2**48)
FIRST, LAST = 1, 12


def told(spans: Spans, hour: float) -> dict[int, int]:
    """What is borrowed at the hour, by the number of the use."""
    now = (spans.since <= micros(at(hour))) & (micros(at(hour)) < spans.until)
    assert len(set(spans.which[now].tolist())) == now.sum()
    return dict(zip(spans.which[now].tolist(), spans.milli[now].tolist(), strict=True))


def slow(world: World, hour: float, against: int | None) -> dict[int, int]:
    borrowed = Slow(world, hour).borrowed(against)
    return {world.work.index(one): milli for one, milli in borrowed.items() if milli}


@settings(max_examples=40)
@given(seed=seeds)
def test_spans_are_what_is_borrowed_at_every_instant(seed: int) -> None:
    world = standings.a_world(seed)
    for against in (None, 1, 3):
        spans = borrowing.borrowed_spans(world.standing, micros(at(FIRST)), micros(at(LAST)), against)
        assert (spans.since < spans.until).all()
        for hour in range(FIRST, LAST):
            assert told(spans, hour) == slow(world, hour, against)


@settings(max_examples=40)
@given(seed=seeds, most=st.integers(1, 20))
def test_of_too_many_uses_less_is_told_but_never_more_than_is_borrowed(seed: int, most: int) -> None:
    world = standings.a_world(seed)
    for against in (None, 2):
        spans = borrowing.borrowed_spans(
            world.standing, micros(at(FIRST)), micros(at(LAST)), against, most=most
        )
        for hour in range(FIRST, LAST):
            expected = slow(world, hour, against)
            assert all(milli <= expected.get(use, 0) for use, milli in told(spans, hour).items())


@settings(max_examples=40)
@given(seed=seeds)
def test_the_work_of_one_team_is_told_alone(seed: int) -> None:
    world = standings.a_world(seed)
    spans = borrowing.borrowed_spans(world.standing, micros(at(FIRST)), micros(at(LAST)), team=1)
    for hour in range(FIRST, LAST):
        expected = {use: n for use, n in slow(world, hour, None).items() if world.work[use].team == 1}
        assert told(spans, hour) == expected


def test_at_an_instant_every_use_has_its_amount() -> None:
    world = World((line(1, 1500, 9000),), (Work(1, 1000, created=2), Work(1, 1000, created=1, number=2)))
    rows = borrowing.borrowed_rows(world.standing, micros(at(1)))
    assert rows.tolist() == [500, 0]
    assert borrowing.borrowed_rows(world.standing, micros(at(8))).tolist() == [0, 0]


def test_a_span_ends_when_an_older_one_does() -> None:
    """2 GPUs are guaranteed: the younger of three is borrowed until the oldest ends."""
    work = tuple(Work(1, 1000, 0, 4 * n, created=n, number=n) for n in (1, 2, 3))
    world = World((line(1, 2000, 9000),), work)
    spans = borrowing.borrowed_spans(world.standing, micros(at(0)), micros(at(20)))
    assert (spans.which.tolist(), spans.milli.tolist()) == ([2], [1000])
    assert [spans.since.tolist(), spans.until.tolist()] == [[micros(at(0))], [micros(at(4))]]


def test_nobody_borrows_where_nothing_is_used() -> None:
    spans = borrowing.borrowed_spans(World((line(1, 0, 0),)).standing, 0, 10)
    assert all(len(column) == 0 for column in (spans.which, spans.milli, spans.since, spans.until))
    assert np.array_equal(borrowing.borrowed_rows(World(()).standing, 5), [])


def test_a_team_that_has_lost_its_lines_borrows_all_that_it_has() -> None:
    """Its parent's guarantee still holds it against strangers."""
    world = World((line(9, 1500, 9000), line(5, 0, 9000)), (Work(1, 2000),), parents={1: 9, 9: None, 5: None})
    start, end = micros(at(0)), micros(at(8))
    alone, strange = (borrowing.borrowed_spans(world.standing, start, end, one) for one in (None, 5))
    assert (alone.milli.tolist(), strange.milli.tolist()) == ([2000], [500])


def test_teams_that_are_guaranteed_nothing_borrow_from_start_to_end_however_many_there_are() -> None:
    work = tuple(Work(1, 125, number % 7, number % 7 + 3, number=number) for number in range(1, 40))
    world = World((line(1, 0, 9000), line(2, 1000, 1000)), work)
    spans = borrowing.borrowed_spans(world.standing, micros(at(0)), micros(at(20)), 2, most=1)
    assert sorted(spans.which.tolist()) == list(range(39))
    for which, since, until in zip(spans.which, spans.since, spans.until, strict=True):
        assert (since, until) == (micros(at(work[which].start)), micros(at(work[which].end)))
