"""What is told to go really goes, and nothing else: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from agents import processes, simulator_world
from agents.attribution import attribute
from agents.driver import Driver
from agents.ending import Ending
from agents.happened import Log
from tests.agents.people import Node, gpu, held, process, stay
from tests.agents.stand_in import command

TERM = signal.SIGTERM
OVER = stay("a", ending=True)


def test_real_processes_end_for_real(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.hear(OVER)
    ending = Ending(node.stays, Log(node.place), node.ledger)
    with subprocess.Popen(["sleep", "100"]) as child, subprocess.Popen(["sleep", "100"]) as other:
        both = [
            msgspec.structs.replace(
                process(one.pid, allocation=allocation, by="user"),
                uid=os.getuid(),
                started=processes.started(one.pid),
            )
            for one, allocation in ((child, "a"), (other, "b"))
        ]
        ending.step([gpu(*both)])
        assert child.wait(10) == -TERM
        assert other.poll() is None
        other.kill()


def test_of_what_the_driver_shows_only_the_stay_that_is_over_ends(
    driver: Callable[..., tuple[Driver, Path]], tmp_path: Path
) -> None:
    """The whole way: real processes, their environment, attribution, and a signal."""
    user = processes.user_name(os.getuid()) or ""
    one, folder = driver("1xH100-80GB")
    uuid = one.look().gpus[0].uuid
    for reservation in ("r-a", "r-b"):
        simulator_world.process(folder, 0, env={"GPUPOOL_RESERVATION": reservation}, argv=["sleep", "1000"])
    nobodys = simulator_world.process(folder, 0)
    node = Node(tmp_path / "agent")
    stays = [
        stay("a", gpu=uuid, users=(user,), ending=True),
        stay("b", gpu=uuid, users=(user,), owner="another"),
    ]
    node.hear(*stays)
    node.ledger.keep_rules([uuid], False)
    shares = [held("b", users=(user,), share=True), held("c", users=(user,), share=True)]
    node.ledger.want(command(uuid, 1, *shares, mig=False))
    seen = attribute(one.gpu(uuid), node.ledger.gpu(uuid), stays)
    told = {row.pid: row.allocation for row in seen.processes or ()}
    assert sorted(told.values(), key=str) == [None, "a", "b"]
    assert told[nobodys] is None
    Ending(node.stays, Log(node.place), node.ledger).step([seen])
    over = next(pid for pid, allocation in told.items() if allocation == "a")
    for _ in range(10_000):
        if processes.started(over) is None:
            break
        os.sched_yield()
    assert {row.pid for row in one.gpu(uuid).processes or ()} == set(told) - {over}
