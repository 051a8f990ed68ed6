"""Setting quota lines."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Event, Gpu, Pool, QuotaLine, User
from pool.services import quota
from tests.scene import H100, NOON, Scene, add_node, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene(cap=1000, guaranteed=0)


def approver() -> User:
    return User.objects.create(username="approver", roles=["approver"])


def set_line(scene: Scene, actor: User | None = None, **more: Any) -> QuotaLine:
    wanted = {"guaranteed_milli": 500, "cap_milli": 2000, "now": NOON} | more
    return quota.set_line(actor=actor, team=scene.vision, pool=scene.pool, **wanted)


def test_it_changes_the_line_and_raises_its_version(scene: Scene) -> None:
    line = set_line(scene, approver())
    assert (line.guaranteed_milli, line.cap_milli, line.version) == (500, 2000, 2)
    assert QuotaLine.objects.filter(team=scene.vision).count() == 1


def test_a_line_for_a_model_is_a_line_of_its_own(scene: Scene) -> None:
    line = set_line(scene, model=H100)
    assert (line.version, QuotaLine.objects.filter(team=scene.vision).count()) == (1, 2)


def test_it_draws_a_change_number_and_tells_the_audit(scene: Scene) -> None:
    before = Pool.objects.get().change
    set_line(scene)
    event = Event.objects.get()
    assert Pool.objects.get().change == before + 1
    assert (event.verb, event.actor_label) == ("quota.set", "system")
    assert (event.before["cap_milli"], event.after["cap_milli"]) == (1000, 2000)


@pytest.mark.parametrize("who", ["lena", "milo", "otto"])
def test_only_an_approver_may(scene: Scene, who: str) -> None:
    refused(Code.FORBIDDEN, lambda: set_line(scene, getattr(scene, who)))


def test_it_refuses_somebody_who_read_an_older_version(scene: Scene) -> None:
    assert refused(Code.STALE, lambda: set_line(scene, version=9)) == {"version": 1, "known": 9}
    set_line(scene, version=1)
    set_line(scene, model=H100, version=0)


@pytest.mark.parametrize(
    ("amounts", "pointer", "code"),
    [
        ({"cap_milli": -1, "guaranteed_milli": 0}, "/cap_milli", "too_small"),
        ({"guaranteed_milli": -1}, "/guaranteed_milli", "too_small"),
        ({"cap_milli": 10**12}, "/cap_milli", "too_large"),
        ({"guaranteed_milli": 2001}, "/guaranteed_milli", "too_large"),
        ({"model": "RTX 9999"}, "/model", "unknown_model"),
        ({"model": "a\0"}, "/model", "unknown_model"),
    ],
)
def test_it_refuses_amounts_that_cannot_be(
    scene: Scene, amounts: dict[str, Any], pointer: str, code: str
) -> None:
    (error,) = refused(Code.INVALID, lambda: set_line(scene, **amounts))["errors"]
    assert (error["pointer"], error["code"]) == (pointer, code)


def test_a_model_that_only_the_pools_drivers_know_has_its_line(scene: Scene) -> None:
    add_node(scene.pool)
    Gpu.objects.update(model="RTX 9999")
    assert set_line(scene, model="RTX 9999").model == "RTX 9999"


def test_a_lowered_cap_leaves_what_was_granted(scene: Scene) -> None:
    add_node(scene.pool)
    booked = scene.book()
    set_line(scene, guaranteed_milli=0, cap_milli=0)
    booked.refresh_from_db()
    assert booked.state == "starting"
    refused(Code.QUOTA_EXCEEDED, scene.book)
