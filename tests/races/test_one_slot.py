"""Two want the same slot at once: one gets it, and nobody is refused for a slot that is free."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.shapes import GpuAsk
from pool.models import Allocation, Event, Reservation
from pool.services import extension, grants, reservations
from tests.races.runners import (
    Meeting,
    codes,
    overlaps,
    think_together,
    together,
    without_the_constraint,
    without_the_lock,
)
from tests.scene import NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def one_gpu() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=0, whole_gpus=1)
    return made


def both_book(scene: Scene) -> list[Any]:
    later = NOON + hours(1)
    return together(
        lambda: scene.book(WHOLE, start=later),
        lambda: scene.book(WHOLE, start=later, actor=scene.sam, team="speech"),
    )


def test_without_lock_and_constraint_both_get_it(one_gpu: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    with without_the_constraint():
        assert codes(both_book(one_gpu)) == {"ok": 2}
        assert overlaps() == 1


def test_without_the_lock_the_constraint_still_holds(one_gpu: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    assert codes(both_book(one_gpu)) == {"ok": 1, Code.NO_CAPACITY: 1}
    assert (Reservation.objects.count(), overlaps()) == (1, 0)


def test_one_gets_it_and_the_other_hears_why(one_gpu: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    results = both_book(one_gpu)
    assert codes(results) == {"ok": 1, Code.NO_CAPACITY: 1}
    (refusal,) = (one for one in results if isinstance(one, Refusal))
    assert (refusal.data["asked"], refusal.data["free"]) == (1, 0)
    assert (Reservation.objects.count(), Event.objects.count(), overlaps()) == (1, 1, 0)


def test_a_free_slot_is_never_refused_because_of_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene()
    add_node(scene.pool)
    think_together(monkeypatch, 8)
    results = together(*[lambda: scene.book(ONE_SLICE, start=NOON + hours(1))] * 8)
    assert codes(results) == {"ok": 7, Code.NO_CAPACITY: 1}
    assert (Allocation.objects.filter(holds=True).count(), overlaps()) == (7, 0)


def test_what_is_only_free_elsewhere_is_found_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    add_node(scene.pool, "slow", mig_gpus=0, whole_gpus=1, model="A100-80GB")
    think_together(monkeypatch, 2)
    any_gpu = GpuAsk(memory_mib=70_000)
    assert codes(together(*[lambda: scene.book(any_gpu, start=NOON + hours(1))] * 2)) == {"ok": 2}
    assert overlaps() == 0


def test_extending_and_booking_into_the_same_time_never_both_succeed(one_gpu: Scene) -> None:
    first = one_gpu.book(WHOLE)
    results = _extend_and_book(one_gpu, first)
    assert codes(results) == {"ok": 1, Code.NO_CAPACITY: 1}
    assert overlaps() == 0


def test_without_lock_and_constraint_extending_and_booking_both_succeed(
    one_gpu: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = one_gpu.book(WHOLE)
    without_the_lock(monkeypatch, 2)
    with without_the_constraint():
        _check_together(monkeypatch)
        assert codes(_extend_and_book(one_gpu, first)) == {"ok": 2}
        assert overlaps() == 1


def _extend_and_book(scene: Scene, first: Reservation) -> list[Any]:
    return together(
        lambda: reservations.extend(actor=scene.lena, reservation_id=first.pk, duration=hours(1), now=NOON),
        lambda: scene.book(WHOLE, start=NOON + hours(1), actor=scene.sam, team="speech"),
    )


def _check_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension has looked before the booking writes, and the other way round."""
    meeting = Meeting(2)
    look, write = extension._check, grants.write

    def looked(*args: Any) -> None:
        look(*args)
        meeting.wait()

    def about_to_write(*args: Any) -> Reservation:
        meeting.wait()
        return write(*args)

    monkeypatch.setattr(extension, "_check", looked)
    monkeypatch.setattr(grants, "write", about_to_write)
