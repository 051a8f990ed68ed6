"""Starts that are due: what may go, what waits and why, what goes elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Allocation, Blocker, Event, Gpu, GpuState, Node, Pool, QuotaLine, Reservation
from pool.services import locks, reservations, starts
from tests.scene import HALF, NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

START = NOON + hours(1)
FULL = MigAsk(profile="7g.80gb")


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


@locks.use_case
def start(scene: Scene, rows: Sequence[Reservation], now: datetime = START, **more: Any) -> set[int]:
    return starts.start(locks.pool(scene.pool.pk), rows, now, **more)


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def wanted(row: Reservation) -> set[bool]:
    slices = Allocation.objects.filter(reservation=row, holds=True)
    return {at is not None for at in slices.values_list("wanted_at", flat=True)}


def test_what_nothing_is_in_the_way_of_is_wanted_at_once(scene: Scene) -> None:
    booked = scene.book(start=START)
    assert start(scene, [booked]) == {Gpu.objects.get().pk}
    assert state(booked) == ("starting", "waiting_for_node")
    assert wanted(booked) == {True}


@pytest.mark.parametrize(
    ("rows", "values", "reason"),
    [
        (Pool, {"frozen": True}, "frozen"),
        (Gpu, {"frozen": True}, "frozen"),
        (Node, {"frozen": True}, "frozen"),
        (Node, {"agent_frozen": True}, "frozen"),
        (Gpu, {"managed": False}, "frozen"),
        (Node, {"unknown_since": NOON}, "node_unknown"),
        (GpuState, {"lost": True}, "gpu_lost"),
        (Gpu, {"retired_at": NOON}, "retired"),
    ],
)
def test_it_waits_and_says_why_and_starts_when_that_is_over(
    scene: Scene, rows: Any, values: dict[str, Any], reason: str
) -> None:
    booked = scene.book(start=START)
    usual = rows.objects.values(*values).get()
    rows.objects.update(**values)
    assert start(scene, [booked]) == set()
    assert (state(booked), wanted(booked)) == (("starting", reason), {False})
    rows.objects.update(**usual)
    assert start(scene, [booked]) == {Gpu.objects.get().pk}
    assert (state(booked), wanted(booked)) == (("starting", "waiting_for_node"), {True})


def test_a_blocker_on_another_span_is_not_in_the_way(scene: Scene) -> None:
    booked = scene.book(HALF, start=START)
    span = Allocation.objects.get().span
    free = (4, 8) if span.lower == 0 else (0, 4)
    Blocker.objects.create(gpu=Gpu.objects.get(), span=free, since=NOON, kind="foreign")
    assert start(scene, [booked])


def test_a_blocker_on_its_span_is_waited_for(scene: Scene) -> None:
    booked = scene.book(HALF, start=START)
    span = Allocation.objects.get().span
    blocker = Blocker.objects.create(gpu=Gpu.objects.get(), span=span, since=NOON, kind="foreign")
    start(scene, [booked])
    assert state(booked) == ("starting", "blocked")
    blocker.delete()
    start(scene, [booked])
    assert state(booked) == ("starting", "waiting_for_node")


def test_another_owners_booking_that_is_not_clean_is_waited_for(scene: Scene) -> None:
    first = scene.book(FULL)
    later = scene.book(FULL, actor=scene.sam, team="speech", start=START)
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=START)
    assert start(scene, [later]) == set()
    assert (state(later), wanted(later)) == (("starting", "waiting_for_cleanup"), {False})


def test_a_booking_whose_end_was_not_dealt_with_yet_is_waited_for(scene: Scene) -> None:
    scene.book(FULL)
    later = scene.book(FULL, start=START)
    start(scene, [later])
    assert state(later) == ("starting", "waiting_for_cleanup")


def test_the_same_stay_goes_on_without_waiting(scene: Scene) -> None:
    first = scene.book(FULL)
    later = scene.book(FULL, start=START)
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=START)
    assert start(scene, [later]) == {Gpu.objects.get().pk}


def test_another_owner_of_the_same_team_is_another_stay(scene: Scene) -> None:
    first = scene.book(FULL)
    later = scene.book(FULL, start=START, owner="milo")
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=START)
    assert start(scene, [later]) == set()


def test_all_of_a_booking_starts_or_nothing() -> None:
    scene = make_scene()
    add_node(scene.pool, "a")
    add_node(scene.pool, "b")
    booked = scene.book(MigAsk(profile="7g.80gb", count=2), start=START)
    Node.objects.filter(name="b").update(frozen=True)
    assert start(scene, [booked]) == set()
    assert wanted(booked) == {False}


# --- Elsewhere --------------------------------------------------------------------


@pytest.fixture
def two_nodes() -> Scene:
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    add_node(made.pool, "b", mig_gpus=0, whole_gpus=1)
    return made


def node_of(row: Reservation) -> str:
    return Allocation.objects.get(reservation=row).gpu.node.name


def test_on_an_unknown_node_it_is_placed_elsewhere_for_the_same_time(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE, start=START)
    old = node_of(booked)
    Node.objects.filter(name=old).update(unknown_since=NOON)
    touched = start(two_nodes, [booked])
    assert node_of(booked) != old
    assert touched == {Allocation.objects.get(reservation=booked).gpu_id}
    assert (state(booked), wanted(booked)) == (("starting", "moved"), {True})
    assert Allocation.objects.get(reservation=booked).period.upper == booked.period.upper
    moved = Event.objects.get(verb="reservation.moved")
    assert moved.before["allocations"][0]["gpu_id"] != moved.after["allocations"][0]["gpu_id"]


def test_with_nothing_free_elsewhere_it_stays_and_says_so(two_nodes: Scene) -> None:
    booked, other = two_nodes.book(WHOLE, start=START), two_nodes.book(WHOLE, start=START)
    Node.objects.filter(name=node_of(booked)).update(unknown_since=NOON)
    start(two_nodes, [booked, other])
    assert state(booked) == ("starting", "node_unknown")
    assert state(other) == ("starting", "waiting_for_node")


def test_another_model_that_quota_does_not_allow_is_no_way_out() -> None:
    scene = make_scene()
    add_node(scene.pool, "a", mig_gpus=0, whole_gpus=1)
    add_node(scene.pool, "b", mig_gpus=0, whole_gpus=1, model="A100-80GB")
    QuotaLine.objects.filter(team=scene.vision).update(model="H100-80GB")
    booked = scene.book(GpuAsk(count=1), start=START)
    Node.objects.filter(name="a").update(unknown_since=NOON)
    start(scene, [booked])
    assert (state(booked), node_of(booked)) == (("starting", "node_unknown"), "a")


def test_a_freeze_keeps_it_where_it_is(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE, start=START)
    old = node_of(booked)
    Node.objects.filter(name=old).update(frozen=True)
    start(two_nodes, [booked], now=START + hours(0.5))
    assert (node_of(booked), state(booked)) == (old, ("starting", "frozen"))


def test_a_blocker_is_waited_for_a_minute_and_then_left(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE, start=START)
    gpu = Allocation.objects.get(reservation=booked).gpu
    Blocker.objects.create(gpu=gpu, span=(0, 8), since=NOON, kind="overrun")
    start(two_nodes, [booked], now=START + hours(1 / 61))
    assert state(booked) == ("starting", "blocked")
    start(two_nodes, [booked], now=START + hours(1 / 60))
    assert state(booked) == ("starting", "moved")
    assert Allocation.objects.get(reservation=booked).gpu != gpu


def test_only_some_are_placed_anew_at_a_time(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE, start=START)
    Node.objects.filter(name=node_of(booked)).update(unknown_since=NOON)
    start(two_nodes, [booked], moves=0)
    assert state(booked) == ("starting", "node_unknown")
    start(two_nodes, [booked], moves=1)
    assert state(booked) == ("starting", "moved")


def test_those_that_fit_nowhere_do_not_keep_the_rest_from_a_try() -> None:
    scene = make_scene()
    add_node(scene.pool, "a", mig_gpus=1, whole_gpus=2)
    stuck = [scene.book(WHOLE, start=START) for _ in range(2)]
    fits = scene.book(start=START)
    Node.objects.filter(name="a").update(unknown_since=NOON)
    add_node(scene.pool, "b")
    rows = [*stuck, fits]
    for second in range(0, 6, 2):
        start(scene, rows, now=START + timedelta(seconds=second), moves=1)
        rows = [row for row in rows if state(row)[1] == "node_unknown"]
    assert (state(fits)[1], [state(row)[1] for row in stuck]) == ("moved", ["node_unknown"] * 2)
