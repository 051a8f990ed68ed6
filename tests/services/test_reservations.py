"""Releasing and cancelling, and what the steps keep true: holds, blocked, versions, events."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from pool.core.errors import Code
from pool.core.shapes import MigAsk
from pool.core.states import Reason, State
from pool.models import Allocation, Command, Event, Gpu, Pool, Reservation
from pool.services import reservations
from tests.scene import HALF, NOON, Scene, add_node, hours, make_scene, refused, settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def _only() -> Allocation:
    return Allocation.objects.get()


def _layout() -> list[object]:
    wanted = Gpu.objects.get().wanted
    held: list[object] = wanted["held"]
    return held


# --- Release --------------------------------------------------------------------


def test_it_ends_at_once_and_holds_until_a_report_shows_it_clean(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, Gpu.objects.get())
    ended = reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON + hours(0.5))
    assert (ended.state, ended.state_reason) == ("ending", "released")
    assert _only().holds
    assert _layout() == []
    settle(scene.pool, Gpu.objects.get(), now=NOON + hours(0.6))
    booked.refresh_from_db()
    assert (booked.state, booked.state_reason, booked.ended_at) == ("ended", "released", NOON + hours(0.6))
    assert (_only().holds, _only().cleaned_at) == (False, NOON + hours(0.6))


def test_a_clean_up_cuts_what_is_blocked_and_never_the_period(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON + hours(0.5))
    settle(scene.pool, Gpu.objects.get(), now=NOON + hours(0.5))
    one = _only()
    assert one.blocked.upper == NOON + hours(0.5)
    assert one.period.upper == NOON + hours(1)
    booked.refresh_from_db()
    assert booked.period.upper == NOON + hours(1)


def test_a_span_is_free_again_once_it_is_clean_and_not_before(scene: Scene) -> None:
    first, _ = scene.book(HALF), scene.book(HALF)
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON + hours(0.1))
    refused(Code.NO_CAPACITY, lambda: scene.book(HALF, now=NOON + hours(0.1)))
    settle(scene.pool, Gpu.objects.get(), now=NOON + hours(0.1))
    scene.book(HALF, now=NOON + hours(0.1))


def test_before_its_start_it_is_cancelled_and_free_at_once(scene: Scene) -> None:
    first, _ = scene.book(HALF, start=NOON + hours(1)), scene.book(HALF, start=NOON + hours(1))
    gone = reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    assert (gone.state, gone.state_reason) == ("cancelled", "cancelled")
    one = Allocation.objects.get(reservation=first)
    assert (one.holds, one.cleaned_at) == (False, None)
    assert one.blocked.upper - one.blocked.lower == timedelta(microseconds=1)
    scene.book(HALF, start=NOON + hours(1))


def test_what_was_never_wanted_on_a_gpu_is_over_at_once(scene: Scene) -> None:
    Pool.objects.update(frozen=True)
    booked = scene.book()
    ended = reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    assert (ended.state, _only().holds, _only().cleaned_at) == ("ended", False, None)
    assert not Command.objects.exists()


def test_it_cannot_be_released_twice(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    told = refused(
        Code.WRONG_STATE, lambda: reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    )
    assert told["state"] == "ending"


def test_it_refuses_somebody_who_read_an_older_version(scene: Scene) -> None:
    booked = scene.book()
    told = refused(
        Code.STALE,
        lambda: reservations.release(actor=scene.lena, reservation_id=booked.pk, version=7, now=NOON),
    )
    assert told == {"version": 1, "known": 7}
    assert reservations.release(actor=scene.lena, reservation_id=booked.pk, version=1, now=NOON).version == 2


@pytest.mark.parametrize(
    ("by", "reason"),
    [("milo", "released"), ("lena", "released_by_lead"), ("otto", "stopped_by_operator")],
)
def test_owner_lead_and_operator_may_release(scene: Scene, by: str, reason: str) -> None:
    booked = scene.book(actor=scene.milo)
    ended = reservations.release(actor=getattr(scene, by), reservation_id=booked.pk, now=NOON)
    assert ended.state_reason == reason


def test_a_member_may_not_release_what_another_owns(scene: Scene) -> None:
    booked = scene.book(actor=scene.lena)
    refused(
        Code.FORBIDDEN, lambda: reservations.release(actor=scene.milo, reservation_id=booked.pk, now=NOON)
    )


def test_what_one_may_not_see_does_not_exist(scene: Scene) -> None:
    booked = scene.book()
    for pk in (booked.pk, uuid.uuid4()):
        refused(
            Code.NOT_FOUND,
            lambda pk=pk: reservations.release(actor=scene.sam, reservation_id=pk, now=NOON),
        )


# --- Steps ----------------------------------------------------------------------


def test_every_change_of_state_has_its_event_with_before_and_after(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, Gpu.objects.get())
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    settle(scene.pool, Gpu.objects.get())
    lines = Event.objects.filter(reservation_id=booked.pk).order_by("pk")
    assert [line.verb for line in lines] == [
        "reservation.booked",
        "reservation.active",
        "reservation.ending",
        "reservation.ended",
    ]
    assert [line.actor_label for line in lines] == ["lena", "node:test", "lena", "node:test"]
    for earlier, later in zip(lines, list(lines)[1:], strict=False):
        assert later.before["state"] == earlier.after["state"]
        assert later.after["version"] == earlier.after["version"] + 1


def test_a_step_moves_all_or_none(scene: Scene) -> None:
    one, other = scene.book(), scene.book(start=NOON + hours(1))
    reservations.release(actor=scene.lena, reservation_id=other.pk, now=NOON)
    rows = list(Reservation.objects.order_by("pk"))
    refused(Code.WRONG_STATE, lambda: reservations.end(rows, Reason.TIME_UP, now=NOON))
    one.refresh_from_db()
    assert one.state == State.STARTING


def test_a_reason_that_stays_is_not_told_again(scene: Scene) -> None:
    booked = scene.book()
    before = Event.objects.count()
    reservations.note([booked], Reason.WAITING_FOR_NODE, now=NOON)
    assert (Event.objects.count(), booked.version) == (before, 1)
    reservations.note([booked], Reason.IN_USE, now=NOON)
    assert (Event.objects.count(), booked.version) == (before + 1, 2)


def test_a_booking_over_two_gpus_is_over_when_both_are_clean() -> None:
    scene = make_scene()
    one, other = add_node(scene.pool, mig_gpus=2)
    booked = scene.book(MigAsk(profile="7g.80gb", count=2))
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    settle(scene.pool, one)
    booked.refresh_from_db()
    assert booked.state == "ending"
    settle(scene.pool, other)
    booked.refresh_from_db()
    assert booked.state == "ended"
