"""Quota lines with what is used of them at the busiest moment."""

from __future__ import annotations

import pytest

from pool.core.period import Period
from pool.models import QuotaLine
from pool.queries import quota
from pool.services import reservations
from tests.scene import H100, HALF, NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

DAY = Period(NOON, NOON + hours(24))


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=4000, guaranteed=1000)
    add_node(made.pool, mig_gpus=2)
    return made


def used(scene: Scene, period: Period = DAY) -> list[tuple[str | None, int]]:
    return [(one.model, one.used_milli) for one in quota.usage(scene.vision, scene.pool, period)]


def test_it_is_the_peak_and_no_sum_over_the_window(scene: Scene) -> None:
    scene.book(HALF, start=NOON + hours(1))
    scene.book(HALF, start=NOON + hours(2))
    assert used(scene) == [(None, 500)]
    scene.book(start=NOON + hours(2))
    assert used(scene) == [(None, 625)]
    assert used(scene, Period(NOON, NOON + hours(1))) == [(None, 0)]


def test_a_model_has_its_own_line_and_counts_on_the_one_for_any(scene: Scene) -> None:
    for model in (H100, "A100-80GB"):
        QuotaLine.objects.create(team=scene.vision, pool=scene.pool, model=model, cap_milli=500)
    scene.book(HALF)
    assert used(scene) == [(None, 500), ("A100-80GB", 0), (H100, 500)]


def test_what_is_over_or_of_another_team_does_not_count(scene: Scene) -> None:
    scene.book(HALF, actor=scene.sam, team="speech")
    gone = scene.book(HALF, start=NOON + hours(1))
    reservations.release(actor=scene.lena, reservation_id=gone.pk, now=NOON)
    assert used(scene) == [(None, 0)]


def test_the_bars_are_those_of_ones_own_teams(scene: Scene) -> None:
    (bar,) = quota.bars_for(scene.milo)
    assert (bar.team, bar.pool, bar.cap_milli, bar.guaranteed_milli) == ("vision", "main", 4000, 1000)
    assert list(quota.bars_for(scene.otto)) == []


def test_lines_come_with_the_one_for_any_model_first(scene: Scene) -> None:
    QuotaLine.objects.create(team=scene.vision, pool=scene.pool, model=H100, cap_milli=500)
    assert [line.model for line in quota.lines(scene.vision, scene.pool)] == ["", H100]
