"""Room at other times: the first that a booking would be granted, the same for pages, offers and refusals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.period import Period
from pool.core.shapes import Class, GpuAsk, MigAsk, ShareAsk
from pool.models import Pool, QuotaLine
from pool.queries import snapshot
from pool.services import offers, room
from pool.services.plans import Wanted
from tests.scene import NOON, WHOLE, Scene, add_node, add_shares, hours, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    """One GPU for slices, two whole, one for shares."""
    made = make_scene()
    add_node(made.pool, mig_gpus=1, whole_gpus=2)
    add_shares(made.pool)
    return made


def told(scene: Scene, *args: Any, **more: Any) -> dict[str, Any]:
    return refused(Code.NO_CAPACITY, lambda: scene.book(*args, **more))


def busy(scene: Scene, ask: Any, start: float, length: float) -> None:
    scene.book(ask, start=NOON + hours(start), duration=hours(length), actor=scene.sam, team="speech")


def test_the_refusal_of_a_booking_names_the_largest_that_fits_instead(scene: Scene) -> None:
    busy(scene, MigAsk(profile="4g.40gb"), 0, 3)
    said = told(scene, MigAsk(profile="7g.80gb"))
    assert said["largest"] == {"kind": "mig", "profile": "3g.40gb", "count": 1}
    assert said["first_time"] == (NOON + hours(3)).isoformat()
    assert told(scene, GpuAsk(count=3))["largest"] == {"kind": "gpu", "count": 2}


def test_where_nothing_of_its_kind_fits_there_is_no_largest(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 3)
    assert told(scene, WHOLE)["largest"] is None


def test_offers_and_a_booking_are_told_the_same(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 30)
    wanted = {"actor": scene.lena, "team": "vision", "pool": scene.pool.name, "now": NOON}
    found = offers.find(ask=WHOLE, duration=hours(1), end=NOON + hours(9), **wanted)  # type: ignore[arg-type]
    assert found.refusal is not None
    assert found.refusal.data == told(scene, WHOLE, duration=hours(1))


def test_the_first_time_is_within_quota_too(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 3)
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1000, guaranteed_milli=0)
    scene.book(MigAsk(profile="7g.80gb"), start=NOON + hours(2), duration=hours(4))
    assert told(scene, WHOLE, duration=hours(1))["first_time"] == (NOON + hours(6)).isoformat()


def test_time_for_scrubbing_belongs_to_it(scene: Scene) -> None:
    Pool.objects.update(scrub_seconds=1800)
    for _ in range(2):
        busy(scene, WHOLE, 0, 3)
    assert told(scene, WHOLE)["first_time"] == (NOON + hours(3.5)).isoformat()


def test_a_share_is_told_how_much_memory_there_is(scene: Scene) -> None:
    ask = ShareAsk(memory_mib=60 * 1024, guaranteed=10, limit=10)
    scene.book(ask)
    said = told(scene, ask)
    assert said["largest"]["kind"] == "share"
    assert 0 < said["largest"]["memory_mib"] < 60 * 1024


def test_a_form_is_answered_on_the_reading_that_it_has(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 3)
    period = Period(NOON, NOON + hours(1))
    wanted = Wanted(WHOLE, period, period, Class.INTERACTIVE, team_id=scene.vision.pk)
    snap = snapshot.take(scene.pool.pk, period, team_id=scene.vision.pk, now=NOON)
    said = room.refusal(snap, wanted, scene.pool, team_id=scene.vision.pk)
    assert said.data["first_time"] == (NOON + hours(3)).isoformat()


def test_another_time_is_blocked_with_its_scrubbing(scene: Scene) -> None:
    scene.pool.scrub_seconds = 600
    period = Period(NOON, NOON + hours(1))
    wanted = Wanted(WHOLE, period, period, Class.INTERACTIVE)
    later = room.at(wanted, Period(NOON, NOON + hours(2)), scene.pool)
    assert later.period == Period(NOON, NOON + hours(2) - timedelta(minutes=10))
