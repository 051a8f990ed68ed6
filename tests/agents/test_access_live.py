"""Access by systemd on a whole agent: given, taken back after it was killed, given after a boot."""

from __future__ import annotations

import pwd
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agents import simulator_world as world
from agents.simulator_state import Store
from pool.core.wire import Command, GpuReport, Held, Layout
from tests.agents import systemd_stand_in as systemd
from tests.agents.stand_in import Node, StandIn, slice_

ALICE = pwd.getpwnam("daemon").pw_uid
A = msgspec.structs.replace(slice_("a", 0), users=("daemon",))
STRANGER = msgspec.structs.replace(slice_("s", 1), users=("no-such-account",))


class Live:
    """A node with one H100 in MIG mode below a stand-in for systemd."""

    def __init__(self, node: Node, portal: StandIn) -> None:
        self.node = node
        self.portal = portal
        self.root = node.place.root
        self.uuid = Store(node.place.folder).read().gpus[0].uuid
        portal.say(manage=(self.uuid,))

    def want(self, generation: int, *held: Held) -> None:
        layout = Layout(mig=True, held=held, access="unix")
        order = Command(
            id=f"c{generation}", node=self.node.name, gpu=self.uuid, generation=generation, layout=layout
        )
        self.portal.say(commands=(order,))

    def await_gpu(self, wanted: Callable[[GpuReport], bool]) -> GpuReport:
        return self.portal.await_gpu(self.uuid, wanted)

    def opened(self) -> bool:
        """Whether the holder's logins can open the GPU and an instance of it."""
        devices = systemd.may_open(self.root, ALICE)
        return "/dev/nvidia0" in devices and any("nvidia-cap" in one for one in devices)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with StandIn() as portal:
        node = Node(tmp_path / "node", portal)
        node.join("1xH100-80GB", "--mig", "0")
        systemd.install(node.place.root)
        node.start()
        yield Live(node, portal)
        node.clear()
        world.stop_processes(node.place.folder)


def test_a_slice_is_opened_to_its_holder_and_closed_at_its_end(live: Live) -> None:
    assert "unix" in live.portal.await_report(lambda report: bool(report.access)).access
    live.want(1, A)
    live.await_gpu(lambda gpu: gpu.generation == 1 and gpu.held == ("a",))
    assert live.opened()
    live.node.end(signal.SIGKILL)
    live.want(2)
    live.node.start()
    live.await_gpu(lambda gpu: gpu.generation == 2)
    assert systemd.may_open(live.root, ALICE) == set()


def test_a_holder_who_has_no_account_here_is_told_with_the_slice_standing(live: Live) -> None:
    live.want(1, A, STRANGER)
    gpu = live.await_gpu(lambda gpu: gpu.trouble is not None)
    assert gpu.trouble is not None
    assert gpu.trouble.code == "access"
    assert "no-such-account" in gpu.trouble.detail
    assert live.opened()


def test_after_a_boot_it_is_opened_again(live: Live) -> None:
    live.want(1, A)
    live.await_gpu(lambda gpu: gpu.generation == 1 and gpu.held == ("a",))
    live.node.end()
    world.reboot(live.node.place.folder)
    systemd.boot(live.root)
    assert not live.opened()
    seen = len(live.portal.reports)
    live.node.start()
    live.portal.await_report(lambda _: len(live.portal.reports) > seen)
    live.await_gpu(lambda gpu: gpu.generation == 1 and gpu.held == ("a",) and live.opened())
