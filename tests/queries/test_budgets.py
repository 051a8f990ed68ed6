"""What the reserved time of teams has cost in a month, by the rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from psycopg.types.range import TimestamptzRange

from pool.core import budget
from pool.core.quota_lines import Line
from pool.models import Allocation, Outage, Pool, Reservation, Team
from pool.queries import budgets
from pool.services import reservations
from tests.scene import H100, HALF, NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

#: NOON is at 12:00 on 1 March 2027.
MARCH = budget.month_of(NOON, ZoneInfo("UTC"))
APRIL = budget.month_of(datetime(2027, 4, 2, tzinfo=UTC), ZoneInfo("UTC"))


@pytest.fixture
def scene() -> Scene:
    made = make_scene(guaranteed=2000)
    add_node(made.pool, mig_gpus=2, whole_gpus=2)
    return made


def spent(scene: Scene, month: Any = MARCH, model: str | None = None, **more: Any) -> int:
    return budgets.spent(scene.pool.pk, [scene.vision.pk], model, month, **more)


def change(row: Reservation, **values: Any) -> None:
    Reservation.objects.filter(pk=row.pk).update(**values)


def test_half_a_gpu_for_four_hours_is_two_gpu_hours(scene: Scene) -> None:
    scene.book(HALF, start=NOON + hours(1), duration=hours(4))
    assert spent(scene) == 2000


def test_a_month_is_charged_with_the_hours_that_lie_in_it(scene: Scene) -> None:
    scene.book(WHOLE, start=datetime(2027, 3, 31, 22, tzinfo=UTC), duration=hours(5))
    assert (spent(scene), spent(scene, APRIL)) == (2000, 3000)
    shanghai = budget.month_of(NOON, ZoneInfo("Asia/Shanghai"))
    assert spent(scene, shanghai) == 0


def test_what_was_cancelled_or_waits_costs_nothing(scene: Scene) -> None:
    row = scene.book(HALF, start=NOON + hours(1))
    assert spent(scene) == 500
    reservations.release(actor=scene.lena, reservation_id=row.pk, now=NOON)
    assert spent(scene) == 0


def test_what_ended_early_is_charged_up_to_then_and_with_what_was_kept_back(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(10))
    change(row, state="ended", ended_at=NOON + hours(2))
    assert spent(scene) == 2000
    change(row, retained_milli_hours=700)
    assert (spent(scene), spent(scene, APRIL)) == (2700, 0)


def test_what_is_kept_back_counts_in_the_month_of_the_release(scene: Scene) -> None:
    row = scene.book(WHOLE, start=datetime(2027, 4, 1, 6, tzinfo=UTC), duration=hours(10))
    change(row, state="ended", ended_at=datetime(2027, 3, 31, 20, tzinfo=UTC), retained_milli_hours=700)
    assert (spent(scene), spent(scene, APRIL)) == (700, 0)


def test_what_is_recalled_is_charged_up_to_the_recall(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(10))
    change(row, recall_at=NOON + hours(3))
    assert spent(scene) == 3000


def test_time_without_the_gpu_is_not_charged(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(10))
    gone = TimestamptzRange(NOON + hours(1), NOON + hours(4))
    Outage.objects.create(reservation=row, gpu=row.allocations.get().gpu, period=gone, reason="node_unknown")
    assert spent(scene) == 7000


def test_only_the_gpu_that_was_out_is_free_of_charge(scene: Scene) -> None:
    row = scene.book(type(WHOLE)(models=(H100,), count=2), duration=hours(10))
    gpu = row.allocations.order_by("pk")[0].gpu
    gone = TimestamptzRange(NOON, NOON + hours(10))
    Outage.objects.create(reservation=row, gpu=gpu, period=gone, reason="node_unknown")
    assert spent(scene) == 10_000


def test_a_place_that_was_given_up_counts_no_more(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(10))
    left = row.allocations.get()
    left.pk = left.tenancy = Reservation().pk
    left.holds, left.left_at = False, NOON
    left.save(force_insert=True)
    assert Allocation.objects.count() == 2
    assert spent(scene) == 10_000


def test_other_models_teams_and_one_reservation_are_left_out(scene: Scene) -> None:
    row = scene.book(WHOLE, duration=hours(1))
    scene.book(WHOLE, actor=scene.sam, team="speech", duration=hours(1))
    assert spent(scene) == spent(scene, model=H100) == 1000
    assert spent(scene, model="A100-80GB") == spent(scene, without=row.pk) == 0


def test_the_budget_of_a_line_is_burnt_by_the_teams_below_too(scene: Scene) -> None:
    parent = Team.objects.create(name="parent")
    Team.objects.filter(pk=scene.vision.pk).update(parent=parent)
    scene.book(WHOLE, duration=hours(8))
    line = Line(1, None, 0, 9000, team=parent.pk, budget_milli_hours=10_000)
    parents = dict(Team.objects.values_list("pk", "parent"))
    burn = budgets.burn(scene.pool, line, (), parents, NOON + timedelta(days=3))
    assert burn is not None
    assert (burn.month, burn.budget, burn.spent, burn.share) == (MARCH, 10_000, 8000, 0.8)
    assert budgets.burn(scene.pool, Line(1, None, 0, 9000), (), parents, NOON) is None


def test_months_go_by_the_zone_of_the_pool() -> None:
    assert budgets.zone_of(Pool(zone="Asia/Shanghai")).key == "Asia/Shanghai"
    assert budgets.zone_of(Pool(zone="nowhere")).key == "UTC"
