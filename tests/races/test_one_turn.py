"""Those who wait get their turn once: two lanes at once, accepting as it lapses, leaving as it is given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Allocation, Event, Reservation
from pool.services import giving, lanes, reservations
from tests.races.runners import Meeting, codes, together
from tests.scene import NOON, Scene, add_node, make_scene
from tests.services.test_waitlist import join

pytestmark = pytest.mark.django_db(transaction=True)

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def scene() -> Scene:
    """One whole GPU."""
    made = make_scene(guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    return made


def serve(scene: Scene) -> int:
    return giving.serve(
        pool_id=scene.pool.pk, now=NOON + SECOND, hidden=(), aside=lambda pk, why: pytest.fail(str(why))
    )


def decide_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have decided before the first of them gives anything."""
    meeting, give = Meeting(2), giving._give

    def met(**more: Any) -> bool:
        meeting.wait()
        return give(**more)

    monkeypatch.setattr(giving, "_give", met)


def test_two_lanes_at_once_give_one_turn_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    row = join(scene)
    decide_together(monkeypatch)
    assert sorted(together(lambda: serve(scene), lambda: serve(scene))) == [0, 1]
    row.refresh_from_db()
    assert row.state == "starting"
    assert Allocation.objects.filter(holds=True).count() == 1
    assert Event.objects.filter(verb="reservation.placed").count() == 1


def test_who_leaves_while_it_is_given_has_left_or_has_it(scene: Scene) -> None:
    row = join(scene)

    def leave() -> Reservation:
        return reservations.release(actor=scene.lena, reservation_id=row.pk, now=NOON + SECOND)

    together(leave, lambda: serve(scene))
    row.refresh_from_db()
    held = Allocation.objects.filter(holds=True).count()
    # What was given first is released then; either way nobody keeps a place that nobody has.
    assert (row.state, held) in {("cancelled", 0), ("ended", 0), ("ending", 1)}


def test_an_offer_is_accepted_or_lapses(scene: Scene) -> None:
    row = join(scene, asks_first=True)
    lanes.due(now=NOON)
    until = NOON + 15 * MINUTE

    def accept() -> Reservation:
        return reservations.confirm(actor=scene.lena, reservation_id=row.pk, now=until - SECOND)

    accepted, _ = together(accept, lambda: lanes.due(now=until))
    row.refresh_from_db()
    if codes([accepted]) == {"ok": 1}:
        assert row.state in ("scheduled", "starting")
    else:
        assert codes([accepted]) == {Code.WRONG_STATE: 1}
        assert row.state in ("waiting", "held")
    assert Allocation.objects.filter(holds=True).count() <= 1
