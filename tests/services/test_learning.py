"""A pool learns once a day, from what was asked of it; what it learnt decides the next placements."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from pool.core.mix import Mix, from_json, learn
from pool.models import Pool, PoolMix, Reservation
from pool.queries import mixes
from pool.services import lanes, learning
from tests.scene import NOON, Scene, add_node, make_scene

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def scene() -> Scene:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=2)
    return scene


@pytest.fixture(autouse=True)
def lessons(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, Mix | None]]]:
    """How many asks each lesson was given, and what was known before; it learns the prior, at once."""
    given: list[tuple[int, Mix | None]] = []

    def quick(asks: list[Any], known: object, before: Mix | None) -> Mix:
        given.append((len(asks), before))
        return learn(())

    monkeypatch.setattr(learning, "lesson", quick)
    monkeypatch.setattr(learning, "LEAST", 2)
    monkeypatch.setattr(learning, "_current", None)
    mixes.forget()
    yield given
    mixes.forget()


def go_on(now: Any = NOON) -> None:
    """One run of the lane, and the thread that it may have begun."""
    learning.go_on(now=now)
    if learning._current is not None:
        learning._current.join()


def test_it_learns_beside_the_lane_and_stores_in_a_later_run(scene: Scene, lessons: list[Any]) -> None:
    scene.book()
    scene.book()
    go_on()
    assert (lessons, PoolMix.objects.count()) == ([(2, None)], 0)
    go_on()
    row = PoolMix.objects.get()
    assert (row.pool_id, row.at, from_json(row.mix)) == (scene.pool.pk, NOON, learn(()))
    assert mixes.policy(scene.pool.pk).mix == learn(())


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
def test_it_gives_way_to_whoever_waits_for_an_answer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.book()
    scene.book()
    urgency: list[int] = []

    def quick(*given: object) -> Mix:
        urgency.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return learn(())

    monkeypatch.setattr(learning, "lesson", quick)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    go_on()
    assert urgency == [learning.LEAST_URGENT]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_too_few_asks_teach_nothing(scene: Scene, lessons: list[Any]) -> None:
    scene.book()
    go_on()
    assert not lessons


def test_old_asks_count_no_more(scene: Scene, lessons: list[Any]) -> None:
    scene.book()
    scene.book()
    Reservation.objects.update(created_at=NOON - learning.LOOK_BACK)
    go_on()
    assert not lessons


def test_it_learns_again_after_a_day_from_where_it_was(scene: Scene, lessons: list[Any]) -> None:
    scene.book()
    scene.book()
    for hours in (0, 1, 23, 24):
        go_on(NOON + timedelta(hours=hours))
    assert lessons == [(2, None)]
    go_on(NOON + timedelta(hours=25))
    assert [before for _, before in lessons] == [None, learn(())]


def test_a_pool_that_never_learnt_comes_first(scene: Scene) -> None:
    scene.book()
    scene.book()
    other = Pool.objects.create(name="other")
    PoolMix.objects.create(pool=other, mix=learn(()).as_json(), at=NOON - 2 * DAY)
    Reservation.objects.update(pool=other)
    scene.book()
    scene.book()
    go_on()
    assert learning._current is not None
    assert learning._current.pool_id == scene.pool.pk


def test_an_ask_that_can_no_longer_be_read_is_passed_over(scene: Scene, lessons: list[Any]) -> None:
    for _ in range(3):
        scene.book()
    first = Reservation.objects.earliest("pk")
    Reservation.objects.filter(pk=first.pk).update(ask={"kind": "tape"})
    go_on()
    assert lessons == [(2, None)]


def test_a_lesson_that_fails_says_so_and_comes_again_the_next_day(
    scene: Scene, lessons: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Mix:
        raise ArithmeticError("no end of it")

    scene.book()
    scene.book()
    with monkeypatch.context() as broken:
        broken.setattr(learning, "lesson", fail)
        go_on()
        with pytest.raises(ArithmeticError):
            go_on()
    go_on(NOON + DAY / 2)
    assert not lessons
    go_on(NOON + DAY)
    assert len(lessons) == 1


def test_a_pool_that_is_gone_by_then_stores_nothing(scene: Scene) -> None:
    scene.book()
    scene.book()
    go_on()
    assert learning._current is not None
    learning._current.pool_id = 0
    go_on()
    assert not PoolMix.objects.exists()


def test_the_slow_lane_goes_on_with_it(
    scene: Scene, lessons: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes.broker, "reapply", lambda: None)
    scene.book()
    scene.book()
    lanes.slow(now=NOON)
    assert learning._current is not None
    learning._current.join()
    lanes.slow(now=NOON)
    assert PoolMix.objects.get().at == NOON
