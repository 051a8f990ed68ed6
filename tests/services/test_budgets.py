"""Leads hear when 80 and 100 % of a month's budget are used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pool.models import OutboxMessage, QuotaLine
from pool.services import budgets
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene(guaranteed=2000)
    add_node(made.pool, mig_gpus=0, whole_gpus=2)
    QuotaLine.objects.filter(team=made.vision).update(budget_milli_hours=10_000)
    return made


def told() -> list[tuple[str, int]]:
    rows = OutboxMessage.objects.order_by("pk").values_list("recipient__username", "data__percent")
    return list(rows)


def test_each_step_is_told_once_a_month(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(7))
    assert budgets.warn(now=NOON, everything=True) == 0
    scene.book(WHOLE, duration=hours(1))
    assert budgets.warn(now=NOON, everything=True) == 1
    assert budgets.warn(now=NOON, everything=True) == 0
    scene.book(WHOLE, start=NOON + hours(20), duration=hours(2))
    assert budgets.warn(now=NOON, everything=True) == 1
    assert told() == [("lena", 80), ("lena", 100)]
    april = datetime(2027, 4, 2, tzinfo=UTC)
    scene.book(WHOLE, start=april, duration=hours(9), now=NOON + timedelta(days=31))
    assert budgets.warn(now=april, everything=True) == 1


def test_each_line_has_its_turn_within_ten_minutes(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(9))
    turns = [NOON + timedelta(seconds=15 * n) for n in range(budgets.PARTS)]
    assert sum(budgets.warn(now=at) for at in turns) == 1


def test_a_line_without_a_budget_warns_nobody(scene: Scene) -> None:
    QuotaLine.objects.update(budget_milli_hours=None)
    scene.book(WHOLE, duration=hours(9))
    assert budgets.warn(now=NOON, everything=True) == 0
