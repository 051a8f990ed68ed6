"""Choosing: what fits and is within quota, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.fleet import of_views
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Use
from pool.core.quota import Line
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.queries.snapshot import Snapshot, TeamUse
from pool.services import plans
from pool.services.plans import NoRoom, Wanted
from tests.scene import H100, NOON, hours

HOUR = Period(NOON, NOON + hours(1))
A100 = "A100-80GB"


def gpu(number: int, model: str = H100, use: Use = Use.WHOLE) -> GpuView:
    known = mig.models()[model]
    return GpuView(
        id=number,
        uuid=f"GPU-{number}",
        node_id=1,
        node="dgx-01",
        index=number,
        model=model,
        memory_mib=81559,
        use=use,
        grid=known.grid,
        profiles=known.profiles if use is Use.MIG else (),
        busy=(),
    )


def snap(
    *gpus: GpuView,
    lines: tuple[Line, ...] = (Line(1, None, 0, 9000),),
    uses: tuple[TeamUse, ...] = (),
    unclean: tuple[GpuView, ...] = (),
) -> Snapshot:
    """`unclean`: on these GPUs somebody's slices are still there whose time was over an hour ago."""
    over = Period(NOON - hours(2), NOON - hours(1))
    left = [replace(g, busy=(Busy(0, g.grid, over, None, "booked"),)) for g in unclean]
    fleet = of_views([*gpus, *left])
    return Snapshot(fleet, HOUR, NOON, fleet.window(HOUR, NOON), lines, uses)


def wanted(ask: GpuAsk | MigAsk = GpuAsk(), klass: Class = Class.INTERACTIVE) -> Wanted:  # noqa: B008
    return Wanted(ask, HOUR, HOUR, klass)


def test_the_best_plan_comes_first_and_there_are_others() -> None:
    found = plans.choose(snap(gpu(1), gpu(2)), wanted())
    assert [plan.picks[0].gpu_id for plan in found] == [1, 2]
    assert all(plan.clean for plan in found)


def test_with_no_room_it_says_on_which_reading() -> None:
    reading = snap(replace(gpu(1), usable=False, why="frozen"))
    with pytest.raises(NoRoom) as caught:
        plans.choose(reading, wanted())
    assert caught.value.snap is reading
    told = plans.no_capacity(reading, wanted(), NOON)
    assert told.code == Code.NO_CAPACITY
    assert (told.data["counts"], told.data["first_time"]) == ({"frozen": 1}, NOON.isoformat())


def test_what_is_not_clean_comes_only_when_nothing_else_is_there() -> None:
    both = snap(gpu(2), unclean=(gpu(1),))
    assert [(plan.picks[0].gpu_id, plan.clean) for plan in plans.choose(both, wanted())] == [(2, True)]
    alone = snap(unclean=(gpu(1),))
    assert [(plan.picks[0].gpu_id, plan.clean) for plan in plans.choose(alone, wanted())] == [(1, False)]


def test_a_model_without_quota_is_passed_over() -> None:
    lines = (Line(1, H100, 0, 0), Line(2, A100, 0, 1000))
    (plan,) = plans.choose(snap(gpu(1), gpu(2, A100), lines=lines), wanted())
    assert plan.picks[0].model == A100


def test_when_quota_forbids_all_the_best_plans_numbers_are_told() -> None:
    lines = (Line(1, H100, 0, 999), Line(2, A100, 0, 0))
    with pytest.raises(Refusal) as caught:
        plans.choose(snap(gpu(1, A100), gpu(2), lines=lines), wanted(GpuAsk(models=(H100, A100))))
    assert caught.value.code == Code.QUOTA_EXCEEDED
    assert caught.value.data["asked"] == 1000


def test_the_peak_counts_and_what_only_touches_does_not() -> None:
    lines = (Line(1, None, 0, 1500),)
    before = TeamUse(H100, "batch", Period(NOON - hours(1), NOON), 1000)
    during = TeamUse(H100, "batch", Period(NOON + hours(0.5), NOON + hours(9)), 600)
    assert plans.over_quota(snap(lines=lines, uses=(before,)), {H100: 1000}, wanted()) is None
    told = plans.over_quota(snap(lines=lines, uses=(before, during)), {H100: 1000}, wanted())
    assert told is not None
    assert (told.data["used"], told.data["cap"]) == (600, 1500)


def test_online_is_measured_against_the_guaranteed_by_online_work_alone() -> None:
    lines = (Line(1, None, 1000, 3000),)
    batch = TeamUse(H100, "batch", HOUR, 1500)
    online = TeamUse(H100, "online", HOUR, 500)
    firm = wanted(klass=Class.ONLINE)
    assert plans.over_quota(snap(lines=lines, uses=(batch,)), {H100: 1000}, firm) is None
    told = plans.over_quota(snap(lines=lines, uses=(online,)), {H100: 1000}, firm)
    assert told is not None
    assert (told.data["reason"], told.data["cap"], told.data["used"]) == ("online_over_guaranteed", 1000, 500)
    assert plans.over_quota(snap(lines=lines, uses=(online,)), {H100: 1000}, wanted()) is None
