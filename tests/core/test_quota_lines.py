"""Lines with their grants, as they are at an instant and over time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pool.core.quota_lines import Grant, Line, at, effective, with_grants
from tests.core import worlds
from tests.core.worlds import at as hour
from tests.core.worlds import span

LINE = Line(1, "H100", 1000, 2000, team=7, memory_mib=80_000, budget_milli_hours=500_000)


def grant(start: float, end: float | None, amount: int = 500, team: int = 7, model: str = "H100") -> Grant:
    return Grant(team, model, amount, 2 * amount, 10_000, 3000, span(start, end))


def caps(grants: list[Grant], start: float, end: float | None) -> list[tuple[float, int]]:
    parts = effective(LINE, grants, span(start, end))
    return [((period.start - hour(0)).total_seconds() / 3600, line.cap_milli) for period, line in parts]


def test_a_grant_adds_to_its_line_while_it_is_valid() -> None:
    before, there, after = (at(LINE, [grant(2, 6)], hour(n)) for n in (1.99, 2, 6))
    assert (before, after) == (LINE, LINE)
    assert (there.guaranteed_milli, there.cap_milli) == (1500, 3000)
    assert (there.memory_mib, there.budget_milli_hours) == (90_000, 503_000)


def test_grants_add_up_and_each_is_for_its_own_team_and_model() -> None:
    many = [grant(0, 8), grant(0, 8), grant(0, 8, team=8), grant(0, 8, model="A100")]
    assert at(LINE, many, hour(1)).cap_milli == 4000


def test_what_is_not_limited_stays_so() -> None:
    free = Line(1, "H100", 0, 2000, team=7)
    found = at(free, [grant(0, 8)], hour(1))
    assert (found.memory_mib, found.budget_milli_hours) == (None, None)


def test_touching_grants_leave_no_instant_with_both_or_neither() -> None:
    assert caps([grant(0, 4), grant(4, 8)], 0, 10) == [(0, 3000), (8, 2000)]
    assert caps([grant(0, 4), grant(4, 8, 700)], 0, 10) == [(0, 3000), (4, 3400), (8, 2000)]


def test_a_gap_between_grants_is_a_step_down_and_up() -> None:
    assert caps([grant(0, 4), grant(5, None)], 1, None) == [(1, 3000), (4, 2000), (5, 3000)]


@given(st.lists(worlds.periods, max_size=5), worlds.periods)
def test_the_parts_cover_the_period_and_tell_what_holds_at_every_hour(valid: list, within: object) -> None:
    grants = [Grant(7, "H100", 0, 100 * 2**n, 0, 0, period) for n, period in enumerate(valid)]
    parts = effective(LINE, grants, within)
    assert (parts[0][0].start, parts[-1][0].end) == (within.start, within.end)
    assert all(one.end == other.start for (one, _), (other, _) in pairwise(parts))
    for period, line in parts:
        for n in range(4 * worlds.HOURS):
            if period.contains(hour(n / 2)):
                assert line == at(LINE, grants, hour(n / 2))


def test_a_grant_without_a_line_gets_an_empty_one() -> None:
    lines = with_grants(
        [LINE], [grant(0, 8), grant(0, 8, model="A100"), Grant(7, None, 0, 0, 0, 0, span(0, 1))]
    )
    assert lines == (LINE, Line(0, None, 0, 0, team=7), Line(0, "A100", 0, 0, team=7))


def test_what_is_kept_is_what_is_not_lent() -> None:
    kept = [Line(1, None, 4000, 4000, lend_milli=lend).kept_milli for lend in (None, 0, 1000, 4000, 9000)]
    assert kept == [0, 4000, 3000, 0, 0]
