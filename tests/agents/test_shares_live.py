"""Shares on a whole agent, as a real process: handed out, repaired, and taken back after it was killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import simulator_world as world
from agents.simulator_state import Store
from pool.core import connect
from pool.core.wire import Command, GpuReport, Held, Layout, Share
from tests.agents import mps_stand_in
from tests.agents.mps_stand_in import Program
from tests.agents.stand_in import Node, StandIn

SHARE = Share(memory_mib=20_480, compute_pct=25, limit_pct=25)


def share(allocation: str) -> Held:
    return Held(
        allocation=allocation,
        owner=f"owner of {allocation}",
        profile=None,
        profile_id=None,
        start=0,
        size=8,
        share=SHARE,
        reservation=f"r-{allocation}",
        users=("daemon",),
    )


def up(state: str, *allocations: str) -> Callable[[GpuReport], bool]:
    return lambda gpu: {one.allocation: one.state for one in gpu.shares} == dict.fromkeys(allocations, state)


class Live:
    """A node with one H100 and MPS, and the portal that it reports to."""

    def __init__(self, node: Node, portal: StandIn) -> None:
        self.node = node
        self.portal = portal
        self.uuid = Store(node.place.folder).read().gpus[0].uuid
        self.pipe = Path(connect.pipe(self.uuid, str(node.place.run)))
        portal.say(manage=(self.uuid,))

    def want(self, generation: int, *held: Held) -> None:
        layout = Layout(mig=False, held=held, sharing="mps" if held else None, access="cdi")
        order = Command(
            id=f"c{generation}", node=self.node.name, gpu=self.uuid, generation=generation, layout=layout
        )
        self.portal.say(commands=(order,))

    def await_gpu(self, wanted: Callable[[GpuReport], bool]) -> GpuReport:
        return self.portal.await_gpu(self.uuid, wanted)

    def documents(self) -> set[str]:
        return {path.name for path in (self.node.place.root / "var/run/cdi").glob("*.json")}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with StandIn() as portal:
        node = Node(tmp_path / "node", portal)
        node.join("1xH100-80GB")
        mps_stand_in.install(node.place.root)
        node.start()
        yield Live(node, portal)
        node.clear()
        mps_stand_in.clear_away(node.place.run)
        world.stop_processes(node.place.folder)


def test_shares_are_offered_handed_out_and_taken_back(live: Live) -> None:
    assert live.portal.await_report(lambda report: "mps" in report.sharing).access == ("advisory", "cdi")
    live.want(1, share("a"), share("b"))
    gpu = live.await_gpu(up("ok", "a", "b"))
    assert gpu.compute_mode == "exclusive_process"
    live.await_gpu(lambda gpu: gpu.generation == 1 and set(gpu.held) == {"a", "b"})
    assert live.documents() == {"gpupool.io-slice-a.json", "gpupool.io-slice-b.json"}
    live.want(2, share("b"))
    live.await_gpu(lambda gpu: gpu.generation == 2 and gpu.held == ("b",))
    assert live.documents() == {"gpupool.io-slice-b.json"}
    live.want(3)
    assert live.await_gpu(lambda gpu: gpu.generation == 3).compute_mode == "default"
    assert live.documents() == set()
    assert not (live.pipe / "nvidia-cuda-mps-control.pid").exists()


def test_a_daemon_that_dies_is_told_and_started_anew(live: Live) -> None:
    live.want(1, share("a"))
    live.await_gpu(up("ok", "a"))
    first = (live.pipe / "nvidia-cuda-mps-control.pid").read_text()
    mps_stand_in.kill_daemon(live.pipe)
    live.await_gpu(
        lambda gpu: up("ok", "a")(gpu) and (live.pipe / "nvidia-cuda-mps-control.pid").read_text() != first
    )


def test_a_share_outlives_its_agent_and_ends_with_the_next(live: Live) -> None:
    live.want(1, share("a"))
    live.await_gpu(up("ok", "a"))
    settings = {"CUDA_MPS_PIPE_DIRECTORY": str(live.pipe)}
    with Program(settings) as program:
        assert program.connected()["memory"] == SHARE.memory_mib
        live.node.end(signal.SIGKILL)
        live.want(2)
        live.node.start()
        assert program.allocates(1_000)
        live.await_gpu(lambda gpu: gpu.generation == 2)
    assert live.documents() == set()
