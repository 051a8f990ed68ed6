"""The audit cannot be changed, whoever asks."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from pool.models import Event
from tests.scene import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def event() -> Event:
    return Event.objects.create(at=NOON, actor_label="somebody", verb="reservation.booked")


def test_a_line_is_never_changed(event: Event) -> None:
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        Event.objects.filter(pk=event.pk).update(actor_label="nobody")
    assert Event.objects.get().actor_label == "somebody"


def test_a_line_is_never_deleted(event: Event) -> None:
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        Event.objects.filter(pk=event.pk).delete()
    assert Event.objects.exists()


def test_more_lines_are_added(event: Event) -> None:
    Event.objects.create(at=NOON, actor_label="somebody", verb="reservation.active")
    assert Event.objects.count() == 2
