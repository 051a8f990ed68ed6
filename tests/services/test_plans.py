"""Choosing: what fits and is within quota, without a database."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.fleet import micros, of_views
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Use
from pool.core.quota_lines import Line
from pool.core.quota_uses import Uses
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.core.standing import Standing
from pool.queries.snapshot import Snapshot
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


class Work(NamedTuple):
    """What a team has on GPUs that nobody looks at."""

    team: int
    model: str
    milli: int
    firm: bool = False
    period: Period = HOUR


def uses_of(work: tuple[Work, ...], models: tuple[str, ...]) -> Uses:
    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return Uses(
        team=column([one.team for one in work]),
        model=column([models.index(one.model) for one in work]),
        klass=column([3] * len(work)),
        milli=column([one.milli for one in work]),
        memory=column([0] * len(work)),
        since=column([micros(one.period.start) for one in work]),
        until=column([micros(one.period.end) for one in work]),
        created=column(list(range(len(work)))),
        firm=np.array([one.firm for one in work], dtype=np.bool_),
        reservation=column([n for at in range(len(work)) for n in (0, at + 1)]).reshape(-1, 2),
        row=column([-1] * len(work)),
    )


def snap(
    *gpus: GpuView,
    lines: tuple[Line, ...] = (Line(1, None, 0, 9000, team=1),),
    work: tuple[Work, ...] = (),
    unclean: tuple[GpuView, ...] = (),
) -> Snapshot:
    """`unclean`: on these GPUs somebody's slices are still there whose time was over an hour ago."""
    over = Period(NOON - hours(2), NOON - hours(1))
    left = [replace(g, busy=(Busy(0, g.grid, over, None, "booked"),)) for g in unclean]
    fleet = of_views([*gpus, *left])
    models = tuple(sorted({*fleet.models, *(one.model for one in work)}))
    capacity = {model: 1000 * sum(card.model == model for card in fleet.cards) for model in models}
    standing = Standing(lines, (), {}, uses_of(work, models), models, capacity)
    return Snapshot(fleet, HOUR, NOON, fleet.window(HOUR, NOON), fleet, standing)


def wanted(ask: GpuAsk | MigAsk = GpuAsk(), klass: Class = Class.INTERACTIVE) -> Wanted:  # noqa: B008
    return Wanted(ask, HOUR, HOUR, klass, team_id=1)


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
    lines = (Line(1, H100, 0, 0, team=1), Line(2, A100, 0, 1000, team=1))
    (plan,) = plans.choose(snap(gpu(1), gpu(2, A100), lines=lines), wanted())
    assert plan.picks[0].model == A100


def test_when_quota_forbids_all_the_best_plans_numbers_are_told() -> None:
    lines = (Line(1, H100, 0, 999, team=1), Line(2, A100, 0, 0, team=1))
    with pytest.raises(Refusal) as caught:
        plans.choose(snap(gpu(1, A100), gpu(2), lines=lines), wanted(GpuAsk(models=(H100, A100))))
    assert caught.value.code == Code.QUOTA_EXCEEDED
    assert caught.value.data["asked"] == 1000


def test_a_plan_tells_what_of_it_is_borrowed_and_for_how_long() -> None:
    half = Period(NOON, NOON + hours(0.5))
    mine = Work(1, H100, 600, period=half)
    reading = snap(gpu(1), lines=(Line(1, None, 1000, 3000, team=1),), work=(mine,))
    (plan,) = plans.choose(reading, wanted(klass=Class.BATCH))
    assert [(loan.period, loan.milli, loan.source) for loan in plan.borrowed] == [(half, 600, "others")]


def test_what_cannot_be_taken_back_may_not_be_borrowed() -> None:
    reading = snap(gpu(1), lines=(Line(1, None, 500, 3000, team=1),))
    firm = replace(wanted(), firm=True)
    told = plans.over_quota(reading, plans.choose(reading, wanted())[0].picks, firm)
    assert told is not None
    assert told.data["reason"] == "firm_over_guaranteed"
    online = plans.over_quota(reading, plans.choose(reading, wanted())[0].picks, wanted(klass=Class.ONLINE))
    assert online is not None
    assert online.data["reason"] == "online_over_guaranteed"


def test_while_a_holder_of_a_guarantee_waits_nothing_is_borrowed_there() -> None:
    stopped = replace(snap(gpu(1)), stopped=frozenset({H100}))
    with pytest.raises(Refusal) as caught:
        plans.choose(stopped, wanted())
    assert caught.value.data == {"reason": "borrowing_stopped", "model": H100}
    within = replace(stopped, standing=snap(gpu(1), lines=(Line(1, None, 1000, 1000, team=1),)).standing)
    assert plans.choose(within, wanted())[0].borrowed == ()


# --- What others are guaranteed -------------------------------------------------


def slices(number: int) -> GpuView:
    return gpu(number, use=Use.MIG)


def halves(mine: int, theirs: int, unit: str) -> tuple[Line, ...]:
    return (
        Line(1, None, mine, 2000, team=1),
        Line(2, None, theirs, 2000, team=2, unit=unit),
    )


def test_what_is_within_the_guarantee_leaves_others_a_place_in_their_unit() -> None:
    """Team 2 may want a whole GPU: team 1, which is on the first one already, keeps off the second."""
    lines, half = halves(1000, 1000, "gpu"), MigAsk(profile="3g.40gb")
    mine = (Work(1, H100, 500, firm=True),)
    first = replace(slices(1), busy=(Busy(4, 4, HOUR, None, "booked"),))
    found = plans.choose(snap(first, slices(2), lines=lines, work=mine), wanted(half))
    assert {plan.picks[0].gpu_id for plan in found} == {1}
    amid = replace(slices(1), busy=(Busy(2, 4, HOUR, None, "booked"),))
    with pytest.raises(NoRoom) as caught:
        plans.choose(snap(amid, slices(2), lines=lines, work=mine), wanted(half))
    told = plans.no_capacity(caught.value.snap, wanted(half), None)
    assert told.data["counts"]["guaranteed_to_others"] == 1


def test_what_is_borrowed_may_stand_in_the_way_since_it_is_taken_back() -> None:
    full = replace(slices(1), busy=(Busy(0, 8, HOUR, None, "booked"),))
    reading = snap(full, slices(2), lines=halves(0, 1000, "gpu"))
    (plan, *_) = plans.choose(reading, wanted(MigAsk(profile="3g.40gb")))
    assert (plan.picks[0].gpu_id, sum(loan.milli for loan in plan.borrowed)) == (2, 500)
