"""Which bookings may be placed anew: none that has begun, is online, or stands on something frozen."""

from __future__ import annotations

import pytest
from psycopg.types.range import TimestamptzRange

from pool.core.moves import Movable
from pool.core.period import Period
from pool.core.shapes import Class
from pool.models import Gpu, Pool, Reservation
from pool.queries import moves
from pool.services import wishes
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=0, whole_gpus=3)
    return made


def movable(scene: Scene) -> list[Movable]:
    everyone = Reservation.objects.values_list("pk", flat=True)
    return moves.movable(scene.pool.pk, list(everyone), wishes.account, now=NOON)


def found(scene: Scene) -> list[Reservation]:
    return [Reservation.objects.get(pk=one.reservation) for one in movable(scene)]


def test_a_booking_that_has_not_begun_is_told_with_all_that_placing_it_needs(scene: Scene) -> None:
    Pool.objects.update(scrub_seconds=600)
    booked = scene.book(WHOLE, start=NOON + hours(2))
    (one,) = movable(scene)
    assert (one.reservation, one.ask, one.charge_milli) == (booked.pk, WHOLE, 1000)
    assert one.period == Period(NOON + hours(2), NOON + hours(3) + hours(1 / 6))
    assert one.gpus == set(booked.allocations.values_list("gpu", flat=True))
    assert one.account == f"user:{scene.lena.pk}"


def test_what_has_begun_or_is_online_stays(scene: Scene) -> None:
    scene.book(WHOLE)
    scene.book(WHOLE, start=NOON + hours(2), klass=Class.ONLINE)
    later = scene.book(WHOLE, start=NOON + hours(5))
    assert found(scene) == [later]
    Reservation.objects.filter(pk=later.pk).update(period=TimestamptzRange(NOON, NOON + hours(9)))
    assert found(scene) == []


def test_what_is_taken_back_or_waits_for_that_stays(scene: Scene) -> None:
    first, second = (scene.book(WHOLE, start=NOON + hours(2)) for _ in range(2))
    assert len(found(scene)) == 2
    Reservation.objects.filter(pk=first.pk).update(recall_at=NOON + hours(3), recall_for=second)
    assert found(scene) == []


def test_what_was_not_asked_about_is_not_told(scene: Scene) -> None:
    scene.book(WHOLE, start=NOON + hours(2))
    assert moves.movable(scene.pool.pk, [], wishes.account, now=NOON) == []


def test_what_stands_on_something_frozen_stays(scene: Scene) -> None:
    booked = scene.book(WHOLE, start=NOON + hours(2))
    Gpu.objects.filter(allocations__reservation=booked).update(frozen=True)
    assert found(scene) == []
    Gpu.objects.update(frozen=False)
    assert found(scene) == [booked]
    Pool.objects.update(frozen=True)
    assert found(scene) == []
