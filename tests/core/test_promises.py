"""From where teams stand to what has to keep its place on the GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pool.core import promises
from pool.core.fleet import of_views
from pool.core.fleet_rows import micros
from pool.core.period import Period
from pool.core.placement import GpuView, Pick, Use
from tests.core.standings import H100, MODELS, Work, World, grant, line
from tests.core.worlds import at

DAY = Period(at(0), at(8))


def gpus(number: int) -> tuple[GpuView, ...]:
    return tuple(
        GpuView(
            id=n,
            uuid=f"GPU-{n}",
            node_id=1,
            node="dgx-01",
            index=n,
            model=H100,
            memory_mib=81559,
            use=Use.WHOLE,
            grid=8,
            profiles=(),
            busy=(),
        )
        for n in range(1, number + 1)
    )


def allowed(world: World, number: int, *taken: int) -> bool:
    """Whether team 1 may have these GPUs, of so many."""
    fleet = of_views(gpus(number))
    standing = replace(world.standing, models=(H100,), uses=replace(world.standing.uses))
    found = promises.to_others(fleet, standing, 1, DAY, at(0))
    picks = [Pick(pk, H100, None, 0, 8, 1000) for pk in taken]
    return found is None or found.allow(picks)


def test_where_nobody_else_is_guaranteed_anything_nothing_has_to_keep_its_place() -> None:
    fleet = of_views(gpus(1))
    standing = replace(World((line(1, 1000, 1000),)).standing, models=(H100,))
    assert promises.to_others(fleet, standing, 1, DAY, at(0)) is None


def test_others_keep_a_place_for_what_they_are_guaranteed_and_do_not_use() -> None:
    world = World((line(1, 1000, 4000), line(2, 1000, 1000)))
    assert allowed(world, 2, 1)
    assert not allowed(world, 2, 1, 2)
    assert allowed(world, 3, 1, 2)


def test_where_more_is_promised_than_there_is_who_comes_first_has_it() -> None:
    world = World((line(1, 1000, 1000), line(2, 1000, 1000)))
    assert allowed(world, 1, 1)


def test_a_guarantee_counts_while_its_grant_lasts() -> None:
    later = World((line(1, 0, 9000),), (), (grant(2, 1000, 1000, 6, 9),))
    assert not allowed(later, 1, 1)
    after = World((line(1, 0, 9000),), (), (grant(2, 1000, 1000, 8, 9),))
    assert allowed(after, 1, 1)


def test_what_is_borrowed_and_not_firm_may_be_taken() -> None:
    work = (Work(1, 1500, 0, 4), Work(2, 400, 0, 8, number=2, firm=True))
    world = World((line(1, 1000, 4000), line(2, 0, 1000)), work)
    found = promises.takeable(world.standing, DAY)
    assert found.which.tolist() == [0]
    assert (found.since.tolist(), found.until.tolist()) == ([micros(at(0))], [micros(at(4))])
    assert len(MODELS) == 2
    assert found.which.dtype == np.int64
