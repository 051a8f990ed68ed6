"""The line of those who wait: who is tried, what they get, and how the wait ends otherwise."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from psycopg.types.range import TimestamptzRange

from pool.core.errors import Code
from pool.core.shapes import Ask, Class, GpuAsk, ask_json
from pool.models import Allocation, Blocker, Event, Gpu, Pool, QuotaLine, Reservation
from pool.queries import waiting as queue
from pool.services import lanes, reservations, waiting
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused, settle

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


@pytest.fixture
def scene() -> Scene:
    """One whole GPU."""
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    return made


def failed(scene: Scene, ask: Ask = WHOLE, *, since: datetime = NOON, **more: Any) -> Reservation:
    """A restart of a booking of three hours whose GPU was lost at `since`."""
    more = {"actor": scene.lena, "team": scene.vision} | more
    old = Reservation.objects.create(
        team=more["team"],
        pool=scene.pool,
        owner=more["actor"],
        booked_by=more["actor"],
        ask=ask_json(ask),
        klass=Class.BATCH,
        state="failed",
        state_reason="gpu_lost",
        period=TimestamptzRange(NOON - hours(1), NOON + hours(2)),
        created_at=NOON - hours(1),
        charge_milli=1000,
        restartable=True,
    )
    again = waiting.restart(old, since, now=NOON)
    assert again is not None
    return again


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def test_it_continues_what_failed_with_what_was_left(scene: Scene) -> None:
    again = failed(scene, since=NOON + hours(0.5))
    assert again.continues is not None
    assert again.period.upper - again.period.lower == hours(1.5)
    assert (again.state, again.waiting_order, again.continues.state) == ("waiting", -1, "failed")
    told = Event.objects.get(verb="reservation.restarted").after
    assert told is not None
    assert told["continues"] == str(again.continues_id)


def test_each_restart_goes_to_the_head_of_the_line(scene: Scene) -> None:
    first, second = failed(scene), failed(scene)
    assert list(queue.line(scene.pool.pk)) == [second, first]


def test_it_starts_as_soon_as_something_fits_and_for_its_whole_time(scene: Scene) -> None:
    busy = scene.book(WHOLE, duration=hours(1))
    settle(scene.pool, Gpu.objects.get())
    again = failed(scene)
    lanes.due(now=NOON + SECOND)
    assert state(again) == ("waiting", "no_capacity")
    reservations.release(actor=scene.lena, reservation_id=busy.pk, now=NOON + hours(0.5))
    settle(scene.pool, Gpu.objects.get(), now=NOON + hours(0.5))
    at = NOON + hours(0.5) + 2 * SECOND
    lanes.due(now=at)
    assert state(again) == ("starting", "waiting_for_node")
    assert (again.period.lower, again.period.upper, again.waiting_order) == (at, at + hours(2), None)
    one = Allocation.objects.get(reservation=again)
    assert (one.holds, one.wanted_at, one.period.lower) == (True, at, at)
    assert Gpu.objects.get().wanted["held"][0]["allocation"] == str(one.pk)  # type: ignore[index]
    settle(scene.pool, Gpu.objects.get(), now=at + SECOND)
    assert state(again)[0] == "active"


def test_where_the_one_before_is_not_gone_yet_it_starts_and_waits_for_that(scene: Scene) -> None:
    busy = scene.book(WHOLE, duration=hours(1), actor=scene.milo)
    settle(scene.pool, Gpu.objects.get())
    again = failed(scene)
    lanes.due(now=NOON + hours(1))
    assert state(busy)[0] == "ending"
    lanes.due(now=NOON + hours(1) + 2 * SECOND)
    assert state(again) == ("starting", "waiting_for_cleanup")
    settle(scene.pool, Gpu.objects.get(), now=NOON + hours(1) + 3 * SECOND)
    assert state(again) == ("starting", "waiting_for_node")


def test_the_head_of_the_line_is_first(scene: Scene) -> None:
    second, first = failed(scene), failed(scene)
    lanes.due(now=NOON + SECOND)
    assert (state(first)[0], state(second)) == ("starting", ("waiting", "no_capacity"))


def test_what_fits_does_not_wait_for_what_does_not(scene: Scene) -> None:
    small, large = failed(scene), failed(scene, GpuAsk(count=2))
    lanes.due(now=NOON + SECOND)
    assert (state(large)[1], state(small)[0]) == ("no_capacity", "starting")


def test_it_says_that_quota_is_what_it_waits_for(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=0, guaranteed_milli=0)
    again = failed(scene)
    lanes.due(now=NOON + SECOND)
    assert state(again) == ("waiting", "no_quota")
    events = Event.objects.count()
    lanes.due(now=NOON + 3 * SECOND)
    assert Event.objects.count() == events


def test_a_frozen_pool_serves_nobody(scene: Scene) -> None:
    again = failed(scene)
    Pool.objects.update(frozen=True)
    lanes.due(now=NOON + SECOND)
    assert state(again) == ("waiting", "gpu_lost")


def test_its_owner_can_give_up_the_wait(scene: Scene) -> None:
    again = failed(scene)
    reservations.release(actor=scene.lena, reservation_id=again.pk, now=NOON + SECOND)
    assert state(again) == ("cancelled", "cancelled")
    refused(
        Code.WRONG_STATE,
        lambda: reservations.release(actor=scene.lena, reservation_id=again.pk, now=NOON + SECOND),
    )


def test_after_a_week_the_wait_is_over(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(24 * 9))
    again = failed(scene)
    lanes.due(now=NOON + queue.LONGEST)
    assert state(again)[0] == "waiting"
    lanes.due(now=NOON + queue.LONGEST + SECOND)
    assert state(again) == ("expired", "wait_lapsed")


def test_a_start_that_meets_a_blocker_joins_the_line_after_the_fence_with_what_is_left(scene: Scene) -> None:
    booked = scene.book(WHOLE, start=NOON + hours(1), duration=hours(2))
    gpu = Gpu.objects.get()
    blocker = Blocker.objects.create(gpu=gpu, span=(0, 8), since=NOON, kind="foreign")
    lanes.due(now=NOON + hours(1))
    assert state(booked) == ("starting", "blocked")
    fence = NOON + hours(1) + timedelta(seconds=60)
    lanes.due(now=fence)
    assert state(booked) == ("waiting", "no_capacity")
    assert not Allocation.objects.filter(reservation=booked).exists()
    blocker.delete()
    Pool.objects.update(change=F("change") + 1)
    lanes.due(now=fence + hours(1))
    assert state(booked) == ("starting", "waiting_for_node")
    left = NOON + hours(3) - fence
    assert booked.period.upper - booked.period.lower == left


def test_what_meets_a_blocker_stands_before_those_who_wait_already(scene: Scene) -> None:
    booked = scene.book(WHOLE, start=NOON + hours(1), duration=hours(2))
    Blocker.objects.create(gpu=Gpu.objects.get(), span=(0, 8), since=NOON, kind="foreign")
    earlier = failed(scene)
    lanes.due(now=NOON + hours(1) + timedelta(seconds=60))
    assert list(queue.line(scene.pool.pk)) == [booked, earlier]
