"""What giving back late retains, where the pool has such a price, and who waives it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core import budget
from pool.core.errors import Code
from pool.core.period import Period
from pool.models import Pool, Reservation, User
from pool.services import reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

LATER = NOON + timedelta(minutes=10)


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=0, whole_gpus=1)
    Pool.objects.update(late_release_price=True)
    return made


def test_a_pool_without_the_price_retains_nothing_and_says_that_nothing_was_decided(scene: Scene) -> None:
    Pool.objects.update(late_release_price=False)
    row = scene.book(WHOLE, duration=hours(24))
    assert reservations.late_price(row, LATER) == 0
    assert _released(scene, row).retained_milli_hours is None


def test_what_is_told_before_is_what_is_retained(scene: Scene) -> None:
    row = Reservation.objects.select_related("pool").get(pk=scene.book(WHOLE, duration=hours(24)).pk)
    price = reservations.late_price(row, LATER)
    assert price == budget.late_release(1000, Period(NOON, NOON + hours(24)), LATER) > 0
    assert _released(scene, row).retained_milli_hours == price


def test_a_lead_waives_it_for_others_but_not_for_themselves(scene: Scene) -> None:
    own = scene.book(WHOLE, duration=hours(24))
    refused(Code.FORBIDDEN, lambda: _released(scene, own, waive=True))
    _released(scene, own)
    row = scene.book(WHOLE, actor=scene.milo, duration=hours(24), now=NOON + hours(30))
    over = reservations.release(actor=scene.lena, reservation_id=row.pk, waive=True, now=NOON + hours(30.1))
    assert over.retained_milli_hours == 0


def test_a_member_waives_nothing_and_an_approver_what_they_may_release(scene: Scene) -> None:
    row = scene.book(WHOLE, actor=scene.milo, duration=hours(24))
    refused(
        Code.FORBIDDEN,
        lambda: reservations.release(actor=scene.milo, reservation_id=row.pk, waive=True, now=LATER),
    )
    User.objects.filter(pk=scene.milo.pk).update(roles=["approver"])
    milo = User.objects.get(pk=scene.milo.pk)
    assert (
        reservations.release(actor=milo, reservation_id=row.pk, waive=True, now=LATER).retained_milli_hours
        == 0
    )


def _released(scene: Scene, row: Reservation, **more: bool) -> Reservation:
    return reservations.release(actor=scene.lena, reservation_id=row.pk, now=LATER, **more)
