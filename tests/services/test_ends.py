"""Who is told of an end or a late start, and when: once."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pool.models import Gpu, OutboxMessage, Reservation, User
from pool.services import ends, lanes, reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def scene() -> Scene:
    """One whole GPU."""
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    return made


def running(scene: Scene, duration: timedelta) -> Reservation:
    row = scene.book(WHOLE, duration=duration)
    settle(scene.pool, Gpu.objects.get())
    row.refresh_from_db()
    assert row.state == "active"
    return row


def told(kind: str) -> int:
    return OutboxMessage.objects.filter(kind=kind).count()


@pytest.mark.parametrize(
    ("length", "first"),
    [
        (hours(10), NOON + hours(9.5)),
        (hours(5), NOON + hours(4.5)),
        (hours(1), NOON + 54 * MINUTE),
        (10 * MINUTE, NOON + 9 * MINUTE),
    ],
)
def test_an_end_is_told_half_an_hour_before_or_when_a_tenth_is_left(
    scene: Scene, length: timedelta, first: datetime
) -> None:
    running(scene, length)
    assert ends.tell(now=first - SECOND) == 0
    assert ends.tell(now=first) == 1
    assert ends.tell(now=first + SECOND) == 0
    message = OutboxMessage.objects.get(kind="ends_soon")
    assert message.recipient == scene.lena
    assert message.data["end"] == (NOON + length).isoformat()


def test_after_an_extension_the_new_end_is_told(scene: Scene) -> None:
    row = running(scene, hours(5))
    ends.tell(now=NOON + hours(4.75))
    reservations.extend(actor=scene.lena, reservation_id=row.pk, duration=10 * MINUTE, now=NOON + hours(4.8))
    ends.tell(now=NOON + hours(4.9))
    assert told("ends_soon") == 2


def test_where_the_same_owner_goes_on_nothing_ends(scene: Scene) -> None:
    running(scene, hours(5))
    scene.book(WHOLE, start=NOON + hours(5))
    assert ends.tell(now=NOON + hours(4.75)) == 0


def test_of_what_a_machine_booked_the_leads_are_told(scene: Scene) -> None:
    row = running(scene, hours(5))
    robot = User.objects.create(username="robot", kind=User.Kind.SERVICE)
    Reservation.objects.filter(pk=row.pk).update(owner=robot, booked_by=robot)
    ends.tell(now=NOON + hours(4.75))
    assert OutboxMessage.objects.get().recipient == scene.lena


def test_a_late_start_is_told_once_while_it_is_news(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(5))
    settle(scene.pool, Gpu.objects.get(), now=NOON + 3 * MINUTE)
    assert ends.tell(now=NOON + 4 * MINUTE) == 1
    assert ends.tell(now=NOON + 5 * MINUTE) == 0
    data = OutboxMessage.objects.get(kind="started_late").data
    assert data == {"planned": NOON.isoformat(), "start": (NOON + 3 * MINUTE).isoformat()}
    OutboxMessage.objects.all().delete()
    assert ends.tell(now=NOON + hours(2)) == 0


def test_a_start_in_time_is_not_told(scene: Scene) -> None:
    running(scene, hours(5))
    assert ends.tell(now=NOON + MINUTE) == 0


def test_the_slow_lane_tells(scene: Scene) -> None:
    running(scene, hours(5))
    assert lanes.slow(now=NOON + hours(4.75))
    assert told("ends_soon") == 1
