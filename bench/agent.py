"""`python -m bench.agent`: what the agent of a node costs, and how soon it has done what it was told.

One node of `--gpus` GPUs in `--instances` slices, each with a process in it. The
agent is a process of its own, on a simulated driver; a broker and a portal that
only answers stand beside it. Samples follow one another without waiting, each
standing for 2 s: `--samples 43200` are a day of them.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from agents import config, simulator_world
from agents.place import Place
from agents.simulator_state import Store, create_state
from bench.agent_stand import NODE, TOKEN, Broker, Portal, standing
from bench.goals import Board, percentile
from bench.stack import ROOT
from pool.core.wire import Command, Held, Layout, Stay

MODEL = "H100-80GB"
#: The smallest slice of it: profile 1g.10gb, one memory slice, seven on a GPU.
PROFILE, PROFILE_ID, ON_A_GPU = "1g.10gb", 19, 7
COMMANDS = 60
SAMPLES = 3000
SAMPLE_S = 2.0


class Node:
    """The agent's process, and what it says."""

    def __init__(self, folder: Path) -> None:
        call = [sys.executable, "-m", "bench.agent_node", "--state", str(folder)]
        self._process = subprocess.Popen(
            call, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, word: str) -> Any:
        """What it says next under this word."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if word in said:
                return said
        raise RuntimeError("The agent has ended.")

    def ask(self, line: str, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.says(word)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Bench:
    """One node with its slices; `generation` counts the layouts that a GPU was told."""

    def __init__(self, folder: Path, portal: Portal, broker: Broker, gpus: int, instances: int) -> None:
        self.folder = folder / "node"
        self.portal = portal
        self.broker = broker
        create_state(self.folder, f"{gpus}x{MODEL}", seed=NODE, mig=range(gpus))
        self.gpus = [gpu.uuid for gpu in Store(self.folder).read().gpus]
        self.layouts = {uuid: _slots(index, gpus, instances) for index, uuid in enumerate(self.gpus)}
        self.generation = dict.fromkeys(self.gpus, 0)
        own = config.Config(
            portal=portal.url,
            node=NODE,
            token=TOKEN,
            broker_url=broker.url,
            report_s=1.0,
            simulated=f"{gpus}x{MODEL}",
            exporter_port=_free_port(),
        )
        config.store(Place(self.folder), own)
        portal.answer = msgspec.structs.replace(
            portal.answer, manage=tuple(self.gpus), stays=tuple(self._stays()), next_report_s=1.0
        )
        self.node = Node(self.folder)

    def _stays(self) -> Iterator[Stay]:
        now = datetime.now(UTC)
        for uuid, slots in self.layouts.items():
            for one in slots:
                yield Stay(
                    allocation=one.allocation,
                    reservation=one.reservation,
                    gpu=uuid,
                    team=one.team,
                    owner=one.owner,
                    users=one.users,
                    start=now,
                    end=now + timedelta(days=30),
                )

    def command(self, uuid: str, *held: Held) -> Command:
        self.generation[uuid] += 1
        generation = self.generation[uuid]
        layout = Layout(mig=True, held=held)
        return Command(id=f"{uuid}-{generation}", node=NODE, gpu=uuid, generation=generation, layout=layout)

    def fill(self) -> None:
        """All slices made, and a process in each but the first GPU's last, which comes and goes."""
        wanted = [self.command(uuid, *slots) for uuid, slots in self.layouts.items()]
        self.portal.answer = msgspec.structs.replace(self.portal.answer, commands=tuple(wanted))
        self.portal.await_held({one.allocation for slots in self.layouts.values() for one in slots})
        self.portal.answer = msgspec.structs.replace(self.portal.answer, commands=(), next_report_s=15.0)
        for index, slots in enumerate(self.layouts.values()):
            for number in range(len(slots) - (index == 0)):
                simulator_world.process(self.folder, index, number)

    def apply_once(self, *held: Held) -> tuple[float, float]:
        """Milliseconds from sending a layout of the first GPU to having it, and to having it applied,
        the driver's time aside.

        Returns when it is reported, too, so that the next one does not meet the report of this one.
        """
        command = self.command(self.gpus[0], *held)
        others = {one.allocation for uuid in self.gpus[1:] for one in self.layouts[uuid]}
        sent = time.monotonic()
        self.broker.send(command)
        said = self.node.says("applied")
        while (said["gpu"], said["applied"]) != (command.gpu, command.generation):
            said = self.node.says("applied")
        self.portal.await_held(others | {one.allocation for one in held})
        came, applied = float(said["came"]) - sent, float(said["at"]) - sent - float(said["driver_s"])
        return came * 1000, applied * 1000

    def end(self) -> None:
        self.node.end()
        simulator_world.stop_processes(self.folder)


def _slots(index: int, gpus: int, instances: int) -> tuple[Held, ...]:
    """The slices of one GPU: `instances` over all, as evenly as they go."""
    count = instances // gpus + (index < instances % gpus)
    return tuple(
        Held(
            allocation=f"allocation-{index}-{start}",
            owner=f"owner-{index}-{start}",
            profile=PROFILE,
            profile_id=PROFILE_ID,
            start=start,
            size=1,
            reservation=f"reservation-{index}-{start}",
            team="vision",
            users=("nobody",),
        )
        for start in range(count)
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def bench(gpus: int, instances: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with standing(folder) as (portal, broker):
            one = Bench(folder, portal, broker, gpus, instances)
            try:
                one.fill()
                yield one
            finally:
                one.end()


def commands(one: Bench, board: Board, count: int) -> None:
    """The last slice of the first GPU goes and comes, while the agent samples and reports as always."""
    slots = one.layouts[one.gpus[0]]
    taken = [one.apply_once(*(slots[:-1] if number % 2 == 0 else slots)) for number in range(count)]
    applied = [done for _, done in taken]
    board.at_most("agent.command_came_median", statistics.median(came for came, _ in taken), "ms", 15)
    board.at_most("agent.command_applied_median", statistics.median(applied), "ms", 50)
    board.at_most("agent.command_applied_p95", percentile(applied, 0.95), "ms", 50)


def samples(one: Bench, board: Board, count: int) -> None:
    done = one.node.ask(f"samples {count}", "done")["done"]
    cost_ms = done["cpu_s"] / count * 1000
    driver_ms = done["driver_cpu_s"] / count * 1000
    resident = done["resident_mb"]
    board.at_most("agent.sample_cpu", cost_ms, "ms", 30)
    board.at_most("agent.sample_cpu_without_simulated_driver", cost_ms - driver_ms, "ms", 30)
    board.at_most("agent.share_of_a_core", cost_ms / 1000 / SAMPLE_S * 100, "%", 2)
    board.at_most("agent.memory", max(resident), "MB", 70)
    # What is kept fills up in the first half of the run; a leak would show in the second as well.
    half = max(1, len(resident) // 2)
    growth = max(resident[half:] or resident) - max(resident[:half])
    board.at_most("agent.memory_growth", growth, "MB", 0.5)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--instances", type=int, default=56)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--commands", type=int, default=COMMANDS)
    ask = parser.parse_args(argv)
    if not 1 <= ask.instances <= ask.gpus * ON_A_GPU:
        parser.error(f"{ask.gpus} GPUs have 1 to {ask.gpus * ON_A_GPU} slices")
    board = Board()
    with bench(ask.gpus, ask.instances) as one:
        commands(one, board, ask.commands)
        samples(one, board, ask.samples)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
