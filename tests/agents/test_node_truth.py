"""What befalls a machine is in the next reports of its node: a real agent, from the driver to the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import simulator_world as world
from agents.simulator_state import Store
from pool.core.wire import GpuReport, Happened
from tests.agents.stand_in import Node, StandIn, command, gpu_of, slice_


@pytest.fixture
def portal() -> Iterator[StandIn]:
    with StandIn() as one:
        yield one


@pytest.fixture
def node(portal: StandIn, tmp_path: Path) -> Iterator[Node]:
    """Eight GPUs, the first of which may be carved."""
    one = Node(tmp_path / "node", portal)
    one.join("8xH100-80GB")
    portal.say(manage=(uuids(one)[0],))
    one.start()
    yield one
    one.clear()
    world.stop_processes(one.place.folder)


def uuids(node: Node) -> list[str]:
    return [gpu.uuid for gpu in Store(node.place.folder).read().gpus]


def told_xid(node: Node, portal: StandIn, number: int, index: int, slice: int | None = None) -> Happened:
    """What is told of an error, which comes again until it is: nobody hears those before he registered."""
    gpu = uuids(node)[index]
    while True:
        world.xid(node.place.folder, index, number, slice)
        await_two_more(portal)
        told = [one for report in portal.reports for one in report.happened if one.kind == "xid"]
        for one in told:
            if (one.data["xid"], one.gpu) == (number, gpu):
                return one


def await_two_more(portal: StandIn) -> None:
    seq = portal.reports[-1].seq
    portal.await_report(lambda report: report.seq >= seq + 2)


def test_a_sound_node_tells_what_it_is(node: Node, portal: StandIn) -> None:
    report = portal.await_report(lambda report: len(report.gpus) == 8)
    gpu = report.gpus[0]
    assert (gpu.numa, gpu.throttle, gpu.compute_mode) == (0, ("idle",), "default")
    assert (gpu.ecc_uncorrected, gpu.fabric_state, gpu.fabric_health) == (0, "completed", "healthy")
    assert {(link.kind, link.count) for link in gpu.links or ()} == {("nvswitch", 18), ("p2p", None)}
    assert report.imex is None


def test_wear_of_one_gpu_is_told_of_that_one(node: Node, portal: StandIn) -> None:
    fourth = uuids(node)[3]
    folder = node.place.folder
    world.ecc(folder, 3, uncorrected=2)
    world.remap(folder, 3)
    world.throttle(folder, 3, "hw_thermal")
    gpu = portal.await_gpu(fourth, lambda gpu: gpu.throttle == ("hw_thermal",))
    assert gpu.ecc_uncorrected == 2
    assert gpu.remapped is not None
    assert (gpu.remapped.pending, gpu.remapped.uncorrectable) == (True, 1)
    others = [each for each in portal.reports[-1].gpus if each.uuid != fourth]
    assert {each.ecc_uncorrected for each in others} == {0}


def test_a_lost_gpu_is_told_with_its_error_and_the_seven_others_go_on(node: Node, portal: StandIn) -> None:
    lost = uuids(node)[5]
    portal.await_report(lambda report: len(report.gpus) == 8)
    told_xid(node, portal, 79, 5)
    report = portal.await_report(lambda report: gpu_of(report, lost).lost)
    assert [gpu.uuid for gpu in report.gpus if not gpu.lost] == [each for each in uuids(node) if each != lost]
    world.reboot(node.place.folder)
    portal.await_report(lambda report: not gpu_of(report, lost).lost)
    told_xid(node, portal, 13, 5)


def test_an_error_in_a_slice_names_whose_it_is(node: Node, portal: StandIn) -> None:
    first = uuids(node)[0]
    portal.say(commands=(command(first, 1, slice_("a", 0), slice_("b", 3)),))
    gpu = portal.await_gpu(first, lambda gpu: set(gpu.held) == {"a", "b"})
    second = next(each for each in gpu.instances or () if each.start == 3)
    happened = told_xid(node, portal, 31, 0, slice=1)
    assert (happened.allocation, happened.data["gi"]) == ("b", second.gi)


def test_activity_of_a_slice_comes_with_its_source(node: Node, portal: StandIn) -> None:
    first = uuids(node)[0]
    portal.say(commands=(command(first, 1, slice_("a", 0)),), next_report_s=2.5)
    (made,) = portal.await_gpu(first, lambda gpu: gpu.held == ("a",)).instances or ()
    world.busy(node.place.folder, str(made.mig_uuid), 40)

    def measured(gpu: GpuReport) -> bool:
        (one,) = gpu.instances or (None,)
        return one is not None and last(one.activity_pct) == 40

    (one,) = portal.await_gpu(first, measured).instances or ()
    assert source(one.activity_pct) == source(one.memory_activity_pct) == "gpm"
    assert last(one.memory_activity_pct) == 20


def last(window: object) -> object:
    return window["last"] if isinstance(window, dict) else None


def source(window: object) -> object:
    return window["source"] if isinstance(window, dict) else None
