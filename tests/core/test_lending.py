"""What is left to borrow, against the slow way at every instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import lending
from pool.core.fleet_rows import micros
from tests.core import standings
from tests.core.standings import H100, MODELS, Slow, Work, World, grant, line
from tests.core.worlds import at

FIRST, LAST = 1, 12


@settings(max_examples=100)
@given(seed=st.integers(0, 2**48), team=st.integers(1, 6))
def test_the_room_and_the_claims_are_as_the_slow_way_says_at_every_instant(seed: int, team: int) -> None:
    world = standings.a_world(seed)
    found = lending.room(world.standing, team, micros(at(FIRST)), micros(at(LAST)))
    assert (np.diff(found.time) > 0).all()
    for hour in range(FIRST, LAST):
        now = int(np.searchsorted(found.time, micros(at(hour)), side="right")) - 1
        left, claimed = np.hsplit(found.level[now], 2)
        slow = Slow(world, hour).room(team)
        told = zip((*MODELS, None), zip(left.tolist(), claimed.tolist(), strict=True), strict=True)
        assert dict(told) == slow


def kept(*lines: standings.Line, work: tuple[Work, ...] = (), team: int = 1, **world: object) -> int:
    """What others claim of H100s at one hour."""
    standing = World(lines, work, **world).standing  # type: ignore[arg-type]
    level = lending.room(standing, team, micros(at(1)), micros(at(2))).level[0]
    return int(np.hsplit(level, 2)[1][MODELS.index(H100)])


def test_a_guarantee_is_lent_as_far_as_its_line_says() -> None:
    for lend, keeps in ((None, 0), (4000, 0), (1500, 2500), (0, 4000)):
        assert kept(line(2, 4000, 4000, H100, lend_milli=lend)) == keeps


def test_what_the_team_uses_itself_it_need_not_keep() -> None:
    team = line(2, 4000, 8000, H100, lend_milli=1000)
    assert [kept(team, work=(Work(2, milli),)) for milli in (0, 1000, 3000, 9000)] == [3000, 2000, 0, 0]


def test_nobody_keeps_anything_from_itself() -> None:
    team = line(1, 4000, 4000, H100, lend_milli=0)
    assert (kept(team), kept(team, team=2)) == (0, 4000)


def test_a_parent_and_its_teams_keep_the_same_only_once() -> None:
    parents = {2: 9, 3: 9, 9: None}
    teams = [line(team, 1000, 4000, H100, lend_milli=0) for team in (2, 3)]
    for lend, keeps in ((0, 4000), (3000, 2000), (4000, 2000)):
        assert kept(*teams, line(9, 4000, 4000, H100, lend_milli=lend), parents=parents) == keeps
    own = line(9, 4000, 4000, H100, lend_milli=0)
    # One of its teams uses 2 of the 4 that the parent keeps; the other keeps 1 of the rest for itself.
    assert kept(*teams, own, work=(Work(2, 2000),), parents=parents) == 2000
    assert kept(*teams, own, work=(Work(2, 4000),), parents=parents) == 1000


def test_whether_anybody_keeps_anything_is_known_without_looking_at_uses() -> None:
    start, end = micros(at(0)), micros(at(8))
    mine, theirs = line(1, 4000, 4000, lend_milli=0), line(2, 4000, 4000, lend_milli=4000)
    assert not lending.keeps(World((mine, theirs)).standing, 1, start, end)
    more = (grant(2, 1000, 1000, 4, 6),)
    assert lending.keeps(World((mine, theirs), grants=more).standing, 1, start, end)
    assert not lending.keeps(World((mine, theirs), grants=more).standing, 1, start, micros(at(4)))
