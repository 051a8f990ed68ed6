"""When a team's lines leave too little for an ask, over a long window."""

from __future__ import annotations

from pool.core.closing import closed
from pool.core.period import Period
from tests.core.standings import MODELS, Work, World, grant, line
from tests.core.worlds import at

WINDOW = Period(at(0), at(24))
OTHER, MODEL = MODELS


def hours_closed(
    world: World, milli: int, models: tuple[str, ...] = (MODEL,), *, firm: bool = False
) -> list[tuple[float, float | None]]:
    found = closed(world.standing, 1, models, milli, WINDOW, firm=firm)
    start = at(0)
    return [
        (
            (one.start - start).total_seconds() / 3600,
            None if one.end is None else (one.end - start).total_seconds() / 3600,
        )
        for one in found
    ]


def test_a_line_is_closed_while_the_team_and_those_below_it_fill_it() -> None:
    work = (Work(1, 1500, 2, 4), Work(2, 1500, 4, 6, number=2), Work(3, 9000, 0, 24, number=3))
    world = World((line(1, 0, 2000), line(2, 0, 2000)), work, parents={1: None, 2: 1, 3: None})
    assert hours_closed(world, 500) == []
    assert hours_closed(world, 501) == [(2, 6)]
    assert hours_closed(world, 2001) == [(0, None)]


def test_a_line_above_closes_it_too() -> None:
    world = World(
        (line(1, 0, 9000), line(2, 0, 1000)), (Work(3, 1000, 3, None),), parents={1: 2, 2: None, 3: 2}
    )
    assert hours_closed(world, 1) == [(3, None)]


def test_a_line_of_one_model_closes_only_what_nothing_else_can_serve() -> None:
    world = World((line(1, 0, 9000), line(1, 0, 500, MODEL)))
    assert hours_closed(world, 1000) == [(0, None)]
    assert hours_closed(world, 1000, (MODEL, OTHER)) == []


def test_a_grant_opens_a_line_while_it_lasts() -> None:
    grants = (grant(1, 0, 500, 8, 10), grant(1, 0, 500, 9, 12))
    assert hours_closed(World((line(1, 0, 500),), (), grants), 1000) == [(0, 8), (12, None)]
    assert hours_closed(World((line(1, 0, 500),), (), grants), 1500) == [(0, 9), (10, None)]
    work = (Work(1, 1000, 9, 11),)
    assert hours_closed(World((line(1, 0, 500),), work, grants), 500) == [(10, 11)]


def test_a_grant_of_what_is_guaranteed_opens_it_for_firm_work() -> None:
    world = World((line(1, 100, 4000),), (), (grant(1, 900, 0, 8, 9),))
    assert hours_closed(world, 1000, firm=True) == [(0, 8), (9, None)]


def test_firm_work_meets_the_guaranteed_of_its_own_kind() -> None:
    work = (Work(1, 600, 1, 2, firm=True), Work(1, 3000, 3, 4, number=2))
    world = World((line(1, 1000, 4000),), work)
    assert hours_closed(world, 500) == []
    assert hours_closed(world, 500, firm=True) == [(1, 2)]
