"""What reports tell those who hold a slice: the GPU is lost, or a process keeps what is to go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Pool, Reservation
from pool.queries import clock
from pool.queries import reservations as queries
from pool.services import reservations
from tests.cast import Cast, SimGpu, SimNode, enrol_node

WHOLE = GpuAsk(models=("H100-80GB",))
PYTHON = wire.Process(pid=4711, user="milo", name="python")


def book(cast: Cast, ask: Any = None) -> Reservation:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=ask or MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def active(cast: Cast, node: SimNode, ask: Any = None) -> Reservation:
    booked = book(cast, ask)
    node.follow()
    assert state_of(booked) == ("active", "applied")
    return booked


def state_of(booked: Reservation) -> tuple[str, str]:
    booked.refresh_from_db()
    return booked.state, booked.state_reason


def noted(booked: Reservation) -> list[str]:
    return [(one.after or {})["reason"] for one in queries.events(booked) if one.verb == "reservation.noted"]


def settled_changes(node: SimNode) -> int:
    """How often the pool was changed by one more report."""
    before = Pool.objects.get().change
    node.send()
    return Pool.objects.get().change - before


def keep(card: SimGpu, *processes: wire.Process) -> None:
    """The agent has tried the newest command, and the driver does not give up what `processes` use."""
    card.instances = [msgspec.structs.replace(one, processes=processes) for one in card.instances]
    card.trouble = wire.Trouble(generation=card.generation + 1, code="in_use", holders=processes)


# --- Lost -------------------------------------------------------------------------


def test_an_active_booking_stays_active_on_a_lost_gpu_and_says_so_once(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    node.gpus[0].lost = True
    node.send()
    assert state_of(booked) == ("active", "gpu_lost")
    assert settled_changes(node) == 0
    assert noted(booked) == ["gpu_lost"]


def test_a_gpu_that_is_found_again_with_its_slice_is_in_force_again(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    node.gpus[0].lost = True
    node.send()
    node.gpus[0].lost = False
    node.send()
    assert state_of(booked) == ("active", "applied")
    assert settled_changes(node) == 0


def test_a_gpu_that_is_found_again_without_its_slice_waits_for_the_node(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    node.gpus[0].lost = True
    node.send()
    node.reboot()
    node.gpus[0].lost = False
    node.send()
    assert state_of(booked) == ("active", "waiting_for_node")


def test_of_two_lost_gpus_the_last_to_return_ends_the_loss(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2, use="whole")
    booked = active(cast, node, GpuAsk(models=("H100-80GB",), count=2))
    for card in node.gpus:
        card.lost = True
    node.send()
    node.gpus[0].lost = False
    node.send()
    assert state_of(booked) == ("active", "gpu_lost")
    assert settled_changes(node) == 0
    node.gpus[1].lost = False
    node.send()
    assert state_of(booked) == ("active", "applied")
    assert noted(booked) == ["gpu_lost", "applied"]


def test_a_start_that_the_agent_calls_lost_is_not_settled_again_with_each_report(
    cast: Cast, node: SimNode
) -> None:
    booked = book(cast)
    node.gpus[0].trouble = wire.Trouble(generation=node.rows()[0].generation, code="gpu_is_lost")
    node.send()
    assert state_of(booked) == ("starting", "gpu_lost")
    assert settled_changes(node) == 0


# --- Held up ----------------------------------------------------------------------


def test_a_slice_in_use_is_told_once_and_the_reason_of_the_end_stays(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    keep(node.gpus[0], PYTHON)
    node.send()
    assert (state_of(booked), noted(booked)) == (("ending", "released"), ["in_use"])
    keep(node.gpus[0], msgspec.structs.replace(PYTHON, pid=4712))
    node.send()
    assert settled_changes(node) == 0
    assert noted(booked) == ["in_use"]
    node.follow()
    assert state_of(booked) == ("ended", "released")


def test_a_whole_gpu_that_is_still_computed_on_is_told_once(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    booked = active(cast, node, WHOLE)
    node.gpus[0].processes = (PYTHON,)
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    node.follow()
    assert (state_of(booked), noted(booked)) == (("ending", "released"), ["in_use"])
    assert settled_changes(node) == 0
    node.gpus[0].processes = ()
    node.send()
    assert (state_of(booked), noted(booked)) == (("ended", "released"), ["in_use"])


def test_what_only_draws_holds_nothing_up(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    booked = active(cast, node, WHOLE)
    node.gpus[0].processes = (wire.Process(pid=7, name="Xorg", computes=False),)
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    node.follow()
    assert (state_of(booked)[0], noted(booked)) == ("ended", [])


def test_a_slice_that_has_not_been_tried_yet_is_not_held_up_by_another(cast: Cast, node: SimNode) -> None:
    first, second = active(cast, node), active(cast, node)
    reservations.release(actor=cast.lena, reservation_id=first.pk, now=clock.now())
    card = node.gpus[0]
    mine = str(first.allocations.get().pk)
    keep(card)
    card.instances = [
        msgspec.structs.replace(one, processes=(PYTHON,) if one.allocation == mine else ())
        for one in card.instances
    ]
    node.send()
    reservations.release(actor=cast.lena, reservation_id=second.pk, now=clock.now())
    node.send()
    assert (noted(first), noted(second)) == (["in_use"], [])
