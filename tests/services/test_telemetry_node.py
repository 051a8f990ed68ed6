"""services.telemetry_node: what a report tells of the node itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk
from pool.models import Command, Event, Gpu, Node, Pool
from pool.queries import clock
from pool.services import reservations
from tests.cast import Cast, SimNode


def book(cast: Cast) -> Any:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def test_it_keeps_what_the_node_offers(node: SimNode) -> None:
    node.send(
        node.report(
            sharing=("mps", "timeslice"),
            access=("advisory", "cdi"),
            imex="READY",
            exporter=9401,
            dropped=3,
            run="/srv/x",
        )
    )
    row = Node.objects.get()
    assert (row.sharing_offered, row.access_offered) == (["mps", "timeslice"], ["advisory", "cdi"])
    assert (row.imex, row.exporter_port, row.dropped_reports) == ("READY", 9401, 3)
    assert row.run_folder == "/srv/x"


def test_what_makes_no_sense_is_left_out(node: SimNode) -> None:
    node.send(
        node.report(
            sharing=("mps", "magic"),
            access=("<b>",),
            imex="not a word",
            exporter=70_000,
            dropped=-1,
            run="/srv/$(id)",
            managed_by=("a b",),
        )
    )
    row = Node.objects.get()
    assert (row.sharing_offered, row.access_offered, row.imex) == (["mps"], [], "")
    assert row.run_folder == ""
    assert (row.exporter_port, row.dropped_reports, row.managed_by) == (None, 0, [])
    assert row.dropped_values == 2


def test_a_node_that_somebody_else_manages_is_only_looked_at(cast: Cast, node: SimNode) -> None:
    book(cast)
    change = Pool.objects.get().change
    answer = node.send(
        node.report(managed_by=("slurmd", "device-plugin")), received=clock.real_now() + timedelta(seconds=2)
    )
    assert (answer.manage, answer.commands) == ((), ())
    assert Node.objects.get().managed_by == ["device-plugin", "slurmd"]
    assert Pool.objects.get().change == change + 1
    event = Event.objects.get(verb="node.managed_by")
    assert event.after == {"node": "node-1", "managed_by": ["device-plugin", "slurmd"]}
    assert Gpu.objects.get().managed  # what the operator has set stays, for when the other is gone


def test_a_gpu_that_an_operator_has_taken_from_the_other_is_carved(cast: Cast, node: SimNode) -> None:
    Gpu.objects.update(excluded=True)
    assert node.send(node.report(managed_by=("slurmd",))).manage == (node.gpus[0].uuid,)
    book(cast)
    assert Command.objects.filter(state="open").exists()


def test_when_the_other_is_gone_what_was_held_back_is_commanded(cast: Cast, node: SimNode) -> None:
    row = book(cast)
    node.follow()
    node.send(node.report(managed_by=("slurmd",)))
    reservations.release(actor=cast.lena, reservation_id=row.pk, now=clock.now())
    assert not Command.objects.filter(state="open").exists()
    node.send(node.report(managed_by=()))
    assert Command.objects.get(state="open").layout["held"] == []


def test_a_report_of_the_version_before_says_nothing_about_others(node: SimNode) -> None:
    node.send(node.report(managed_by=("slurmd",), sharing=("mps",)))
    node.send(node.report(wire=wire.WIRE - 1))
    row = Node.objects.get()
    assert (row.managed_by, row.sharing_offered) == (["slurmd"], ["mps"])


@pytest.mark.parametrize("kind", ["managed_by", "sharing", "access"])
def test_a_list_without_end_is_cut(node: SimNode, kind: str) -> None:
    node.send(node.report(**{kind: tuple(f"x{n}" for n in range(1000))}))
    assert len(Node.objects.get().managed_by) <= 16


def test_placing_where_somebody_else_manages_is_refused(cast: Cast, node: SimNode) -> None:
    node.send(node.report(managed_by=("slurmd",)))
    with pytest.raises(Refusal) as refused:
        book(cast)
    assert refused.value.code == Code.NO_CAPACITY


def test_a_boot_is_told_once_to_each_booking_that_was_active(cast: Cast, node: SimNode) -> None:
    book(cast)
    active = book(cast)
    node.follow()
    later = book(cast)  # wanted, and not there yet
    node.reboot()
    node.send()
    node.follow()
    told = Event.objects.filter(verb="reservation.node_booted")
    assert told.count() == 2
    one = told.get(reservation_id=active.pk)
    assert (one.actor_label, one.team_id, one.after) == ("node:node-1", active.team_id, {"node": "node-1"})
    assert not told.filter(reservation_id=later.pk).exists()


def test_the_first_boot_that_is_heard_of_is_no_news(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.follow()
    Node.objects.update(boot_id="")  # it has joined anew
    node.send()
    assert not Event.objects.filter(verb="reservation.node_booted").exists()
