"""A GPU of any use is told to change its mode in the minute that is blocked before a booking."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.placement import SWITCH
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Allocation, Command, Gpu, GpuState, Reservation
from pool.services import lanes, modes, reservations
from tests.scene import NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

LATER = NOON + hours(1)
SECOND = timedelta(seconds=1)
SLICE = MigAsk(profile="1g.10gb")


@pytest.fixture
def scene() -> Scene:
    """One GPU for whatever is asked, not in MIG mode."""
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=1, whole_gpus=0)
    Gpu.objects.update(use=Gpu.Use.AUTO, wanted={"mig": False, "held": []})
    return made


def wanted() -> list[tuple[bool, int]]:
    """Of each command, in order: the mode, and how many hold the GPU."""
    rows = Command.objects.order_by("generation")
    return [(row.layout["mig"], len(row.layout["held"])) for row in rows]


def test_the_mode_is_commanded_when_the_blocked_time_begins_and_the_slice_at_the_start(scene: Scene) -> None:
    scene.book(SLICE, start=LATER)
    assert Allocation.objects.get().blocked.lower == LATER - SWITCH
    lanes.due(now=LATER - SWITCH - SECOND)
    assert wanted() == []
    lanes.due(now=LATER - SWITCH)
    assert wanted() == [(True, 0)]
    lanes.due(now=LATER - SECOND)
    assert wanted() == [(True, 0)]
    lanes.due(now=LATER)
    assert wanted() == [(True, 0), (True, 1)]


def test_whole_gpus_leave_mig_mode_in_time(scene: Scene) -> None:
    Gpu.objects.update(wanted={"mig": True, "held": []})
    GpuState.objects.update(mig=True)
    scene.book(GpuAsk(), start=LATER)
    lanes.due(now=LATER - SWITCH)
    assert wanted() == [(False, 0)]


def test_where_the_mode_is_right_nothing_is_commanded_before(scene: Scene) -> None:
    scene.book(GpuAsk(), start=LATER)
    lanes.due(now=LATER - SECOND)
    assert wanted() == []
    assert not modes.soon(scene.pool.pk, LATER - SECOND).exists()


def test_a_booking_that_is_cancelled_in_that_minute_leaves_it_as_it_was_told_to_be(scene: Scene) -> None:
    booked = scene.book(SLICE, start=LATER)
    lanes.due(now=LATER - SWITCH)
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=LATER - SECOND)
    lanes.due(now=LATER)
    assert wanted() == [(True, 0)]


def test_a_frozen_gpu_changes_nothing_until_it_is_free_to(scene: Scene) -> None:
    scene.book(SLICE, start=LATER)
    Gpu.objects.update(frozen=True)
    lanes.due(now=LATER - SWITCH)
    assert wanted() == []
    Gpu.objects.update(frozen=False)
    lanes.due(now=LATER - SWITCH + SECOND)
    assert wanted() == [(True, 0)]


def test_what_is_only_held_changes_no_mode(scene: Scene) -> None:
    booked = scene.book(SLICE, start=LATER)
    Reservation.objects.filter(pk=booked.pk).update(state="held", hold_until=LATER + hours(1))
    lanes.due(now=LATER - SWITCH)
    assert wanted() == []
