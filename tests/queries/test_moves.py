"""Which bookings may be placed anew: none that has begun, is online, or stands on something frozen."""

from __future__ import annotations

import pytest

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


def found(scene: Scene, start: float = 0, end: float = 9) -> list[Reservation]:
    period = Period(NOON + hours(start), NOON + hours(end))
    ids = [one.reservation for one in moves.movable(scene.pool.pk, period, wishes.account)]
    return [Reservation.objects.get(pk=pk) for pk in ids]


def test_a_booking_that_has_not_begun_is_told_with_all_that_placing_it_needs(scene: Scene) -> None:
    Pool.objects.update(scrub_seconds=600)
    booked = scene.book(WHOLE, start=NOON + hours(2))
    (one,) = moves.movable(scene.pool.pk, Period(NOON, NOON + hours(9)), wishes.account)
    assert (one.reservation, one.ask, one.charge_milli) == (booked.pk, WHOLE, 1000)
    assert one.period == Period(NOON + hours(2), NOON + hours(3) + hours(1 / 6))
    assert one.gpus == set(booked.allocations.values_list("gpu", flat=True))
    assert one.account == f"user:{scene.lena.pk}"


def test_what_has_begun_is_online_or_lies_at_another_time_stays(scene: Scene) -> None:
    scene.book(WHOLE)
    scene.book(WHOLE, start=NOON + hours(2), klass=Class.ONLINE)
    later = scene.book(WHOLE, start=NOON + hours(5))
    assert found(scene) == [later]
    assert found(scene, 0, 5) == []


def test_what_stands_on_something_frozen_stays(scene: Scene) -> None:
    booked = scene.book(WHOLE, start=NOON + hours(2))
    Gpu.objects.filter(allocations__reservation=booked).update(frozen=True)
    assert found(scene) == []
    Gpu.objects.update(frozen=False)
    assert found(scene) == [booked]
    Pool.objects.update(frozen=True)
    assert found(scene) == []
