"""Hardware that is lost under bookings: when that is an outage, what fails, what is done again elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.shapes import Class, GpuAsk
from pool.models import (
    Allocation,
    Command,
    Event,
    Fault,
    Gpu,
    GpuState,
    Node,
    Outage,
    Pool,
    Reservation,
)
from pool.queries import clock
from pool.services import health, lanes, outages, reservations
from tests.cast import Cast, enrol_node
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, seen, settle

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
LATE = NOON + 15 * MINUTE


@pytest.fixture
def two_nodes() -> Scene:
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    add_node(made.pool, "b", mig_gpus=0, whole_gpus=1)
    return made


def run(scene: Scene, row: Reservation) -> None:
    """Everything that it holds is seen to be there."""
    for gpu in Gpu.objects.filter(allocations__reservation=row, allocations__holds=True):
        settle(scene.pool, gpu)
    row.refresh_from_db()
    assert row.state == "active"


def gpus_of(row: Reservation) -> list[Gpu]:
    return list(Gpu.objects.filter(allocations__reservation=row).order_by("pk"))


def lose(gpu: Gpu, at: datetime = NOON) -> None:
    """As a report does that shows it lost."""
    GpuState.objects.filter(gpu=gpu).update(lost=True)
    Fault.objects.create(gpu=gpu, kind="lost", action="lost", since=at, last_at=at)
    outages.begin([gpu.pk], now=at)


def find(gpu: Gpu) -> None:
    """As a report does that shows it well again."""
    GpuState.objects.filter(gpu=gpu).update(lost=False)
    Fault.objects.filter(gpu=gpu).update(good=1)


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def successor(row: Reservation) -> Reservation:
    return Reservation.objects.get(continues=row)


# --- The time that cannot be used --------------------------------------------------


def test_it_ends_when_the_gpu_and_the_slice_are_there_again(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    (gpu,) = gpus_of(booked)
    lose(gpu)
    lanes.due(now=NOON + MINUTE)
    assert Outage.objects.get().period.upper is None
    find(gpu)
    Allocation.objects.update(ready_at=None)
    lanes.due(now=NOON + 2 * MINUTE)
    assert Outage.objects.get().period.upper is None
    Allocation.objects.update(ready_at=NOON)
    lanes.due(now=NOON + 3 * MINUTE)
    period = Outage.objects.get().period
    assert (period.lower, period.upper) == (NOON, NOON + 3 * MINUTE)
    assert state(booked)[0] == "active"


def test_it_is_counted_once_for_each_gpu(two_nodes: Scene) -> None:
    booked = two_nodes.book(GpuAsk(count=2))
    run(two_nodes, booked)
    for gpu in gpus_of(booked):
        lose(gpu)
        outages.begin([gpu.pk], now=NOON + MINUTE)
    assert sorted(Outage.objects.values_list("gpu_id", flat=True)) == [gpu.pk for gpu in gpus_of(booked)]


def test_it_ends_with_the_booking(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    lose(gpus_of(booked)[0])
    reservations.release(actor=two_nodes.lena, reservation_id=booked.pk, now=NOON + MINUTE)
    lanes.due(now=NOON + 2 * MINUTE)
    assert Outage.objects.get().period.upper == NOON + 2 * MINUTE


def test_what_has_not_begun_has_none(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    outages.begin([gpu.pk for gpu in gpus_of(booked)], now=NOON)
    assert not Outage.objects.exists()


# --- What fails ---------------------------------------------------------------------


def test_it_fails_after_the_pool_s_time_and_not_before(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    (gpu,) = gpus_of(booked)
    lose(gpu)
    lanes.due(now=LATE - timedelta(seconds=1))
    assert state(booked)[0] == "active"
    lanes.due(now=LATE)
    assert state(booked) == ("failed", "gpu_lost")
    assert booked.ended_at == LATE
    assert not Allocation.objects.filter(holds=True).exists()
    period = Outage.objects.get().period
    assert (period.lower, period.upper) == (NOON, LATE)
    assert Event.objects.filter(verb="reservation.failed", reservation_id=booked.pk).exists()
    assert Command.objects.filter(gpu=gpu, state="open").get().layout["held"] == []
    assert not Reservation.objects.filter(continues=booked).exists()


def test_the_pool_says_how_long_it_waits(two_nodes: Scene) -> None:
    Pool.objects.update(lost_minutes=2)
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    lose(gpus_of(booked)[0])
    lanes.due(now=NOON + 2 * MINUTE)
    assert state(booked)[0] == "failed"


def test_back_in_time_it_does_not_fail(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    (gpu,) = gpus_of(booked)
    lose(gpu)
    find(gpu)
    lanes.due(now=LATE)
    assert state(booked)[0] == "active"
    assert Outage.objects.get().period.upper == LATE


@pytest.mark.parametrize(
    ("rows", "path"), [(Pool, ""), (Node, "pool__"), (Gpu, "node__pool__")], ids=["pool", "node", "gpu"]
)
def test_a_freeze_keeps_it_and_what_is_yet_to_start(two_nodes: Scene, rows: Any, path: str) -> None:
    booked, later = two_nodes.book(WHOLE), two_nodes.book(WHOLE, start=NOON + hours(5))
    run(two_nodes, booked)
    for gpu in Gpu.objects.all():
        lose(gpu)
    before = gpus_of(later)
    rows.objects.filter(**{f"{path}name": "main"}).update(frozen=True)
    lanes.due(now=LATE)
    assert (state(booked)[0], gpus_of(later)) == ("active", before)
    rows.objects.filter(**{f"{path}name": "main"}).update(frozen=False)
    lanes.due(now=LATE)
    assert state(booked)[0] == "failed"


def test_what_it_has_on_other_gpus_ends_first(two_nodes: Scene) -> None:
    booked = two_nodes.book(GpuAsk(count=2))
    run(two_nodes, booked)
    lost, whole = gpus_of(booked)
    lose(lost)
    lanes.due(now=LATE)
    assert state(booked) == ("ending", "gpu_lost")
    assert list(Allocation.objects.filter(holds=True).values_list("gpu_id", flat=True)) == [whole.pk]
    settle(two_nodes.pool, whole, now=LATE + MINUTE)
    assert state(booked) == ("failed", "gpu_lost")


def test_a_start_that_cannot_be_moved_fails_too_and_its_whole_time_is_left(two_nodes: Scene) -> None:
    booked = two_nodes.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(3))
    seen_gpu, unseen = gpus_of(booked)
    settle(two_nodes.pool, seen_gpu)
    lose(unseen)
    lanes.due(now=LATE - timedelta(seconds=1))
    assert state(booked)[0] == "starting"
    lanes.due(now=LATE)
    assert state(booked) == ("ending", "gpu_lost")
    again = successor(booked)
    assert again.period.upper - again.period.lower == hours(3)
    settle(two_nodes.pool, seen_gpu, now=LATE + MINUTE)
    assert state(booked) == ("failed", "gpu_lost")


# --- What is done again --------------------------------------------------------------


def test_what_may_be_restarted_gets_the_rest_of_its_time_elsewhere(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE, klass=Class.BATCH, duration=hours(3), title="epoch 7")
    run(two_nodes, booked)
    (gpu,) = gpus_of(booked)
    lose(gpu, NOON + hours(1))
    at = NOON + hours(1) + 15 * MINUTE
    lanes.due(now=at)
    assert state(booked) == ("failed", "gpu_lost")
    again = successor(booked)
    assert (again.title, again.owner, again.klass, again.restartable) == (
        "epoch 7",
        two_nodes.lena,
        "batch",
        True,
    )
    # Who waits has their turn after what failed, in the same run.
    assert state(again) == ("starting", "waiting_for_node")
    assert again.period.upper - again.period.lower == hours(2)
    (new,) = gpus_of(again)
    assert new != gpu
    run(two_nodes, again)


def test_of_what_was_nearly_over_nothing_is_left(two_nodes: Scene) -> None:
    Pool.objects.update(lost_minutes=0)
    booked = two_nodes.book(WHOLE, klass=Class.BATCH, duration=16 * MINUTE)
    run(two_nodes, booked)
    lose(gpus_of(booked)[0], NOON + 15.5 * MINUTE)
    lanes.due(now=NOON + 15.6 * MINUTE)
    assert state(booked)[0] == "failed"
    assert not Reservation.objects.filter(continues=booked).exists()


# --- What is yet to start -------------------------------------------------------------


def test_a_future_booking_goes_elsewhere_after_the_pool_s_time(two_nodes: Scene) -> None:
    later = two_nodes.book(WHOLE, start=NOON + hours(5))
    (gpu,) = gpus_of(later)
    lose(gpu)
    lanes.due(now=LATE - timedelta(seconds=1))
    assert gpus_of(later) == [gpu]
    lanes.due(now=LATE)
    assert gpus_of(later) != [gpu]
    assert state(later) == ("scheduled", "moved")
    assert (later.period.lower, later.period.upper) == (NOON + hours(5), NOON + hours(6))
    assert Event.objects.filter(verb="reservation.moved", reservation_id=later.pk).count() == 1


def test_where_nothing_else_fits_it_stays(two_nodes: Scene) -> None:
    later = two_nodes.book(WHOLE, start=NOON + hours(5))
    before = gpus_of(later)
    two_nodes.book(WHOLE, start=NOON + hours(5))
    lose(before[0])
    lanes.due(now=LATE)
    assert gpus_of(later) == before
    assert state(later) == ("scheduled", "booked")


def test_a_report_that_finds_the_gpu_settles_nothing_of_what_failed(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    run(two_nodes, booked)
    (gpu,) = gpus_of(booked)
    lose(gpu)
    lanes.due(now=LATE)
    find(gpu)
    gpu.refresh_from_db()
    settle(two_nodes.pool, gpu, seen(gpu, held=[str(Allocation.objects.get().pk)]), now=LATE + MINUTE)
    assert state(booked) == ("failed", "gpu_lost")


# --- As reports tell it -----------------------------------------------------------------


def test_from_the_xid_to_the_restart_elsewhere_and_the_return_of_the_gpu(cast: Cast) -> None:
    """All of it with reports: lost, told, failed, restarted on the other node, given back."""
    nodes = [enrol_node(cast.main, name, use="whole") for name in ("a", "b")]
    now = clock.now()
    booked = reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=GpuAsk(count=1),
        duration=hours(4),
        klass=Class.BATCH,
        now=now,
    )
    for node in nodes:
        node.follow(now=now)
    assert state(booked)[0] == "active"
    hit, other = sorted(nodes, key=lambda node: node.gpus[0].uuid != gpus_of(booked)[0].uuid)
    card = hit.gpus[0]
    xid = wire.Happened(n=1, kind="xid", at=now, gpu=card.uuid, data={"xid": 79})
    card.lost = True
    hit.send(hit.report(happened=(xid,)), now=now + MINUTE)
    assert state(booked) == ("active", "gpu_lost")
    lanes.due(now=now + 16 * MINUTE)
    assert state(booked) == ("failed", "gpu_lost")
    lanes.due(now=now + 16 * MINUTE + timedelta(seconds=2))
    again = successor(booked)
    other.follow(now=now + 17 * MINUTE)
    assert (state(again)[0], gpus_of(again)[0].uuid) == ("active", other.gpus[0].uuid)
    assert again.period.upper - again.period.lower == hours(4) - MINUTE
    card.lost = False
    hit.reboot()
    for _ in range(6):
        hit.follow(now=now + 18 * MINUTE)
    health.give_back(actor=cast.otto, gpu=card.uuid, now=now + 19 * MINUTE)
    assert not Fault.objects.filter(cleared_at=None).exists()
    assert hit.gpus[0].held == ()
