"""What offers are found in: times that the team's lines close, and places that stay free."""

from __future__ import annotations

import pytest

from pool.core.period import Period
from pool.core.shapes import Ask, Class, MigAsk
from pool.models import QuotaLine
from pool.queries import offers, snapshot
from pool.queries.offers import Sought
from tests.scene import H100, NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

WINDOW = Period(NOON, NOON + hours(24))


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=2000, guaranteed=1000)
    add_node(made.pool, mig_gpus=1, whole_gpus=3)
    return made


def closed(scene: Scene, ask: Ask, charges: dict[str, int], klass: Class = Class.BATCH) -> list[float]:
    snap = snapshot.take(scene.pool.pk, WINDOW, team_id=scene.vision.pk, now=NOON)
    sought = Sought(ask, Period(NOON, NOON + hours(1)), WINDOW, klass, None)
    return [(one.start - NOON) / hours(1) for one in offers.closed(snap, sought, charges)]


def test_a_line_is_closed_where_others_of_the_team_fill_it(scene: Scene) -> None:
    for start in (2, 2, 8):
        scene.book(WHOLE, start=NOON + hours(start))
    assert closed(scene, WHOLE, {H100: 1000}) == [2]
    assert closed(scene, MigAsk("1g.10gb", count=9), {H100: 125}) == [2, 8]
    assert closed(scene, WHOLE, {}) == []


def test_a_line_of_one_model_closes_only_what_nothing_else_can_serve(scene: Scene) -> None:
    QuotaLine.objects.create(
        team=scene.vision, pool=scene.pool, model=H100, guaranteed_milli=0, cap_milli=500
    )
    assert closed(scene, WHOLE, {H100: 1000}) == [0]
    assert closed(scene, WHOLE, {H100: 1000, "A100-80GB": 1000}) == []


def test_online_work_meets_the_guaranteed_of_its_own_kind(scene: Scene) -> None:
    scene.book(ONE_SLICE, start=NOON + hours(1), klass=Class.ONLINE)
    scene.book(WHOLE, start=NOON + hours(3))
    assert closed(scene, WHOLE, {H100: 1000}, Class.ONLINE) == [1]
