"""What counts of a fleet in quota, and in which order it fills a guarantee."""

from __future__ import annotations

from uuid import UUID

import numpy as np

from pool.core.fleet import NEVER, ROW, Card, Fleet, NodeCard, fleet, masks, micros
from pool.core.fleet_rows import halves
from pool.core.placement import Use
from pool.core.quota_uses import Uses, memory_mib
from tests.core import standings
from tests.core.standings import Work
from tests.core.worlds import at, span

NODE = NodeCard(1, "node-a")


def row(gpu: int, number: int, start: float, end: float | None, **more: object) -> np.ndarray:
    one = np.zeros(1, dtype=ROW)
    one["gpu"], one["reservation"] = gpu, halves(UUID(int=number))
    one["since"] = one["start"] = micros(at(start))
    one["until"] = one["end"] = NEVER if end is None else micros(at(end))
    one["mask"] = masks(np.array([0]), np.array([more.pop("size", 8)]))
    for name, value in more.items():
        one[name] = value
    return one


def a_fleet(*rows: np.ndarray) -> Fleet:
    cards = [
        Card(id=number, uuid=f"GPU-{number}", node=NODE, index=number, model=model, memory_mib=81_559,
             use=Use.MIG, grid=8, profiles=())
        for number, model in ((1, "H100-80GB"), (2, "A100-80GB"))
    ]  # fmt: skip
    return fleet(cards, np.concatenate(rows))


def test_uses_are_what_is_booked_in_the_period() -> None:
    pool = a_fleet(
        row(1, 1, 0, 4, team=7, charge=250, size=2, klass=3, created=5),
        row(1, 2, 4, 8, team=7, charge=250, size=2),
        row(2, 3, -9, None, team=8, charge=1000, klass=1, firm=False),
        row(2, 4, 0, 9, blocker=True),
    )
    uses = Uses.of(pool, span(1, 4))
    assert [pool.models[model] for model in uses.model] == ["H100-80GB", "A100-80GB"]
    assert (uses.team.tolist(), uses.milli.tolist()) == ([7, 8], [250, 1000])
    assert (uses.memory.tolist(), uses.created.tolist()) == ([20_389, 81_559], [5, 0])
    assert uses.firm.tolist() == [False, True]
    assert (uses.since[0], uses.until[1]) == (micros(at(0)), NEVER)
    assert uses.ids(np.arange(2)) == [UUID(int=1), UUID(int=3)]
    assert pool.on.records(uses.row)["charge"].tolist() == [250, 1000]


def test_the_memory_of_a_share_is_what_it_says() -> None:
    uses = Uses.of(a_fleet(row(1, 1, 0, 4, memory=10_000)), span(0, 1))
    assert uses.memory.tolist() == [10_000]


def test_one_reservation_or_several_can_be_left_out() -> None:
    pool = a_fleet(*(row(1, number, number, number + 1) for number in (1, 2, 3)))
    assert Uses.of(pool, span(0, 9), UUID(int=2)).ids(np.arange(2)) == [UUID(int=1), UUID(int=3)]
    left = Uses.of(pool, span(0, 9)).but({UUID(int=1), UUID(int=3), UUID(int=2**100 + 2)})
    assert left.ids(np.arange(len(left))) == [UUID(int=2)]
    assert len(Uses.of(pool, span(0, 9)).but(())) == 3


def test_rows_of_a_pool_that_changes_are_read_anew() -> None:
    pool = a_fleet(row(1, 1, 0, 4, charge=250))
    assert Uses.of(pool, span(0, 9)).milli.tolist() == [250]
    then = pool.updated(pool.cards[:1], row(1, 2, 0, 4, charge=500))
    assert Uses.of(then, span(0, 9)).milli.tolist() == [500]
    assert Uses.of(pool, span(0, 9)).milli.tolist() == [250]


def test_what_stays_comes_first_then_the_class_then_the_age_then_the_id() -> None:
    work = [
        Work(1, 1, klass="batch", created=1, number=1),
        Work(1, 1, klass="interactive", created=9, number=2),
        Work(1, 1, klass="batch", firm=True, created=9, number=3),
        Work(1, 1, klass="online", created=9, number=4),
        Work(1, 1, klass="batch", created=1, number=0),
        Work(1, 1, klass="interactive", created=8, number=6),
    ]
    uses = standings.uses_of(work)
    order = uses.order(np.arange(len(work)))
    assert [work[n].number for n in order] == [4, 3, 6, 2, 0, 1]
    assert [work[n] for n in order] == sorted(work, key=lambda one: one.order)
    assert uses.order(np.array([1, 5])).tolist() == [5, 1]
    assert len(uses.order(np.zeros(0, dtype=np.int64))) == 0


def test_a_slice_has_its_part_of_the_memory_rounded_down() -> None:
    assert memory_mib(np.array([81_559]), np.array([3]), np.array([8])).tolist() == [30_584]
