"""The one clock, and who may move it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pool.models import ClockOffset
from pool.queries import clock

pytestmark = pytest.mark.django_db


def _off_by(moment: datetime) -> float:
    return abs((moment - datetime.now(UTC)).total_seconds())


def test_it_is_the_time_of_this_machine_in_utc() -> None:
    assert clock.now().tzinfo is UTC
    assert _off_by(clock.now()) < 5


def test_a_demo_may_move_it(settings: Any) -> None:
    settings.DEMO = True
    ClockOffset.objects.create(id=1, seconds=3600)
    assert _off_by(clock.now() - timedelta(hours=1)) < 5


def test_it_cannot_be_moved_elsewhere(settings: Any) -> None:
    settings.DEMO = False
    ClockOffset.objects.create(id=1, seconds=3600)
    assert _off_by(clock.now()) < 5


def test_receipt_and_expiry_go_by_real_time_even_in_a_demo(settings: Any) -> None:
    settings.DEMO = True
    ClockOffset.objects.create(id=1, seconds=3600)
    assert _off_by(clock.real_now()) < 5
