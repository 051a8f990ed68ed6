"""The whole agent as a process: what its parts do together for stays, errors, shares and resets."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from agents import config, processes
from agents import simulator_world as world
from agents.agent import Agent
from agents.place import Place
from agents.simulator_state import Store, create_state
from agents.units import Units
from pool.core.wire import Command, GpuReport, Happened, Held, Layout, Policy, Share, Stay
from tests.agents.stand_in import Node, StandIn, command, gpu_of, slice_, whole

#: Whoever runs the tests: simulated processes are his.
ME = pwd.getpwuid(os.getuid()).pw_name
A, B = slice_("a", 0), slice_("b", 1)


@pytest.fixture
def portal() -> Iterator[StandIn]:
    with StandIn() as one:
        yield one


@pytest.fixture
def node(portal: StandIn, tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path / "node", portal)
    yield one
    one.clear()
    world.stop_processes(one.place.folder)


def uuids(node: Node) -> list[str]:
    return [gpu.uuid for gpu in Store(node.place.folder).read().gpus]


def stay(held: Held, gpu: str, **changes: object) -> Stay:
    now = datetime.now(UTC)
    found = Stay(
        allocation=held.allocation,
        reservation=f"r-{held.allocation}",
        gpu=gpu,
        team="t",
        owner="o",
        users=(ME,),
        start=now - timedelta(hours=1),
        end=now + timedelta(hours=1),
    )
    return msgspec.structs.replace(found, **changes)


def order(gpu: str, generation: int, layout: Layout) -> Command:
    return Command(id=f"c{generation}", node="node-1", gpu=gpu, generation=generation, layout=layout)


def told(portal: StandIn, kind: str) -> list[Happened]:
    """What happened of this kind, out of all reports that were taken."""
    return [one for report in portal.reports for one in report.happened if one.kind == kind]


def test_what_a_change_had_paused_is_left_to_systemd_when_the_agent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []
    monkeypatch.setattr(Units, "leave", lambda self: left.append(True))
    create_state(tmp_path, "1xH100-80GB", seed="n")
    own = config.Config(portal="http://p", node="n", token="t", simulated="1xH100-80GB")
    Agent(Place(tmp_path), own, "0").stop(0.1)
    assert left == [True]


def test_at_the_end_what_still_runs_is_told_to_go_and_the_slice_is_taken(node: Node, portal: StandIn) -> None:
    node.join()
    gpu = uuids(node)[0]
    portal.say(manage=(gpu,), commands=(command(gpu, 1, A, B),), stays=(stay(A, gpu), stay(B, gpu)))
    node.start()
    portal.await_gpu(gpu, lambda seen: set(seen.held) == {"a", "b"})
    ending, other = (world.process(node.place.folder, 0, slice) for slice in (0, 1))
    portal.await_gpu(gpu, lambda seen: _whose(seen) == {ending: "a", other: "b"})
    portal.say(
        commands=(command(gpu, 2, B),),
        stays=(stay(A, gpu, ending=True), stay(B, gpu)),
        policy=Policy(grace_s=3600.0),
    )
    portal.await_report(lambda report: bool(told(portal, "signal")))
    assert [one.data["pid"] for one in told(portal, "signal")] == [ending]
    portal.await_gpu(gpu, lambda seen: seen.generation == 2 and seen.held == ("b",))
    assert processes.started(ending) is None
    assert processes.started(other) is not None


def test_while_the_portal_is_away_nobody_is_told_to_go(node: Node, portal: StandIn) -> None:
    node.join()
    gpu = uuids(node)[0]
    over = stay(A, gpu, ending=True)
    portal.say(manage=(gpu,), commands=(command(gpu, 1, A),), stays=(stay(A, gpu),))
    node.start()
    portal.await_gpu(gpu, lambda seen: seen.held == ("a",))
    portal.status = 503
    portal.await_refused(lambda report: report.dropped >= 3)
    pid = world.process(node.place.folder, 0, 0)
    portal.await_refused(lambda report: _whose(gpu_of(report, gpu)) == {pid: "a"})
    seen = len(portal.refused)
    portal.await_refused(lambda report: len(portal.refused) > seen)
    assert processes.started(pid) is not None
    portal.say(stays=(over,), commands=(command(gpu, 2),))
    portal.status = 200
    portal.await_gpu(gpu, lambda seen: seen.generation == 2)
    assert processes.started(pid) is None


def test_a_gpu_that_falls_off_the_bus_takes_none_of_the_seven_others_with_it(
    node: Node, portal: StandIn
) -> None:
    node.join("8xH100-80GB")
    gpus = uuids(node)
    lost = gpus[5]
    commands = tuple(command(gpu, 1, A) for gpu in gpus)
    portal.say(manage=tuple(gpus), commands=commands, stays=tuple(stay(A, gpu) for gpu in gpus))
    node.start()
    portal.await_report(lambda report: all(seen.held == ("a",) for seen in report.gpus), timeout_s=90)
    portal.say(commands=())
    world.xid(node.place.folder, 5, 79)
    report = portal.await_report(lambda report: gpu_of(report, lost).lost)
    assert [seen.uuid for seen in report.gpus] == gpus
    assert [seen.held for seen in report.gpus if not seen.lost] == [("a",)] * 7
    assert gpu_of(report, lost).held == ()
    portal.await_report(lambda report: bool(told(portal, "xid")))


def test_a_gpu_goes_from_shares_to_nobody_to_a_reset_to_slices(node: Node, portal: StandIn) -> None:
    node.join()
    gpu = uuids(node)[0]
    some = Share(memory_mib=1024, compute_pct=10, limit_pct=10)
    held = msgspec.structs.replace(whole("s"), share=some, reservation="r-s", team="t", users=(ME,))
    shared = Layout(mig=False, held=(held,), sharing="timeslice")
    portal.say(manage=(gpu,), commands=(order(gpu, 1, shared),), stays=(stay(held, gpu),))
    node.start()
    seen = portal.await_gpu(gpu, lambda seen: seen.held == ("s",))
    assert [(one.allocation, one.state) for one in seen.shares] == [("s", "ok")]
    portal.say(commands=(order(gpu, 2, Layout(mig=False, prohibited=True, reset=1)),), stays=())
    seen = portal.await_gpu(gpu, lambda seen: seen.generation == 2)
    assert (seen.shares, seen.compute_mode, seen.reset) == ((), "prohibited", 1)
    portal.await_report(lambda report: bool(told(portal, "reset")))
    portal.say(commands=(order(gpu, 3, Layout(mig=True, held=(A,), reset=1)),), stays=(stay(A, gpu),))
    seen = portal.await_gpu(gpu, lambda seen: seen.generation == 3)
    assert (seen.held, seen.mig, seen.reset) == (("a",), True, 1)


def test_foreign_use_is_adopted_as_it_runs(node: Node, portal: StandIn) -> None:
    node.join("2xH100-80GB", "--mig", "0")
    gpu = uuids(node)[0]
    portal.say(manage=(gpu,), commands=(command(gpu, 1, A),))
    node.start()
    portal.await_gpu(gpu, lambda seen: seen.held == ("a",))
    pid = world.process(node.place.folder, 0, 0)
    node.end()
    node.place.record.unlink()  # now nobody knows any more whose it is
    node.start()
    seen = portal.await_gpu(gpu, lambda seen: bool(seen.trouble) and not _owned(seen))
    assert seen.trouble is not None
    assert seen.trouble.code == "foreign"
    adopted = msgspec.structs.replace(slice_("new", 0), adopt=True)
    portal.say(commands=(command(gpu, 2, adopted),), stays=(stay(adopted, gpu),))
    seen = portal.await_gpu(gpu, lambda seen: seen.held == ("new",))
    assert _owned(seen)
    assert _whose(seen) == {pid: "new"}


def _whose(gpu: GpuReport) -> dict[int, str | None]:
    return {one.pid: one.allocation for seen in gpu.instances or () for one in seen.processes or ()}


def _owned(gpu: GpuReport) -> bool:
    return bool(gpu.instances) and all(one.owned for one in gpu.instances or ())
