"""Where teams stand, as the tables say it: all of it, and anew whenever a row is another."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.period import Period
from pool.core.quota_lines import Limits
from pool.core.standing import Standing
from pool.models import Gpu, QuotaGrant, QuotaLine, Reservation, Team
from pool.queries import fleets, standing
from tests.scene import H100, HALF, NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

HOUR = Period(NOON, NOON + hours(1))


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=3000, guaranteed=1000)
    add_node(made.pool, whole_gpus=1)
    return made


def read(scene: Scene, without: Reservation | None = None) -> Standing:
    fleet = fleets.current(scene.pool.pk)
    return standing.of(scene.pool.pk, fleet, HOUR, without=without.pk if without else None)


def test_it_has_the_lines_of_all_teams_with_all_that_they_limit(scene: Scene) -> None:
    QuotaLine.objects.create(
        team=scene.vision,
        pool=scene.pool,
        model=H100,
        guaranteed_milli=5,
        cap_milli=7,
        unit="node",
        unit_size=4,
        lend_milli=2,
        weight=3,
        memory_mib=99,
        budget_milli_hours=11,
        kinds=["mig"],
        largest_milli=500,
        most_gpus=2,
        longest_minutes=60,
        ahead_minutes=90,
    )
    *_, line = read(scene).lines
    assert len(read(scene).lines) == 3
    assert (line.model, line.guaranteed_milli, line.cap_milli, line.team) == (H100, 5, 7, scene.vision.pk)
    assert (line.unit, line.unit_size, line.lend_milli, line.weight) == ("node", 4, 2, 3)
    assert (line.memory_mib, line.budget_milli_hours) == (99, 11)
    assert line.limits == Limits(("mig",), 500, 2, 60, 90)


def test_it_has_the_grants_and_the_tree(scene: Scene) -> None:
    child = Team.objects.create(name="faces", parent=scene.vision)
    QuotaGrant.objects.create(
        team=child,
        pool=scene.pool,
        cap_milli=4,
        guaranteed_milli=3,
        valid=(NOON, NOON + timedelta(days=1)),
    )
    (grant,) = read(scene).grants
    assert (grant.team, grant.model, grant.guaranteed_milli, grant.cap_milli) == (child.pk, None, 3, 4)
    assert grant.period == Period(NOON, NOON + timedelta(days=1))
    assert read(scene).parents == {scene.vision.pk: None, scene.speech.pk: None, child.pk: scene.vision.pk}


def test_capacity_is_what_is_not_retired(scene: Scene) -> None:
    assert read(scene).capacity == {H100: 2000}
    Gpu.objects.filter(index=0).update(retired_at=NOON)
    assert read(scene).capacity == {H100: 1000}


def test_uses_are_those_of_all_teams_but_for_what_is_left_out(scene: Scene) -> None:
    mine = scene.book(WHOLE)
    scene.book(HALF, actor=scene.sam, team="speech")
    assert sorted(read(scene).uses.milli.tolist()) == [500, 1000]
    assert read(scene, without=mine).uses.milli.tolist() == [500]


def test_what_people_decided_is_read_again_only_when_a_row_is_another(scene: Scene) -> None:
    read(scene)
    with CaptureQueriesContext(connection) as quick:
        before = read(scene)
    assert not any("pool_quotaline WHERE" in one["sql"] and "memory_mib" in one["sql"] for one in quick)
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1005)
    after = read(scene)
    assert [line.cap_milli for line in before.lines] == [3000, 3000]
    assert sorted(line.cap_milli for line in after.lines) == [1005, 3000]
    QuotaLine.objects.all().delete()
    assert read(scene).lines == ()
