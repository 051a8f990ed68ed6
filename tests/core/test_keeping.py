"""What others keep, while some borrow what the asker lends."""

from __future__ import annotations

from pool.core.keeping import takes_kept
from tests.core.standings import H100, Work, World, line
from tests.core.worlds import span

ASKER, KEEPER, BORROWER = 1, 2, 3
#: Of the 8 GPUs the keeper keeps 2; the asker lends all of its 4.
LINES = (
    line(ASKER, 4000, 8000, H100),
    line(KEEPER, 2000, 8000, H100, lend_milli=0),
    line(BORROWER, 0, 8000, H100),
)
WHEN = span(1, 4)


def takes(milli: int, *work: Work, lines: tuple = LINES) -> bool:
    return takes_kept(World(lines, work).standing, ASKER, {H100: milli}, WHEN)


def test_what_is_kept_is_taken_only_beyond_what_is_free_beside_it() -> None:
    borrowed = Work(BORROWER, 5000)
    assert not takes(1000, borrowed)
    assert takes(2000, borrowed)


def test_as_long_as_nobody_borrows_nothing_has_to_be_left() -> None:
    assert not takes(8000)
    assert not takes(8000, Work(BORROWER, 5000, 4, 8))
    assert takes(8000, Work(BORROWER, 5000, 3, 8))


def test_what_cannot_be_taken_back_is_not_waited_for() -> None:
    assert not takes(2000, Work(BORROWER, 5000, firm=True))


def test_who_lends_all_keeps_nothing() -> None:
    lines = (LINES[0], line(KEEPER, 2000, 8000, H100), LINES[2])
    assert not takes(3000, Work(BORROWER, 5000), lines=lines)


def test_who_uses_what_it_keeps_needs_no_more() -> None:
    assert not takes(1000, Work(BORROWER, 5000), Work(KEEPER, 2000, number=2))
