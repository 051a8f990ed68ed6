"""Budgets: a month pays for the hours in it, on every line above the team; nobody spends more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pool.core.errors import Code
from pool.models import QuotaLine, Team
from pool.services import reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

APRIL = datetime(2027, 4, 1, tzinfo=UTC)


@pytest.fixture
def scene() -> Scene:
    """Vision may reserve three GPU-hours a month."""
    made = make_scene()
    add_node(made.pool, mig_gpus=0, whole_gpus=4)
    QuotaLine.objects.filter(team=made.vision).update(budget_milli_hours=3000)
    return made


def test_a_booking_that_would_spend_more_than_is_left_is_refused_with_the_numbers(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(2))
    told = refused(Code.QUOTA_EXCEEDED, lambda: scene.book(WHOLE, start=NOON + hours(5), duration=hours(1.5)))
    assert (told["reason"], told["budget"], told["used"], told["asked"]) == ("over_budget", 3000, 2000, 1500)
    assert told["month"] == datetime(2027, 3, 1, tzinfo=UTC).isoformat()
    scene.book(WHOLE, start=NOON + hours(5))


def test_each_month_pays_for_its_own_hours(scene: Scene) -> None:
    scene.book(WHOLE, start=APRIL - hours(3), duration=hours(6))
    refused(Code.QUOTA_EXCEEDED, lambda: scene.book(WHOLE))
    refused(Code.QUOTA_EXCEEDED, lambda: scene.book(WHOLE, start=APRIL + hours(9)))


def test_a_team_below_spends_from_the_lines_above_it(scene: Scene) -> None:
    child = Team.objects.create(name="faces", parent=scene.vision)
    QuotaLine.objects.create(team=child, pool=scene.pool, cap_milli=9000)
    scene.book(WHOLE, duration=hours(3))
    told = refused(Code.QUOTA_EXCEEDED, lambda: scene.book(WHOLE, team="faces"))
    assert (told["reason"], told["team"]) == ("over_budget", scene.vision.pk)


def test_what_is_given_back_early_can_be_spent_again(scene: Scene) -> None:
    first = scene.book(WHOLE, start=NOON + hours(1), duration=hours(3))
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON + timedelta(minutes=1))
    scene.book(WHOLE, start=NOON + hours(1), duration=hours(3))


def test_more_time_is_paid_for_too(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(2))
    refused(
        Code.QUOTA_EXCEEDED,
        lambda: reservations.extend(actor=scene.lena, reservation_id=row.pk, duration=hours(2), now=NOON),
    )
    reservations.extend(actor=scene.lena, reservation_id=row.pk, duration=hours(1), now=NOON)


def test_what_one_booking_may_be_holds_for_all_of_its_time(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(longest_minutes=120, budget_milli_hours=None)
    row = scene.book(WHOLE, duration=hours(1.5))
    told = refused(
        Code.QUOTA_EXCEEDED,
        lambda: reservations.extend(actor=scene.lena, reservation_id=row.pk, duration=hours(1), now=NOON),
    )
    assert (told["reason"], told["cap"], told["asked"]) == ("too_long", 120, 150)
