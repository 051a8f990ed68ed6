"""Booking: what is granted, what is refused with which numbers, and that a refusal writes nothing."""

from __future__ import annotations

import pytest

from pool.models import Allocation, Event, Reservation
from tests.scene import NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def test_it_books_a_slice_from_now(scene: Scene) -> None:
    booked = scene.book()
    assert (booked.state, booked.state_reason) == ("starting", "waiting_for_node")
    assert (booked.period.lower, booked.period.upper) == (NOON, NOON + hours(1))
