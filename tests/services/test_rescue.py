"""Bookings wanted on a GPU out of reach: what is placed anew, what stays, what a node that returns does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.shapes import MigAsk
from pool.models import Allocation, Blocker, Command, Event, Gpu, GpuState, Node, Pool, Reservation
from pool.queries import clock
from pool.services import lanes, reservations, starts
from tests.cast import Cast, SimNode, enrol_node
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db

LATER = NOON + timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def two_nodes() -> Scene:
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    add_node(made.pool, "b", mig_gpus=0, whole_gpus=1)
    return made


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def places(row: Reservation) -> list[str]:
    """The nodes that hold something of it."""
    held = Allocation.objects.filter(reservation=row, holds=True).order_by("gpu__node__name")
    return list(held.values_list("gpu__node__name", flat=True))


def old_place(row: Reservation) -> Gpu:
    return Gpu.objects.get(allocations__reservation=row, allocations__left_at__isnull=False)


def held(gpu: Gpu) -> list[str]:
    """The allocations in what the GPU was last commanded to look like."""
    wanted = Gpu.objects.get(pk=gpu.pk).wanted
    assert wanted is not None
    return [one["allocation"] for one in wanted["held"]]


OUT_OF_REACH: list[tuple[Any, dict[str, Any]]] = [
    (Node, {"unknown_since": NOON}),
    (GpuState, {"lost": True}),
    (Gpu, {"retired_at": NOON}),
]


def strike(rows: Any, values: dict[str, Any], node: str) -> None:
    path = {Node: "name", Gpu: "node__name", GpuState: "gpu__node__name", Pool: "nodes__name"}[rows]
    assert rows.objects.filter(**{path: node}).update(**values) == 1


@pytest.mark.parametrize(("rows", "values"), OUT_OF_REACH)
def test_what_is_wanted_where_nobody_answers_is_placed_elsewhere(
    two_nodes: Scene, rows: Any, values: dict[str, Any]
) -> None:
    booked = two_nodes.book(WHOLE)
    old = Allocation.objects.get()
    strike(rows, values, old.gpu.node.name)
    lanes.due(now=LATER)
    left, new = Allocation.objects.order_by("pk")
    assert (state(booked), new.wanted_at) == (("starting", "moved"), LATER)
    assert (left.pk, left.holds, left.left_at, left.cleaned_at) == (old.pk, False, LATER, None)
    assert (new.holds, new.left_at, new.period.upper) == (True, None, booked.period.upper)
    assert new.gpu_id != left.gpu_id
    assert held(new.gpu) == [str(new.pk)]
    moved = Event.objects.get(verb="reservation.moved")
    for told, one in ((moved.before, left), (moved.after, new)):
        assert told is not None
        assert [each["id"] for each in told["allocations"]] == [str(one.pk)]


def test_where_it_was_it_is_not_wanted_any_more(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    before = Allocation.objects.get().gpu
    strike(Node, {"unknown_since": NOON}, before.node.name)
    lanes.due(now=LATER)
    after = old_place(booked)
    assert (after.pk, after.generation, held(after)) == (before.pk, before.generation + 1, [])


def test_a_gpu_that_is_missing_from_reports_is_left_after_the_fence(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    old = Allocation.objects.get().gpu
    Blocker.objects.create(gpu=old, span=(0, 8), since=NOON, kind="unknown")
    lanes.due(now=NOON + starts.FENCE - timedelta(seconds=1))
    assert places(booked) == [old.node.name]
    lanes.due(now=NOON + starts.FENCE)
    assert places(booked) != [old.node.name]


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (Pool, {"frozen": True}),
        (Node, {"frozen": True}),
        (Node, {"agent_frozen": True}),
        (Gpu, {"frozen": True}),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_frozen_it_stays_where_it_is_wanted(
    two_nodes: Scene, rows: Any, values: dict[str, Any], lost: bool
) -> None:
    booked = two_nodes.book(WHOLE)
    (old,) = places(booked)
    strike(rows, values, old)
    strike(*OUT_OF_REACH[1 if lost else 0], old)
    before = Event.objects.count()
    lanes.due(now=LATER)
    assert (places(booked), state(booked), Event.objects.count()) == (
        [old],
        ("starting", "waiting_for_node"),
        before,
    )


def test_a_node_that_is_merely_slow_is_waited_for(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    old = places(booked)
    lanes.due(now=NOON + hours(0.9))
    assert (places(booked), state(booked)) == (old, ("starting", "waiting_for_node"))


def test_of_a_booking_with_a_slice_that_was_seen_nothing_is_moved() -> None:
    scene = make_scene()
    for name in ("a", "b", "c"):
        add_node(scene.pool, name)
    booked = scene.book(MigAsk(profile="7g.80gb", count=2))
    seen_on, unseen_on = places(booked)
    settle(scene.pool, Gpu.objects.get(node__name=seen_on))
    strike(Node, {"unknown_since": NOON}, unseen_on)
    lanes.due(now=LATER)
    assert (places(booked), state(booked)[1]) == ([seen_on, unseen_on], "waiting_for_node")


def test_all_of_a_booking_is_placed_anew_and_counts_once() -> None:
    scene = make_scene()
    for name in ("a", "b", "c"):
        add_node(scene.pool, name)
    booked = scene.book(MigAsk(profile="7g.80gb", count=2))
    charge = booked.charge_milli
    stays, gone = places(booked)
    strike(Node, {"unknown_since": NOON}, gone)
    lanes.due(now=LATER)
    (free,) = {"a", "b", "c"} - {stays, gone}
    assert places(booked) == sorted([stays, free])
    assert Allocation.objects.filter(reservation=booked, left_at__isnull=False).count() == 2
    booked.refresh_from_db()
    assert booked.charge_milli == charge
    counts = {gpu.node.name: len(held(gpu)) for gpu in Gpu.objects.select_related("node")}
    assert counts == {stays: 1, free: 1, gone: 0}


def test_wanted_with_nothing_free_elsewhere_it_stays_with_its_reason(two_nodes: Scene) -> None:
    booked, _ = two_nodes.book(WHOLE), two_nodes.book(WHOLE)
    (old,) = places(booked)
    strike(Node, {"unknown_since": NOON}, old)
    before = (Event.objects.count(), Pool.objects.get().change, Gpu.objects.get(node__name=old).generation)
    lanes.due(now=LATER)
    assert (places(booked), state(booked)) == ([old], ("starting", "waiting_for_node"))
    assert (
        Event.objects.count(),
        Pool.objects.get().change,
        Gpu.objects.get(node__name=old).generation,
    ) == before


def test_a_second_look_moves_nothing_twice(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    strike(Node, {"unknown_since": NOON}, places(booked)[0])
    lanes.due(now=LATER)
    rows = (Allocation, Event, Command)
    before = [table.objects.count() for table in rows], Pool.objects.get().change, places(booked)
    assert lanes.due(now=LATER) == lanes.Swept()
    assert ([table.objects.count() for table in rows], Pool.objects.get().change, places(booked)) == before


def test_only_so_many_are_rescued_at_a_time_and_each_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = make_scene()
    add_node(scene.pool, "a", mig_gpus=1, whole_gpus=2)
    stuck = [scene.book(WHOLE) for _ in range(2)]
    fits = scene.book()
    strike(Node, {"unknown_since": NOON}, "a")
    add_node(scene.pool, "b")
    monkeypatch.setattr(starts, "MOST_MOVES", 1)
    for second in range(0, 6, 2):
        lanes.due(now=NOON + timedelta(seconds=second))
    assert (state(fits)[1], [state(row)[1] for row in stuck]) == ("moved", ["waiting_for_node"] * 2)


def test_a_booking_that_was_moved_is_ended_like_any_other(two_nodes: Scene) -> None:
    booked = two_nodes.book(WHOLE)
    strike(Node, {"unknown_since": NOON}, places(booked)[0])
    lanes.due(now=LATER)
    new = Allocation.objects.get(holds=True).gpu
    settle(two_nodes.pool, new, now=LATER)
    assert state(booked) == ("active", "applied")
    reservations.release(actor=two_nodes.lena, reservation_id=booked.pk, now=LATER)
    settle(two_nodes.pool, new, now=LATER)
    assert state(booked) == ("ended", "released")
    assert Allocation.objects.filter(cleaned_at=None, left_at=LATER).count() == 1


# --- The node returns -------------------------------------------------------------


def book(cast: Cast, who: str, team: str, ask: MigAsk) -> Reservation:
    return reservations.book(
        actor=getattr(cast, who),
        team=team,
        pool="main",
        ask=ask,
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def fall_silent(node: SimNode) -> None:
    long_ago = clock.real_now() - timedelta(minutes=5)
    Node.objects.filter(pk=node.row.pk).update(received_at=long_ago)


def moved_away(cast: Cast, node: SimNode, *, made: bool) -> tuple[Reservation, SimNode]:
    """A booking that `node` has `made`, or not, when it falls silent, and the node that it is moved to."""
    booked = book(cast, "lena", "vision", MigAsk(profile="1g.10gb"))
    if made:
        node.carve()
    fall_silent(node)
    other = enrol_node(cast.main, "node-2")
    lanes.due(now=clock.now())
    assert state(booked) == ("starting", "moved")
    assert booked.allocations.get(holds=True).gpu == other.rows()[0]
    return booked, other


def test_a_node_that_returns_removes_what_was_given_up_and_is_not_forced_to_observe(
    cast: Cast, node: SimNode
) -> None:
    booked, _ = moved_away(cast, node, made=True)
    before = (state(booked), booked.version)
    card = node.gpus[0]
    (old,) = card.held
    node.send(received=clock.real_now() + 2 * SECOND)
    answer = node.send(received=clock.real_now() + 4 * SECOND)
    assert (state(booked), booked.version) == before
    left = booked.allocations.get(pk=old)
    assert (left.holds, left.ready_at, left.mig_uuid) == (False, None, "")
    (command,) = answer.commands
    assert (command.gpu, command.layout.held) == (card.uuid, ())
    card.carve(command)
    node.send(received=clock.real_now() + 6 * SECOND)
    assert (card.instances, node.rows()[0].managed) == ([], True)
    assert (state(booked), booked.version) == before
    assert not Command.objects.filter(node=node.row, state="open").exists()


def test_a_node_that_cannot_remove_it_yet_is_not_forced_to_observe_either(cast: Cast, node: SimNode) -> None:
    booked, _ = moved_away(cast, node, made=True)
    card = node.gpus[0]
    card.trouble = wire.Trouble(generation=node.rows()[0].generation, code="in_use")
    node.send()
    assert (len(card.held), node.rows()[0].managed) == (1, True)
    assert state(booked) == ("starting", "moved")


def test_what_was_given_up_before_it_was_made_is_never_made(cast: Cast, node: SimNode) -> None:
    booked, other = moved_away(cast, node, made=False)
    node.follow()
    node.follow()
    assert (node.gpus[0].instances, node.rows()[0].managed) == ([], True)
    other.follow()
    assert state(booked) == ("active", "applied")
    node.send()
    assert state(booked) == ("active", "applied")


def test_who_comes_after_what_was_given_up_has_an_instance_of_its_own(cast: Cast, node: SimNode) -> None:
    moved_away(cast, node, made=True)
    (old,) = node.gpus[0].held
    node.send()
    node.send()  # it is back
    next_one = book(cast, "sam", "speech", MigAsk(profile="7g.80gb"))
    assert next_one.allocations.get().gpu == node.rows()[0]
    node.send()
    assert state(next_one)[0] == "starting"
    node.follow()
    assert state(next_one) == ("active", "applied")
    assert old not in node.gpus[0].held
