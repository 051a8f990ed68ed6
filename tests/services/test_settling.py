"""What reports settle: slices that are there, bookings that are active, what is clean and over."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from pool.core import wire
from pool.core.shapes import MigAsk
from pool.models import Allocation, Command, Event, Gpu, Pool, Reservation
from pool.services import lanes, reservations
from tests.scene import HALF, NOON, WHOLE, Scene, add_node, hours, instance, make_scene, seen, settle

pytestmark = pytest.mark.django_db

FULL = MigAsk(profile="7g.80gb")


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def gpu() -> Gpu:
    return Gpu.objects.get()


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def held() -> list[wire.Held]:
    return list(msgspec.convert(gpu().wanted, wire.Layout).held)


def test_a_booking_is_active_once_all_its_slices_are_seen(scene: Scene) -> None:
    booked = scene.book(MigAsk(profile="1g.10gb", count=2))
    settle(scene.pool, gpu(), now=NOON + hours(0.01))
    booked.refresh_from_db()
    assert (booked.state, booked.state_reason, booked.started_at) == ("active", "applied", NOON + hours(0.01))
    slices = Allocation.objects.filter(reservation=booked)
    assert len({one.mig_uuid for one in slices} - {""}) == 2
    assert {one.ready_at for one in slices} == {NOON + hours(0.01)}


def test_it_is_not_active_while_one_slice_is_missing(scene: Scene) -> None:
    booked = scene.book(MigAsk(profile="1g.10gb", count=2))
    first, _ = held()
    report = seen(gpu(), held=[first.allocation], leftover=[instance(first)])
    settle(scene.pool, gpu(), report)
    assert state(booked) == ("starting", "waiting_for_node")
    assert Allocation.objects.filter(ready_at=None).count() == 1


def test_an_instance_that_is_not_the_agents_own_makes_nothing_active(scene: Scene) -> None:
    booked = scene.book()
    (one,) = held()
    settle(scene.pool, gpu(), seen(gpu(), held=[one.allocation], leftover=[instance(one, owned=False)]))
    assert state(booked) == ("starting", "waiting_for_node")


def test_a_whole_gpu_is_active_once_the_agent_holds_it() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    booked = scene.book(WHOLE)
    settle(scene.pool, gpu(), seen(gpu(), held=[]))
    assert state(booked)[0] == "starting"
    settle(scene.pool, gpu())
    assert (state(booked), Allocation.objects.get().mig_uuid) == (("active", "applied"), "")


def test_over_two_gpus_it_is_active_when_both_are_ready() -> None:
    scene = make_scene()
    one, other = add_node(scene.pool, mig_gpus=2)
    booked = scene.book(MigAsk(profile="7g.80gb", count=2))
    settle(scene.pool, one)
    assert state(booked)[0] == "starting"
    settle(scene.pool, other)
    assert state(booked)[0] == "active"


def test_the_same_report_twice_changes_nothing(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu())
    before = (state(booked), booked.version, Event.objects.count(), Pool.objects.get().change)
    settle(scene.pool, gpu(), now=NOON + hours(0.1))
    assert (state(booked), booked.version, Event.objects.count(), Pool.objects.get().change) == before


def test_what_the_agent_could_not_do_is_said_and_forgotten_when_it_could(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu(), seen(gpu(), held=[], trouble="in_use"))
    assert state(booked) == ("starting", "in_use")
    settle(scene.pool, gpu(), seen(gpu(), held=[], trouble="something new"))
    assert state(booked) == ("starting", "driver_refused")
    settle(scene.pool, gpu())
    assert state(booked) == ("active", "applied")


def test_trouble_with_an_older_command_says_nothing(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu(), seen(gpu(), held=[], trouble="in_use", generation=0))
    assert state(booked) == ("starting", "waiting_for_node")


def test_an_active_booking_stays_active_when_its_slice_is_gone_and_says_so(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu())
    settle(scene.pool, gpu(), seen(gpu(), held=[]))
    one = Allocation.objects.get()
    assert (state(booked), one.ready_at, one.mig_uuid) == (("active", "waiting_for_node"), None, "")
    settle(scene.pool, gpu())
    assert (state(booked), Allocation.objects.get().mig_uuid != "") == (("active", "applied"), True)


def test_a_report_that_cannot_be_read_takes_nothing_away(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu())
    settle(scene.pool, gpu(), replace(seen(gpu(), held=[]), instances=None, unsure=True))
    assert state(booked) == ("active", "applied")
    assert Allocation.objects.get().ready_at is not None


# --- Ends -------------------------------------------------------------------------


def test_it_is_over_when_nothing_of_it_is_left(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, gpu())
    left = instance(held()[0])
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    settle(scene.pool, gpu(), seen(gpu(), leftover=[left]))
    assert state(booked) == ("ending", "released")
    settle(scene.pool, gpu())
    assert state(booked) == ("ended", "released")


def test_a_report_from_before_the_command_ends_nothing(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    settle(scene.pool, gpu(), seen(gpu(), generation=1))
    assert state(booked)[0] == "ending"
    settle(scene.pool, gpu(), seen(gpu(), generation=2))
    assert state(booked)[0] == "ended"


def test_an_agent_that_could_not_do_all_of_the_newest_command_still_shows_what_is_gone(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    report = seen(gpu(), generation=2, trouble="driver")
    settle(scene.pool, gpu(), report)
    assert state(booked)[0] == "ended"


def test_what_is_clean_is_capacity_so_the_change_number_rises(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    before = Pool.objects.get().change
    settle(scene.pool, gpu())
    assert Pool.objects.get().change == before + 1


# --- From one booking to the next -------------------------------------------------


def test_what_waited_for_the_clean_up_starts_with_the_same_report(scene: Scene) -> None:
    first = scene.book(FULL)
    settle(scene.pool, gpu())
    later = scene.book(FULL, actor=scene.sam, team="speech", start=NOON + hours(1))
    lanes.due(now=NOON + hours(1))
    assert (state(first), state(later)) == (("ending", "time_up"), ("starting", "waiting_for_cleanup"))
    assert held() == []
    settle(scene.pool, gpu(), now=NOON + hours(1.01))
    assert (state(first), state(later)) == (("ended", "time_up"), ("starting", "waiting_for_node"))
    assert [one.allocation for one in held()] == [str(Allocation.objects.get(reservation=later).pk)]
    assert Command.objects.filter(state="open").get().generation == gpu().generation
    settle(scene.pool, gpu(), now=NOON + hours(1.02))
    assert state(later) == ("active", "applied")


def test_a_booking_over_several_gpus_is_left_to_the_lane() -> None:
    scene = make_scene()
    one, other = add_node(scene.pool, mig_gpus=2)
    both = MigAsk(profile="7g.80gb", count=2)
    first = scene.book(both)
    later = scene.book(both, actor=scene.sam, team="speech", start=NOON + hours(1))
    lanes.due(now=NOON + hours(1))
    settle(scene.pool, one)
    settle(scene.pool, other)
    assert (state(first)[0], state(later)) == ("expired", ("starting", "waiting_for_cleanup"))
    lanes.due(now=NOON + hours(1.01))
    assert state(later) == ("starting", "waiting_for_node")
    assert Command.objects.filter(state="open").count() == 2


def test_back_to_back_of_one_owner_keeps_the_instance(scene: Scene) -> None:
    first = scene.book(FULL)
    settle(scene.pool, gpu())
    uuid = Allocation.objects.get(reservation=first).mig_uuid
    owner = held()[0].owner
    later = scene.book(FULL, start=NOON + hours(1))
    lanes.due(now=NOON + hours(1))
    (now,) = held()
    assert (now.owner, now.allocation) == (owner, str(Allocation.objects.get(reservation=later).pk))
    settle(scene.pool, gpu(), now=NOON + hours(1.01))
    assert (state(first), state(later)) == (("ended", "time_up"), ("active", "handed_over"))
    assert Allocation.objects.get(reservation=later).mig_uuid == uuid


def test_a_neighbour_on_the_same_gpu_is_left_alone(scene: Scene) -> None:
    first, beside = scene.book(HALF), scene.book(HALF)
    settle(scene.pool, gpu())
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    settle(scene.pool, gpu())
    assert (state(first)[0], state(beside)) == ("ended", ("active", "applied"))
    beside.refresh_from_db()
    assert Event.objects.filter(reservation_id=beside.pk).count() == 2
