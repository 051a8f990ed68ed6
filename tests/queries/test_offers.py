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


def closed(scene: Scene, ask: Ask, klass: Class = Class.BATCH) -> list[float]:
    snap = snapshot.take(scene.pool.pk, WINDOW, team_id=scene.vision.pk, now=NOON)
    sought = Sought(ask, Period(NOON, NOON + hours(1)), WINDOW, klass, None, scene.vision.pk, False)
    found = offers.search(snap, sought, lambda blocked, free_until: None).closed
    return [(one.start - NOON) / hours(1) for one in found]


def test_a_line_is_closed_where_others_of_the_team_fill_it(scene: Scene) -> None:
    for start in (2, 2, 8):
        scene.book(WHOLE, start=NOON + hours(start))
    assert closed(scene, WHOLE) == [2]
    assert closed(scene, MigAsk("1g.10gb", count=9)) == [2, 8]


def test_a_line_of_one_model_closes_it_there(scene: Scene) -> None:
    QuotaLine.objects.create(
        team=scene.vision, pool=scene.pool, model=H100, guaranteed_milli=0, cap_milli=500
    )
    assert closed(scene, WHOLE) == [0]


def test_online_work_meets_the_guaranteed_of_what_cannot_be_taken_back(scene: Scene) -> None:
    scene.book(ONE_SLICE, start=NOON + hours(1), klass=Class.ONLINE)
    scene.book(WHOLE, start=NOON + hours(3))
    assert closed(scene, WHOLE, Class.ONLINE) == [1]
