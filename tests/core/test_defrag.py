"""A few moves of what has not begun: they win what is told and keep everything else."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import defrag
from pool.core.asks import Ask, GpuAsk, MigAsk
from pool.core.defrag import Plan
from pool.core.fleet import Fleet, halves, micros, of_views
from pool.core.mix import Form, Kind, Mix
from pool.core.moves import Movable
from pool.core.placement import Policy, Use, clash
from tests.core.worlds import DAWN, at, gpu, profile, span, taken, wall

MODEL = "H100-80GB"
SMALL = "1g.10gb"
HOUR = span(1, 2)


def policy(*kinds: Kind) -> Policy:
    return Policy(Mix(kinds, tuple(1 / len(kinds) for _ in kinds)))


LARGE = policy(Kind(Form.MIG, profile="7g.80gb"))


def number(n: int) -> UUID:
    return UUID(int=n + 1)


def booked(fleet: Fleet, owners: tuple[int, ...] = ()) -> Fleet:
    """Each row is a booking of its own, by the order of the rows."""
    rows = fleet.rows()
    for n in range(len(rows)):
        rows["reservation"][n] = halves(number(n))
        rows["owner"][n] = owners[n] if owners else n
        rows["team"][n] = 7
        rows["since"][n], rows["until"][n] = rows["start"][n], rows["end"][n]
    return fleet.updated(list(fleet.cards), rows)


def movable(fleet: Fleet, which: int, ask: Ask) -> Movable:
    row = fleet.rows()[which]
    period = span((int(row["start"]) - micros(DAWN)) / 3.6e9, (int(row["end"]) - micros(DAWN)) / 3.6e9)
    return Movable(number(which), ask, period, int(row["charge"]), frozenset({int(row["gpu"])}))


def charged(fleet: Fleet) -> Fleet:
    rows = fleet.rows()
    rows["charge"] = 1000 * np.bitwise_count(rows["mask"]).astype(np.int64) // 8
    return fleet.updated(list(fleet.cards), rows)


def slices(*starts: tuple[int, int]) -> Fleet:
    """Two GPUs with small slices (GPU, start) over the same hour."""
    views = [gpu(0), gpu(1)]
    for n, start in starts:
        views[n] = replace(views[n], busy=(*views[n].busy, taken(profile(MODEL, SMALL), start, HOUR)))
    return charged(booked(of_views(views)))


def places(plan: Plan) -> list[tuple[int, int]]:
    return [(pick.gpu_id, pick.start) for step in plan.steps for pick in step.move.picks]


def test_two_slices_on_two_gpus_go_together_so_that_one_is_whole() -> None:
    fleet = slices((0, 0), (1, 0))
    both = [movable(fleet, n, MigAsk(SMALL)) for n in range(2)]
    found = defrag.plan(fleet, both, now=DAWN, policy=LARGE)
    (step,) = found.steps
    assert {gpu for gpu, _, _ in step.before} != {pick.gpu_id for pick in step.move.picks}
    # 875 + 875 thousandths were of no use to a 7g for an hour; one GPU is whole again.
    assert (found.before.lost, found.after.lost) == (1750.0, 750.0)
    assert step.won == 1000.0
    assert found.before.free == found.after.free == 1750.0


def test_only_what_may_be_moved_is_moved() -> None:
    fleet = slices((0, 0), (1, 0))
    found = defrag.plan(fleet, [movable(fleet, 1, MigAsk(SMALL))], now=DAWN, policy=LARGE)
    assert [step.move.reservation for step in found.steps] == [number(1)]
    assert defrag.plan(fleet, [], now=DAWN, policy=LARGE) == Plan()


def test_where_nothing_is_won_nothing_moves() -> None:
    fleet = slices((0, 0), (0, 1))
    both = [movable(fleet, n, MigAsk(SMALL)) for n in range(2)]
    assert defrag.plan(fleet, both, now=DAWN, policy=LARGE).steps == ()


def test_it_stays_where_its_owner_is_before_it() -> None:
    small = profile(MODEL, SMALL)
    views = [
        gpu(0, busy=[taken(small, 0, span(0, 1)), taken(small, 0, HOUR)]),
        gpu(1, busy=[taken(small, 3, span(0, 2))]),
    ]
    fleet = charged(booked(of_views(views), owners=(5, 5, 6)))
    assert not defrag.plan(fleet, [movable(fleet, 1, MigAsk(SMALL))], now=DAWN, policy=LARGE).steps
    others = charged(booked(of_views(views), owners=(4, 5, 6)))
    assert defrag.plan(others, [movable(others, 1, MigAsk(SMALL))], now=DAWN, policy=LARGE).steps


def test_no_more_moves_than_are_wanted() -> None:
    views = [gpu(n, busy=[taken(profile(MODEL, SMALL), 0, HOUR)]) for n in range(6)]
    fleet = charged(booked(of_views(views)))
    all_of_them = [movable(fleet, n, MigAsk(SMALL)) for n in range(6)]
    assert len(defrag.plan(fleet, all_of_them, now=DAWN, policy=LARGE, most=2).steps) == 2
    found = defrag.plan(fleet, all_of_them, now=DAWN, policy=LARGE)
    assert len(found.steps) == 5
    assert (found.before.lost, found.after.lost) == (6 * 875.0, 250.0)


def test_whole_gpus_go_to_one_node_so_that_another_is_free() -> None:
    views = [gpu(n, use=Use.WHOLE, node=f"node-{n // 2}") for n in range(4)]
    views[0] = replace(views[0], busy=(wall(0, 8, HOUR),))
    views[2] = replace(views[2], busy=(wall(0, 8, HOUR),))
    fleet = of_views([replace(v, busy=tuple(replace(b, tenancy="booked") for b in v.busy)) for v in views])
    fleet = charged(booked(fleet))
    asks = [movable(fleet, n, GpuAsk()) for n in range(2)]
    found = defrag.plan(fleet, asks, now=DAWN, policy=policy(Kind(gpus=2)))
    assert len(found.steps) == 1
    assert (found.before.share, found.after.share) == (1.0, 0.0)
    tied = [replace(one, ask=GpuAsk(same_nvlink_domain=True)) for one in asks]
    assert not defrag.plan(fleet, tied, now=DAWN, policy=policy(Kind(gpus=2))).steps


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), min_size=1, max_size=8, unique=True), st.data()
)
def test_moves_fit_keep_the_charge_and_win_what_is_told(
    starts: list[tuple[int, int]], data: st.DataObject
) -> None:
    fleet = slices(*starts)
    some = data.draw(st.sets(st.integers(0, len(starts) - 1)))
    may = [movable(fleet, n, MigAsk(SMALL)) for n in sorted(some)]
    kinds = policy(Kind(Form.MIG, profile="7g.80gb"), Kind(Form.MIG, profile="3g.40gb"))
    found = defrag.plan(fleet, may, now=DAWN, policy=kinds)
    assert {step.move.reservation for step in found.steps} <= {one.reservation for one in may}
    assert found.before.lost - found.after.lost == pytest.approx(sum(step.won for step in found.steps))
    moved = {step.move.reservation for step in found.steps}
    rows = fleet.rows()
    keep = np.array([not any((r["reservation"] == halves(m)).all() for m in moved) for r in rows], dtype=bool)
    left = fleet.updated(list(fleet.cards), rows[keep])
    views = [left.view(pk, DAWN) for pk in (0, 1)]
    assert clash(views, [pick for step in found.steps for pick in step.move.picks], HOUR) is None
    assert all(step.move.period == HOUR for step in found.steps)
    assert at(1) == HOUR.start
    assert defrag.plan(fleet, may[::-1], now=DAWN, policy=kinds) == found
