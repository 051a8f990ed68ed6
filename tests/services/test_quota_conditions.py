"""What stands on a line beside guaranteed and cap, what fits, and what is shown before a limit is lowered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Event, QuotaLine, Team
from pool.services import quota
from pool.services.quota import Conditions
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

ALL = Conditions(
    lend_milli=200,
    unit="node",
    unit_size=4,
    weight=3,
    memory_mib=81920,
    budget_milli_hours=100_000,
    kinds=("share", "mig"),
    largest_milli=500,
    most_gpus=2,
    longest_minutes=600,
    ahead_minutes=1440,
)


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=1000, guaranteed=0)
    add_node(made.pool, mig_gpus=0, whole_gpus=4)
    return made


def set_line(scene: Scene, **more: Any) -> QuotaLine:
    wanted = {"guaranteed_milli": 500, "cap_milli": 2000, "now": NOON} | more
    wanted = {"actor": None, "team": scene.vision, "pool": scene.pool} | wanted
    return quota.set_line(**wanted)


def test_all_that_can_stand_on_a_line_is_set_kept_and_told(scene: Scene) -> None:
    line = set_line(scene, conditions=ALL)
    assert quota.conditions(line) == replace(ALL, kinds=("mig", "share"))
    line = set_line(scene, cap_milli=3000)
    assert quota.conditions(QuotaLine.objects.get(pk=line.pk)) == replace(ALL, kinds=("mig", "share"))
    after = Event.objects.latest("pk").after
    assert (after["unit_size"], after["lend_milli"], after["cap_milli"]) == (4, 200, 3000)
    assert quota.conditions(set_line(scene, conditions=Conditions())) == Conditions()


@pytest.mark.parametrize(
    ("wrong", "pointer", "code"),
    [
        ({"lend_milli": 501}, "/lend_milli", "too_large"),
        ({"lend_milli": -1}, "/lend_milli", "too_small"),
        ({"unit": "rack"}, "/unit", "not_a_choice"),
        ({"unit_size": 0}, "/unit_size", "too_small"),
        ({"weight": 40_000}, "/weight", "too_large"),
        ({"kinds": ("tpu",)}, "/kinds", "not_a_choice"),
        ({"memory_mib": -1}, "/memory_mib", "too_small"),
        ({"largest_milli": 0}, "/largest_milli", "too_small"),
        ({"longest_minutes": 10**9}, "/longest_minutes", "too_large"),
    ],
)
def test_what_cannot_stand_there_is_refused(
    scene: Scene, wrong: dict[str, Any], pointer: str, code: str
) -> None:
    (error,) = refused(Code.INVALID, lambda: set_line(scene, conditions=Conditions(**wrong)))["errors"]
    assert (error["pointer"], error["code"]) == (pointer, code)


def test_all_that_is_guaranteed_fits_into_the_pool(scene: Scene) -> None:
    set_line(scene, guaranteed_milli=3000, cap_milli=4000)
    (error,) = refused(
        Code.INVALID, lambda: set_line(scene, team=scene.speech, guaranteed_milli=1001, cap_milli=4000)
    )["errors"]
    assert (error["code"], error["guaranteed_gpu"], error["room_gpu"]) == ("more_than_there_is", "4.001", "4")
    set_line(scene, team=scene.speech, guaranteed_milli=1000, cap_milli=4000)


def test_a_child_stays_within_its_parent(scene: Scene) -> None:
    set_line(scene, guaranteed_milli=1000)
    child = Team.objects.create(name="child", parent=scene.vision)
    (error,) = refused(Code.INVALID, lambda: set_line(scene, team=child, guaranteed_milli=1001))["errors"]
    assert (error["whose"], error["room_gpu"]) == ("vision", "1")
    set_line(scene, team=child, guaranteed_milli=1000)


def test_a_guarantee_that_never_fitted_can_be_lowered(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=9000, cap_milli=9000)
    assert set_line(scene, guaranteed_milli=6000, cap_milli=9000).guaranteed_milli == 6000


def test_a_pool_without_gpus_is_not_looked_at() -> None:
    assert set_line(make_scene(), guaranteed_milli=9000, cap_milli=9000).version == 2


def test_lowering_shows_first_what_lies_above(scene: Scene) -> None:
    row = scene.book(WHOLE, start=NOON + hours(1))
    told = refused(Code.PROMISED, lambda: set_line(scene, guaranteed_milli=0, cap_milli=500, show_first=True))
    assert told["count"] == 1
    (one,) = told["promised"]
    assert (one["what"], one["used"], one["limit"]) == ("cap", 1000, 500)
    assert one["reservations"] == [str(row.pk)]
    assert QuotaLine.objects.get(team=scene.vision).cap_milli == 1000
    assert set_line(scene, guaranteed_milli=0, cap_milli=500).cap_milli == 500


def test_what_leaves_everything_below_needs_no_look(scene: Scene) -> None:
    scene.book(WHOLE, start=NOON + hours(1))
    assert set_line(scene, guaranteed_milli=0, cap_milli=1000, show_first=True).cap_milli == 1000
