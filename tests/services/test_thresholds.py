"""Bookings above a threshold: pending until somebody approves, counted meanwhile, lapsing in time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pool.core.errors import Code
from pool.core.shapes import GpuAsk
from pool.models import Allocation, OutboxMessage, Pool, Reservation
from pool.services import lanes, reservations
from tests.scene import H100, NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

TWO = GpuAsk(models=(H100,), count=2)
TOMORROW = NOON + hours(24)


@pytest.fixture
def scene() -> Scene:
    """Five GPUs; more than one of them needs an approver."""
    made = make_scene()
    add_node(made.pool, mig_gpus=0, whole_gpus=5)
    Pool.objects.update(approve_above_milli=1000)
    return made


@pytest.mark.parametrize(
    ("start", "until"),
    [
        (NOON + hours(2), NOON + hours(1)),
        (NOON + hours(20), NOON + hours(19)),
        (NOON + hours(25), NOON + hours(24)),
        (NOON + hours(500), NOON + hours(24)),
    ],
)
def test_it_is_pending_for_a_day_or_until_an_hour_before_its_start(
    scene: Scene, start: datetime, until: datetime
) -> None:
    row = scene.book(TWO, start=start)
    assert (row.state, row.state_reason, row.approve_by) == ("pending_approval", "needs_approval", until)
    assert Allocation.objects.filter(reservation=row, holds=True).count() == 2


def test_up_to_the_threshold_it_is_booked_as_ever(scene: Scene) -> None:
    row = scene.book(WHOLE, start=TOMORROW)
    assert (row.state, row.approve_by) == ("scheduled", None)


def test_what_starts_too_soon_is_told_the_first_start_that_can_be_approved(scene: Scene) -> None:
    told = refused(Code.NEEDS_APPROVAL, lambda: scene.book(TWO, start=NOON + hours(1.99)))
    assert told == {
        "earliest": (NOON + hours(2)).isoformat(),
        "above_milli": 1000,
        "asked_milli": 2000,
    }


def test_the_first_start_that_is_told_is_granted_a_moment_later(scene: Scene) -> None:
    at = NOON + timedelta(seconds=7)
    told = refused(Code.NEEDS_APPROVAL, lambda: scene.book(TWO, start=NOON + hours(1), now=at))
    first = datetime.fromisoformat(told["earliest"])
    assert first == NOON + hours(2) + timedelta(minutes=5)
    assert scene.book(TWO, start=first, now=at + timedelta(minutes=1)).state == "pending_approval"


def test_a_fourth_of_one_team_is_refused(scene: Scene) -> None:
    for day in range(1, 4):
        scene.book(TWO, start=NOON + timedelta(days=day))
    told = refused(Code.NEEDS_APPROVAL, lambda: scene.book(TWO, start=NOON + timedelta(days=4)))
    assert (told["reason"], told["most"]) == ("too_many_pending", 3)
    scene.book(TWO, start=NOON + timedelta(days=4), actor=scene.sam, team="speech")


def test_what_is_pending_counts_and_keeps_its_place(scene: Scene) -> None:
    scene.book(GpuAsk(models=(H100,), count=5), start=TOMORROW)
    told = refused(Code.NO_CAPACITY, lambda: scene.book(WHOLE, start=TOMORROW))
    assert told["free"] == 0


def test_a_hold_becomes_pending_when_it_is_confirmed(scene: Scene) -> None:
    held = reservations.hold(
        actor=scene.lena,
        team="vision",
        pool="main",
        ask=TWO,
        start=TOMORROW,
        duration=hours(1),
        now=NOON,
    )
    assert held.state == "held"
    row = reservations.confirm(actor=scene.lena, reservation_id=held.pk, now=NOON + timedelta(minutes=1))
    assert (row.state, row.approve_by) == ("pending_approval", NOON + hours(23))


def test_nobody_decides_and_it_lapses(scene: Scene) -> None:
    row = scene.book(TWO, start=NOON + hours(3))
    lanes.due(now=NOON + hours(1.9))
    assert Reservation.objects.get(pk=row.pk).state == "pending_approval"
    lanes.due(now=NOON + hours(2))
    now = Reservation.objects.get(pk=row.pk)
    assert (now.state, now.state_reason) == ("expired", "approval_lapsed")
    assert not Allocation.objects.filter(reservation=row, holds=True).exists()
    assert OutboxMessage.objects.get(recipient=scene.lena).kind == "approval_lapsed"


def test_it_can_be_taken_back_while_it_is_pending(scene: Scene) -> None:
    row = scene.book(TWO, start=TOMORROW)
    over = reservations.release(actor=scene.lena, reservation_id=row.pk, now=NOON + hours(1))
    assert (over.state, over.state_reason) == ("cancelled", "cancelled")


def test_more_time_is_asked_for_anew(scene: Scene) -> None:
    row = scene.book(TWO, start=TOMORROW)
    Reservation.objects.filter(pk=row.pk).update(state="scheduled")
    refused(
        Code.NEEDS_APPROVAL,
        lambda: reservations.extend(
            actor=scene.lena, reservation_id=row.pk, duration=hours(1), now=NOON + hours(1)
        ),
    )


def test_a_pool_without_a_threshold_asks_nobody(scene: Scene) -> None:
    Pool.objects.update(approve_above_milli=None)
    assert scene.book(TWO, start=TOMORROW).state == "scheduled"


def test_slices_count_as_what_they_are_charged(scene: Scene) -> None:
    add_node(scene.pool, "dgx-02")
    Pool.objects.update(approve_above_milli=100)
    assert scene.book(ONE_SLICE, start=TOMORROW).state == "pending_approval"
