"""services.telemetry: stays and policy in the answer, and the version before as its agent sent it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core import wire
from pool.core.shapes import MigAsk
from pool.models import Blocker, Event, Gpu, GpuState, Node, Pool
from pool.queries import clock
from pool.services import commands, reservations
from tests.cast import Cast, SimNode, enrol_node

#: What an agent of wire 1 sent: of two GPUs, one in MIG mode.
WIRE_1 = Path(__file__).parent / "wire1"


def book(cast: Cast) -> Any:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


# --- Stays and policy --------------------------------------------------------------


def test_the_answer_tells_of_stays_and_policy(cast: Cast, node: SimNode) -> None:
    Pool.objects.update(may_kill=True, grace_seconds=5)
    assert node.send().stays == ()
    row = book(cast)
    answer = node.send()
    assert [(stay.reservation, stay.owner) for stay in answer.stays] == [(str(row.pk), "lena")]
    assert (answer.policy.kill, answer.policy.grace_s) == (True, 5)


def test_an_agent_of_the_version_before_is_answered_in_its_own(cast: Cast, node: SimNode) -> None:
    book(cast)
    answer = node.send(node.report(wire=wire.WIRE - 1))
    assert (answer.wire, answer.stays) == (wire.WIRE - 1, ())


def test_a_report_with_somebody_on_the_node_takes_few_statements(cast: Cast) -> None:
    node = enrol_node(cast.main, count=8)
    for _ in range(10):
        book(cast)
    node.follow()
    with CaptureQueriesContext(connection) as queries:
        node.send()
    assert len([one for one in queries if "SAVEPOINT" not in one["sql"]]) <= 12


# --- The version before, as its agent sent it -----------------------------------------


def old(name: str) -> wire.Report:
    return msgspec.json.decode((WIRE_1 / f"{name}.json").read_bytes(), type=wire.Report)


def told(gpu: Gpu, *held: tuple[str, int, int, int]) -> None:
    """As if the GPU had been commanded so, under its next number."""
    slices = tuple(
        wire.Held(allocation=one, owner="1:1:x", profile="", profile_id=profile, start=start, size=size)
        for one, profile, start, size in held
    )
    layout = wire.Layout(mig=gpu.index == 0, held=slices)
    gpu.wanted, gpu.generation, gpu.managed = commands.builtins(layout), gpu.generation + 1, True
    gpu.use = "mig" if gpu.index == 0 else "whole"
    gpu.save()


def test_reports_of_wire_1_are_understood_as_they_were_sent(cast: Cast) -> None:
    a, b = "0198c6a0-0000-7000-8000-00000000000a", "0198c6a0-0000-7000-8000-00000000000b"
    row = Node.objects.create(pool=cast.main, name="node-1", machine_id="machine-node-1")
    node = SimNode(row, [])
    node.send(old("fresh"))
    first, second = node.rows()
    assert (first.model, first.grid, len(first.profiles)) == ("H100-80GB", 8, 3)
    told(first, (a, 19, 0, 1), (b, 14, 2, 2))
    told(second)
    node.send(old("carved"))
    state = GpuState.objects.get(gpu=first)
    assert [(one["start"], one["profile"], one["allocation"]) for one in state.instances] == [
        (0, "1g.10gb", a),
        (2, "2g.20gb", b),
    ]
    assert state.readings["power_w"]["last"] == 70
    told(first, (b, 14, 2, 2))
    node.send(old("in_use"))
    assert {(one.span.lower, one.kind, one.detail) for one in Blocker.objects.filter(gpu=first)} == {
        (0, "overrun", "sleep 7209 of eve")
    }
    assert Blocker.objects.get(gpu=second).kind == "foreign"
    node.send(old("lost"))
    assert GpuState.objects.get(gpu=second).lost
    assert Node.objects.get().dropped_values == 0
    assert not Event.objects.filter(verb="gpu.observe_forced").exists()
