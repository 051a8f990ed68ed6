"""The same request twice at once: carried out once, whichever of them is quicker."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Allocation, Reservation
from pool.services import idempotency, reservations
from pool.services.idempotency import Claim
from tests.races.runners import Meeting, codes, think_together, together
from tests.scene import NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

KEY = Claim("user:1", "POST", "/api/v1/reservations", "k", "f")


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def twice(scene: Scene, claim: Claim | None = KEY) -> list[Any]:
    return together(*[lambda: scene.book(ONE_SLICE, start=NOON + hours(1), claim=claim)] * 2)


def without_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(2)

    def only_look(wanted: Claim, *, now: Any) -> str | None:
        found = idempotency.find(wanted, now=now)
        meeting.wait()
        return found

    monkeypatch.setattr(idempotency, "claim", only_look)


def test_without_its_lock_it_is_carried_out_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_its_lock(monkeypatch)
    assert codes(twice(scene)) == {"ok": 2}
    assert Reservation.objects.count() == 2


def test_it_is_carried_out_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    results = twice(scene)
    # The slower one gets the same answer, or hears that the first is still at work.
    assert codes(results)["ok"] + codes(results)[Code.IN_PROGRESS] == 2
    assert len({one.pk for one in results if isinstance(one, Reservation)}) == 1
    assert (Reservation.objects.count(), Allocation.objects.count()) == (1, 1)


def test_without_a_key_they_are_two_bookings(scene: Scene) -> None:
    assert codes(twice(scene, claim=None)) == {"ok": 2}
    assert Reservation.objects.count() == 2


def test_who_lost_the_slot_to_the_same_request_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    think_together(monkeypatch, 2)
    results = together(*[lambda: scene.book(WHOLE, start=NOON + hours(1), claim=KEY)] * 2)
    assert codes(results)[Code.NO_CAPACITY] == 0
    assert len({one.pk for one in results if isinstance(one, Reservation)}) == 1


# --- Extending ------------------------------------------------------------------------


def extended_twice(scene: Scene) -> tuple[list[Any], Any]:
    """What two of the same extension by an hour answered, and by how much the end has moved."""
    booked = scene.book(ONE_SLICE, start=NOON + hours(1))

    def longer() -> Any:
        return reservations.extend(
            actor=scene.lena, reservation_id=booked.pk, duration=hours(1), now=NOON, claim=KEY
        )

    results = together(longer, longer)
    return results, Reservation.objects.get().period.upper - booked.period.upper


def test_without_its_lock_an_extension_is_added_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_its_lock(monkeypatch)
    results, added = extended_twice(scene)
    assert (codes(results), added) == ({"ok": 2}, hours(2))


def test_an_extension_is_added_once(scene: Scene) -> None:
    results, added = extended_twice(scene)
    assert codes(results)["ok"] + codes(results)[Code.IN_PROGRESS] == 2
    assert added == hours(1)
