"""services.telemetry_settle: from a command to an active booking; refusals, repairs, what is sent again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Command, Gpu, GpuState, Node, Reservation
from pool.queries import clock
from pool.services import inventory, lanes, reservations
from tests.cast import Cast, SimNode, enrol_node

SECOND = timedelta(seconds=1)


def book(cast: Cast, ask: Any = None, **more: Any) -> Reservation:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=ask or MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
        **more,
    )


def release(cast: Cast, booked: Reservation) -> None:
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())


def state_of(booked: Reservation) -> tuple[str, str]:
    booked.refresh_from_db()
    return booked.state, booked.state_reason


def commands(state: str) -> list[int]:
    return list(
        Command.objects.filter(state=state).order_by("generation").values_list("generation", flat=True)
    )


# --- The journey ------------------------------------------------------------------


def test_a_booking_becomes_active_with_its_uuids_and_ends_clean(cast: Cast, node: SimNode) -> None:
    booked = book(cast, MigAsk(profile="1g.10gb", count=2))
    assert state_of(booked) == ("starting", "waiting_for_node")
    node.follow()
    assert state_of(booked) == ("active", "applied")
    uuids = set(booked.allocations.values_list("mig_uuid", flat=True))
    assert uuids == {i.mig_uuid for i in node.gpus[0].instances}
    assert len(uuids) == 2
    release(cast, booked)
    assert state_of(booked) == ("ending", "released")
    node.follow()
    assert state_of(booked) == ("ended", "released")
    assert GpuState.objects.get().instances == []
    assert (commands("open"), commands("settled")) == ([], [1, 2, 3])


def test_whole_gpus_are_held_without_instances(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2, use="whole")
    booked = book(cast, GpuAsk(models=("H100-80GB",), count=2))
    node.follow()
    assert state_of(booked)[0] == "active"
    assert all(gpu.held and not gpu.mig and not gpu.instances for gpu in node.gpus)
    release(cast, booked)
    node.follow()
    assert state_of(booked)[0] == "ended"


def test_a_whole_gpu_is_not_handed_on_while_the_last_holder_still_computes_on_it(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    first = book(cast, GpuAsk(models=("H100-80GB",)))
    node.follow()
    node.gpus[0].processes = (wire.Process(pid=7, name="python"),)
    release(cast, first)
    next_ = reservations.book(
        actor=cast.sam,
        team="speech",
        pool="main",
        ask=GpuAsk(models=("H100-80GB",)),
        start=clock.now() + timedelta(hours=1),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    node.follow()
    assert state_of(first)[0] == "ending"
    lanes.due(now=clock.now() + timedelta(hours=1))
    node.follow()
    assert state_of(next_) == ("starting", "blocked")
    node.gpus[0].processes = ()
    node.send()
    assert state_of(first)[0] == "ended"
    node.follow()
    assert state_of(next_)[0] == "active"


def test_a_booking_over_two_nodes_is_active_when_both_have_reported(cast: Cast, node: SimNode) -> None:
    other = enrol_node(cast.main, "node-2")
    booked = book(cast, MigAsk(profile="7g.80gb", count=2))
    node.follow()
    assert state_of(booked)[0] == "starting"
    other.follow()
    assert state_of(booked)[0] == "active"


def test_a_report_from_before_the_command_settles_nothing(cast: Cast, node: SimNode) -> None:
    before = node.report()
    booked = book(cast)
    node.send(before)
    assert state_of(booked)[0] == "starting"
    assert commands("open") == [2]


def test_a_release_before_the_carve_is_over_only_when_the_newest_command_was_dealt_with(
    cast: Cast, node: SimNode
) -> None:
    booked = book(cast)
    release(cast, booked)
    node.send()
    assert state_of(booked)[0] == "ending"
    node.follow()
    assert state_of(booked)[0] == "ended"


def test_a_command_that_says_done_without_the_slice_is_not_settled(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.carve()
    node.gpus[0].instances = []
    node.send()
    assert state_of(booked)[0] == "starting"
    assert commands("open") == [2]


def test_a_slice_on_a_lost_gpu_is_not_settled(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.carve()
    node.gpus[0].lost = True
    node.send()
    assert state_of(booked)[0] == "starting"


# --- Refusals -----------------------------------------------------------------------


def refuse(node: SimNode, code: str) -> None:
    node.gpus[0].trouble = wire.Trouble(generation=node.rows()[0].generation, code=code, nvml=23)


def test_a_refusal_is_kept_told_and_tried_again_with_longer_and_longer_waits(
    cast: Cast, node: SimNode
) -> None:
    booked = book(cast)
    refuse(node, "insufficient_resources")
    start = clock.real_now() + 2 * SECOND
    assert node.send(received=start).commands == ()
    assert state_of(booked) == ("starting", "driver_refused")
    assert Command.objects.get(state="open").trouble["code"] == "insufficient_resources"
    sent = []
    for second in range(1, 700):
        # Heard every second, so that only the waits decide.
        Node.objects.update(unknown_since=None, received_at=start + (second - 1) * SECOND)
        if (
            second in (14, 15, 44, 45, 104, 105, 224, 225, 464, 465)
            and node.send(received=start + second * SECOND).commands
        ):
            sent.append(second)
    assert sent == [15, 45, 105, 225, 465]


def test_a_wait_is_never_longer_than_ten_minutes(cast: Cast, node: SimNode) -> None:
    book(cast)
    refuse(node, "driver")
    node.send()
    Command.objects.filter(state="open").update(attempts=30, next_at=clock.real_now())
    received = clock.real_now() + SECOND
    assert node.send(received=received).commands
    assert Command.objects.get(state="open").next_at == received + timedelta(minutes=10)


def test_a_reboot_ends_the_waiting(cast: Cast, node: SimNode) -> None:
    book(cast)
    refuse(node, "reset_required")
    node.send()
    assert node.send(received=clock.real_now() + 2 * SECOND).commands == ()
    node.reboot()
    assert len(node.send(received=clock.real_now() + 3 * SECOND).commands) == 1


def test_redis_that_is_back_ends_the_waiting(cast: Cast, node: SimNode) -> None:
    book(cast)
    refuse(node, "driver")
    node.broker = False
    node.send()
    node.broker = True
    assert len(node.send(received=clock.real_now() + 2 * SECOND).commands) == 1


def test_a_node_that_returns_from_unknown_ends_the_waiting(cast: Cast, node: SimNode) -> None:
    book(cast)
    refuse(node, "driver")
    later = clock.real_now() + 60 * SECOND
    assert node.send(received=later).commands == ()
    assert len(node.send(received=later + SECOND).commands) == 1


def test_an_agent_that_had_not_heard_that_it_may_is_told_again_at_once(cast: Cast, node: SimNode) -> None:
    book(cast)
    refuse(node, "observe")
    (command,) = node.send().commands
    assert command.generation == 2
    assert Command.objects.get(state="open").trouble is None


def test_waits_count_refusals_and_not_reports_of_a_busy_agent(cast: Cast, node: SimNode) -> None:
    book(cast)
    for second in range(2, 8):
        assert node.send(received=clock.real_now() + second * SECOND).commands
    refuse(node, "driver")
    received = clock.real_now() + 9 * SECOND
    node.send(received=received)
    assert Command.objects.get(state="open").next_at == received + 15 * SECOND


def test_nothing_is_sent_while_a_foreign_instance_is_known_to_be_in_the_way(
    cast: Cast, node: SimNode
) -> None:
    card = node.gpus[0]
    booked = book(cast)
    start = booked.allocations.get().span.lower
    card.instances.append(card.instance(19, start, 1, "1g.10gb", owned=False))
    refuse(node, "foreign")
    later = clock.real_now()
    for minutes in (1, 5, 30):
        later += timedelta(minutes=minutes)
        Node.objects.update(received_at=later)
        assert node.send(received=later).commands == ()
    assert state_of(booked) == ("starting", "blocked")
    card.instances.clear()
    assert len(node.send(received=later + SECOND).commands) == 1


def test_a_slice_that_its_last_process_has_left_is_tried_at_once(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    release(cast, booked)
    card = node.gpus[0]
    (old,) = card.instances
    user = wire.Process(pid=4711)
    card.instances = [
        card.instance(19, old.start, 1, old.profile, allocation=old.allocation, processes=(user,))
    ]
    refuse(node, "in_use")
    later = clock.real_now() + 2 * SECOND
    assert node.send(received=later).commands == ()
    card.instances = [card.instance(19, old.start, 1, old.profile, allocation=old.allocation)]
    assert len(node.send(received=later + SECOND).commands) == 1


def test_one_slice_that_is_stuck_does_not_hold_up_another(cast: Cast, node: SimNode) -> None:
    first = book(cast)
    node.follow()
    release(cast, first)
    second = book(cast)
    card = node.gpus[0]
    stuck = card.instances[0]
    node.carve()
    # Both commands are done but for the slice that the driver did not give up.
    card.instances.insert(0, stuck)
    card.generation = 2
    refuse(node, "in_use")
    node.send()
    assert state_of(second)[0] == "active"
    assert state_of(first)[0] == "ending"


# --- Repairs ----------------------------------------------------------------------------


def test_what_a_reboot_has_wiped_is_commanded_again(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    node.reboot()
    (command,) = node.send().commands
    assert (command.generation, command.layout.mig, len(command.layout.held)) == (3, True, 1)
    assert state_of(booked) == ("active", "waiting_for_node")
    node.follow()
    assert state_of(booked) == ("active", "applied")
    assert commands("open") == []


def test_a_slice_that_somebody_has_destroyed_is_made_again(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.follow()
    node.gpus[0].instances.clear()
    assert len(node.send().commands) == 1


def test_a_number_that_was_given_twice_is_followed_by_a_newer_one(cast: Cast, node: SimNode) -> None:
    earlier, later = book(cast), book(cast)
    node.follow()
    # Restored from when the second was booked and not commanded yet; now its number goes to its release.
    Gpu.objects.update(generation=2)
    Command.objects.filter(generation=3).delete()
    release(cast, earlier)
    assert commands("open") == [3]
    second = clock.real_now() + 2 * SECOND
    assert [one.generation for one in node.send(received=second).commands] == [3]  # and is refused
    answer = node.send(received=second + SECOND)
    assert [one.generation for one in answer.commands] == [4]
    node.follow()
    assert (state_of(earlier)[0], state_of(later)[0]) == ("ended", "active")
    assert commands("open") == []


def test_a_gpu_that_is_as_wanted_is_left_alone(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.follow()
    for _ in range(3):
        assert node.send().commands == ()
    assert Command.objects.count() == 2


def test_an_open_command_is_not_doubled_by_a_repair(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.reboot()
    node.send()
    node.send()
    assert Command.objects.count() == 2


def test_a_foreign_instance_is_not_something_to_repair(cast: Cast, node: SimNode) -> None:
    card = node.gpus[0]
    card.instances.append(card.instance(9, 0, 4, "3g.40gb", owned=False))
    assert node.send().commands == ()
    assert Command.objects.count() == 1


def test_nothing_is_repaired_that_could_not_be_read(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.follow()
    node.send(node.report(gpus=(node.gpus[0].report(instances=None),)))
    assert Command.objects.count() == 2


def test_nothing_is_repaired_on_a_gpu_that_is_only_observed_or_frozen(cast: Cast, node: SimNode) -> None:
    node.reboot()
    inventory.freeze(actor=cast.otto, target="gpu", id=node.gpus[0].uuid, frozen=True, now=clock.now())
    assert node.send().commands == ()
    assert Command.objects.count() == 1
    inventory.freeze(actor=cast.otto, target="gpu", id=node.gpus[0].uuid, frozen=False, now=clock.now())
    assert len(node.send().commands) == 1


def test_an_end_while_frozen_is_settled_after_the_thaw(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    inventory.freeze(actor=cast.otto, target="node", id="node-1", frozen=True, now=clock.now())
    release(cast, booked)
    node.send()
    assert state_of(booked)[0] == "ending"
    assert commands("open") == []
    inventory.freeze(actor=cast.otto, target="node", id="node-1", frozen=False, now=clock.now())
    node.follow()
    assert state_of(booked)[0] == "ended"


def test_a_reset_is_not_waited_for_where_the_agent_knows_of_none(cast: Cast, node: SimNode) -> None:
    Gpu.objects.update(reset=1)
    booked = book(cast)
    node.follow()
    release(cast, booked)
    node.follow()
    assert Command.objects.filter(state="open").exists()
    node.send(node.report(wire=1))
    assert not Command.objects.filter(state="open").exists()
    node.send()  # it was updated meanwhile, and is told again what it has not done
    assert Command.objects.get(state="open").layout["reset"] == 1
