"""The fair share of each team: what it is guaranteed, then the rest by weight and what it has had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest
from psycopg.types.range import TimestamptzRange

from pool.core.fairness import Demand, Share
from pool.core.period import Period
from pool.models import QuotaLine, Reservation
from pool.queries import fairness, fleets, standing
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    """Four whole GPUs, one guaranteed to each of two teams."""
    made = make_scene(guaranteed=1000)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=4)
    return made


def shares(scene: Scene, waiting: Iterable[Demand]) -> Mapping[int, Share]:
    where = standing.of(scene.pool.pk, fleets.current(scene.pool.pk), Period(NOON, NOON + hours(1)))
    return fairness.now(scene.pool, where, waiting, NOON)


def both_want(scene: Scene) -> list[Demand]:
    return [Demand(team.pk, 4000, 50, NOON) for team in (scene.vision, scene.speech)]


def test_each_has_what_it_is_guaranteed_and_half_of_the_rest(scene: Scene) -> None:
    found = shares(scene, both_want(scene))
    assert {pk: (one.deserved, one.beyond) for pk, one in found.items()} == {
        scene.vision.pk: (1000, 1000),
        scene.speech.pk: (1000, 1000),
    }


def test_a_heavier_team_has_more_of_the_rest(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(weight=3)
    found = shares(scene, both_want(scene))
    assert found[scene.vision.pk].beyond > found[scene.speech.pk].beyond


def test_who_had_much_lately_has_less_of_the_rest(scene: Scene) -> None:
    day = timedelta(days=1)
    Reservation.objects.create(
        team=scene.vision,
        pool=scene.pool,
        owner=scene.lena,
        booked_by=scene.lena,
        ask={},
        klass="batch",
        state="ended",
        period=TimestamptzRange(NOON - 2 * day, NOON - day),
        created_at=NOON - 2 * day,
        started_at=NOON - 2 * day,
        ended_at=NOON - day,
        charge_milli=4000,
    )
    found = shares(scene, both_want(scene))
    assert found[scene.vision.pk].weight < found[scene.speech.pk].weight


def test_what_runs_is_wanted_too(scene: Scene) -> None:
    scene.book(WHOLE)
    assert shares(scene, [])[scene.vision.pk].milli == 1000
