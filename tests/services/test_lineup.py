"""The wait list as it stands: places, reasons and estimates, kept while nothing changes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from pool.models import Pool
from pool.services import lineup, reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture
def scene() -> Scene:
    """Two whole GPUs."""
    made = make_scene(guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def test_without_anybody_there_is_no_line(scene: Scene) -> None:
    assert lineup.decide(scene.pool, NOON) is None
    assert lineup.places(scene.pool, NOON) == {}


def test_each_has_a_place_and_a_time_if_nobody_extends(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(2))
    scene.book(WHOLE, duration=hours(3))
    first, second = join(scene), join(scene, gpus(2))
    found = lineup.places(scene.pool, NOON)
    assert (found[first.pk].position, found[first.pk].of, found[first.pk].why) == (1, 2, "first")
    assert found[first.pk].starts == NOON + hours(2)
    assert (found[second.pk].position, found[second.pk].starts) == (2, NOON + hours(3))


def test_what_can_be_had_now_is_next(scene: Scene) -> None:
    row = join(scene)
    place = lineup.places(scene.pool, NOON)[row.pk]
    assert (place.why, place.starts) == ("next", NOON)


def test_places_are_kept_while_nothing_changes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    row = join(scene)
    before = lineup.places(scene.pool, NOON)
    assert lineup.places(scene.pool, NOON + timedelta(seconds=1)) is before
    assert lineup.places(scene.pool, NOON + 2 * MINUTE) is not before
    reservations.release(actor=scene.lena, reservation_id=row.pk, now=NOON + 2 * MINUTE)
    Pool.objects.update(change=F("change") + 1)
    assert lineup.places(scene.pool, NOON + 2 * MINUTE) == {}


def test_the_team_with_less_of_its_share_comes_before_the_older_one(scene: Scene) -> None:
    scene.book(gpus(2), duration=hours(5))
    older, other = join(scene), join(scene, actor=scene.sam, now=NOON + MINUTE)
    line = lineup.decide(scene.pool, NOON + 2 * MINUTE)
    assert line is not None
    assert [one.id for one in line.ordered] == [other.pk, older.pk]
