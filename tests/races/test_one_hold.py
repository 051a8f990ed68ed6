"""One person holds two things at once: one is kept, whichever pools they are in."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from pool.core.errors import Code
from pool.core.shapes import MigAsk
from pool.models import Allocation, Pool, QuotaLine, Reservation
from pool.services import reservations
from tests.races.runners import codes, think_together, together
from tests.scene import NOON, ONE_SLICE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

ALL = MigAsk(profile="7g.80gb")


@pytest.fixture
def scene() -> Scene:
    """Two pools with a GPU each, so that no lock on a pool keeps the two apart."""
    made = make_scene()
    add_node(made.pool)
    other = Pool.objects.create(name="other")
    add_node(other, "dgx-02")
    QuotaLine.objects.create(team=made.vision, pool=other, guaranteed_milli=9000, cap_milli=9000)
    return made


def hold(scene: Scene, pool: str, **more: Any) -> Reservation:
    wanted = {"actor": scene.lena, "team": "vision", "ask": ONE_SLICE, "duration": hours(1), "now": NOON}
    return reservations.hold(pool=pool, start=NOON + hours(1), **wanted | more)


def both_hold(scene: Scene) -> list[Any]:
    return together(lambda: hold(scene, scene.pool.name), lambda: hold(scene, "other"))


def test_without_the_index_both_are_held(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    (one_hold,) = (c for c in Reservation._meta.constraints if c.name == "reservation_one_hold")
    with connection.schema_editor() as editor:
        editor.remove_constraint(Reservation, one_hold)
    try:
        assert codes(both_hold(scene)) == {"ok": 2}
    finally:
        Allocation.objects.all().delete()
        Reservation.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Reservation, one_hold)


def test_one_is_held_and_the_other_hears_why(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    assert codes(both_hold(scene)) == {"ok": 1, Code.ONE_HOLD: 1}
    assert Reservation.objects.filter(state="held").count() == 1
    assert Allocation.objects.filter(holds=True).count() == 1


def test_two_people_who_want_the_same_place_do_not_both_hold_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    found = together(
        lambda: hold(scene, scene.pool.name, ask=ALL),
        lambda: hold(scene, scene.pool.name, ask=ALL, actor=scene.milo),
    )
    assert codes(found) == {"ok": 1, Code.NO_CAPACITY: 1}


def test_a_hold_is_confirmed_once(scene: Scene) -> None:
    held = hold(scene, scene.pool.name)

    def confirm() -> Reservation:
        return reservations.confirm(actor=scene.lena, reservation_id=held.pk, now=NOON)

    assert codes(together(confirm, confirm)) == {"ok": 1, Code.WRONG_STATE: 1}
