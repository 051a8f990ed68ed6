"""What a booking writes: state, rectangles, command, audit line, change number."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.errors import Code
from pool.core.placement import SWITCH
from pool.core.shapes import GpuAsk, MigAsk, Spread
from pool.models import Allocation, Command, Event, Gpu, GpuState, Node, Pool
from pool.services import commands, lanes, reservations
from tests.scene import H100, HALF, NOON, WHOLE, Scene, add_node, hours, make_scene, refused, settle
from tests.services.test_waitlist import join

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def test_it_starts_a_booking_from_now_and_commands_its_gpu_in_the_same_transaction(scene: Scene) -> None:
    booked = scene.book()
    assert (booked.state, booked.state_reason) == ("starting", "waiting_for_node")
    assert (booked.period.lower, booked.period.upper) == (NOON, NOON + hours(1))
    one = Allocation.objects.get(reservation=booked)
    command = Command.objects.get()
    assert (command.state, command.generation, command.gpu_id) == ("open", 1, one.gpu_id)
    assert [held["allocation"] for held in command.layout["held"]] == [str(one.pk)]


def test_it_schedules_a_later_booking_and_commands_nothing_yet(scene: Scene) -> None:
    booked = scene.book(start=NOON + hours(2))
    one = Allocation.objects.get(reservation=booked)
    assert (booked.state, booked.state_reason) == ("scheduled", "booked")
    assert (one.holds, one.wanted_at, one.tenancy) == (True, None, one.pk)
    assert not Command.objects.exists()


def test_it_keeps_who_booked_what_in_the_audit(scene: Scene) -> None:
    booked = scene.book(title="training", actor=scene.milo)
    event = Event.objects.get(reservation_id=booked.pk)
    assert (event.verb, event.actor, event.before) == ("reservation.booked", scene.milo, None)
    assert event.after["state"] == "starting"
    assert event.after["allocations"][0]["profile"] == "1g.10gb"


def test_it_draws_the_pools_next_change_number(scene: Scene) -> None:
    before = Pool.objects.get().change
    scene.book()
    assert Pool.objects.get().change == before + 1


def test_it_charges_the_share_of_the_gpu(scene: Scene) -> None:
    assert scene.book(HALF).charge_milli == 500
    assert scene.book(MigAsk(profile="1g.10gb", count=2)).charge_milli == 250


def test_it_books_whole_gpus_on_one_node() -> None:
    scene = make_scene()
    add_node(scene.pool, "a", mig_gpus=0, whole_gpus=3)
    add_node(scene.pool, "b", mig_gpus=0, whole_gpus=4)
    booked = scene.book(GpuAsk(models=(H100,), count=4, same_node=True))
    rows = Allocation.objects.filter(reservation=booked).select_related("gpu__node")
    assert {row.gpu.node.name for row in rows} == {"b"}
    assert {(row.kind, row.span.lower, row.span.upper, row.charge_milli) for row in rows} == {
        ("gpu", 0, 8, 1000)
    }


def test_twelve_bookings_follow_one_another_on_one_slice() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    booked = [scene.book(WHOLE, start=NOON + hours(n)) for n in range(12)]
    assert len({Allocation.objects.get(reservation=one).gpu_id for one in booked}) == 1


def test_it_blocks_the_gpu_for_the_pools_scrub_time_too() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    Pool.objects.update(scrub_seconds=600)
    booked = scene.book(WHOLE)
    assert Allocation.objects.get(reservation=booked).blocked.upper == NOON + hours(1) + timedelta(minutes=10)
    later = refused(Code.NO_CAPACITY, lambda: scene.book(WHOLE, start=NOON + hours(1)))
    assert later["first_time"] == (NOON + hours(1) + timedelta(minutes=10)).isoformat()


# --- Nodes, domains, modes --------------------------------------------------------


def test_what_each_piece_takes_of_its_node_is_kept_and_not_given_twice() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=3)
    Node.objects.update(cpu_milli=48_000, memory_mib=100_000)
    ask = GpuAsk(count=2, node_cpu_milli=20_000, node_memory_mib=1_000)
    booked = scene.book(ask)
    rows = Allocation.objects.filter(reservation=booked)
    assert {(row.cpu_milli, row.ram_mib) for row in rows} == {(20_000, 1_000)}
    told = refused(Code.NO_CAPACITY, lambda: scene.book(GpuAsk(node_cpu_milli=8_001)))
    assert told["counts"] == {"busy": 2, "node_full": 1}
    assert scene.book(GpuAsk(node_cpu_milli=8_000)).charge_milli == 1000


def test_each_reservation_over_several_nodes_of_a_domain_has_a_channel_of_its_own() -> None:
    scene = make_scene()
    for name in ("a", "b"):
        add_node(scene.pool, name, mig_gpus=0, whole_gpus=4)
    Node.objects.update(imex="READY")
    Gpu.objects.update(fabric_cluster="c0ffee00-0000-0000-0000-000000000001", fabric_clique=1)
    linked = GpuAsk(count=4, same_nvlink_domain=True)
    across = [scene.book(GpuAsk(count=2, same_nvlink_domain=True, spread=Spread.NODE)) for _ in range(2)]
    assert [one.imex_channel for one in across] == [0, 1]
    # Either of the first two may still be extended into its time.
    later = scene.book(GpuAsk(count=5, same_nvlink_domain=True), start=NOON + hours(5))
    assert later.imex_channel == 2
    reservations.release(actor=scene.lena, reservation_id=later.pk, now=NOON)
    assert scene.book(GpuAsk(count=5, same_nvlink_domain=True), start=NOON + hours(5)).imex_channel == 2
    assert scene.book(linked, start=NOON + hours(9)).imex_channel is None


def test_a_gpu_of_any_use_is_blocked_and_commanded_for_its_change_of_mode() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=1)
    Gpu.objects.update(use=Gpu.Use.AUTO)
    GpuState.objects.update(mig=False)
    booked = scene.book(start=NOON + hours(1))
    (row,) = Allocation.objects.filter(reservation=booked)
    assert (row.blocked.lower, row.period.lower) == (NOON + hours(1) - SWITCH, NOON + hours(1))
    refused(Code.NO_CAPACITY, lambda: scene.book(GpuAsk(), start=NOON, duration=hours(1)))
    whole = scene.book(GpuAsk(), start=NOON, duration=hours(1) - 2 * SWITCH)
    assert Command.objects.get(gpu_id=row.gpu_id).layout["mig"] is False
    (row,) = Allocation.objects.filter(reservation=whole)
    assert row.blocked == row.period


def test_the_next_booking_of_an_owner_goes_on_where_the_last_one_ends(scene: Scene) -> None:
    first = scene.book(start=NOON + hours(1))
    scene.book(start=NOON + hours(1), actor=scene.milo)
    add_node(scene.pool, "aaa")
    (was,) = Allocation.objects.filter(reservation=first)
    (goes_on,) = Allocation.objects.filter(reservation=scene.book(start=NOON + hours(2)))
    assert (goes_on.gpu_id, goes_on.span) == (was.gpu_id, was.span)


def two_linked_nodes() -> Scene:
    scene = make_scene()
    for name in ("a", "b"):
        add_node(scene.pool, name, mig_gpus=0, whole_gpus=2)
    Node.objects.update(imex="READY")
    Gpu.objects.update(fabric_cluster="c0ffee00-0000-0000-0000-000000000001", fabric_clique=1)
    return scene


ACROSS = GpuAsk(count=3, same_nvlink_domain=True)


def test_the_nodes_are_told_of_the_channel() -> None:
    scene = two_linked_nodes()
    scene.book(ACROSS)
    gpus = list(Gpu.objects.select_related("node"))
    told = [held.imex for layout in commands.layouts(gpus, NOON).values() for held in layout.held]
    assert told == [0, 0, 0]


def test_one_that_waited_gets_a_channel_with_its_places() -> None:
    scene = two_linked_nodes()
    busy = scene.book(GpuAsk(count=4), actor=scene.sam, team="speech")
    waiting = join(scene, ask=ACROSS)
    assert waiting.imex_channel is None
    reservations.release(actor=scene.sam, reservation_id=busy.pk, now=NOON)
    for gpu in Gpu.objects.select_related("node"):
        settle(scene.pool, gpu)
    lanes.due(now=NOON)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.imex_channel) == ("starting", 0)
