"""The agent under measurement, as a process of its own: `python -m bench.agent_node --state DIR`.

The whole agent of production on a simulated driver, the only part that is timed
apart. It says in JSON lines when a generation is applied; told `samples N`, it
takes samples one after the other as if 2 s lay between them, and says what they cost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import config
from agents.apply import Applier
from agents.place import Place
from agents.record import Ledger
from agents.simulator import Library
from bench import processes
from pool.core.wire import Command

SAMPLE_S = 2.0
#: A report every 15 s, and a scrape; each is made a little more often than it would be.
REPORT_EVERY = 7
#: The thread that waits for error events asks so often between two samples.
XIDS_EACH = 4
#: Points at which memory is looked at.
LOOKS = 100


class DriverTime:
    """Seconds spent below pynvml, by thread: on the clock, and of the CPU."""

    def __init__(self) -> None:
        self.clock: dict[int, float] = defaultdict(float)
        self.cpu: dict[int, float] = defaultdict(float)

    def watch(self) -> None:
        """From now on every call into the simulated library is timed."""
        run = Library._run

        def timed(library: Library, name: str, *args: Any) -> Any:
            begun, cpu = time.perf_counter(), time.thread_time()
            try:
                return run(library, name, *args)
            finally:
                me = threading.get_ident()
                self.clock[me] += time.perf_counter() - begun
                self.cpu[me] += time.thread_time() - cpu

        Library._run = timed  # type: ignore[method-assign,assignment]


class Clock:
    """Stands where the agent's modules look for `time`: between two samples it goes on by 2 s at once.

    So what is done once a minute is done once in 30 samples here as well.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def go_on(self, seconds: float) -> None:
        self._ahead += seconds

    def put_in(self) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("agents.") and getattr(module, "time", None) is time:
                module.time = self  # type: ignore[attr-defined]


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def tell_applied(driver: DriverTime) -> None:
    """Say when a generation has come and when it is applied, and the driver's share in between."""
    offer, applied = Applier.offer, Ledger.applied
    came: dict[tuple[str, int], float] = {}
    before = 0.0

    def noting(applier: Applier, command: Command) -> bool:
        came.setdefault((command.gpu, command.generation), time.monotonic())
        return offer(applier, command)

    def telling(ledger: Ledger, uuid: str, generation: int) -> None:
        nonlocal before
        applied(ledger, uuid, generation)
        at, spent = time.monotonic(), driver.clock[threading.get_ident()]
        began = came.pop((uuid, generation), at)
        say(applied=generation, gpu=uuid, came=began, at=at, driver_s=spent - before)
        before = spent

    Applier.offer = noting  # type: ignore[method-assign,assignment]
    Ledger.applied = telling  # type: ignore[method-assign,assignment]


def take_samples(agent: Any, samples: int, driver: DriverTime) -> dict[str, Any]:
    """Their cost, with a report, a scrape and the waiting for errors in their proportion."""
    watch, parts = agent._watch, agent._parts
    watch.stop(10.0)
    clock, me, pid = Clock(), threading.get_ident(), os.getpid()
    clock.put_in()
    resident: list[float] = []
    begun, cpu, below = time.monotonic(), time.process_time(), driver.cpu[me]
    for number in range(samples):
        watch._sample()
        for _ in range(XIDS_EACH):
            parts.driver.xids(0)
        if number % REPORT_EVERY == 0:
            watch._report()
            watch._exporter.body(dcgm=True)
        if number % max(1, samples // LOOKS) == 0:
            resident.append(processes.resident_mb(pid))
        clock.go_on(SAMPLE_S)
    return {
        "samples": samples,
        "seconds": time.monotonic() - begun,
        "cpu_s": time.process_time() - cpu,
        "driver_cpu_s": driver.cpu[me] - below,
        "resident_mb": resident,
    }


def obey(agent: Any, driver: DriverTime, end: Callable[[], None]) -> None:
    """Do what is asked on standard input, until it is closed."""
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "samples":
            say(done=take_samples(agent, int(value), driver))
        elif word == "memory":
            say(memory_mb=processes.resident_mb(os.getpid()))
    end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    place = Place(parser.parse_args().state)
    config.forget_foreign_settings()
    own = config.load(place)
    config.use_simulator(place, own)
    driver = DriverTime()
    driver.watch()
    tell_applied(driver)
    from agents.agent import Agent  # here, because it imports Celery

    agent = Agent(config.settle(place, own), own, "bench")
    agent.start()
    threading.Thread(target=obey, args=(agent, driver, lambda: os._exit(0)), daemon=True).start()
    agent.serve(threading.Event())


if __name__ == "__main__":
    main()
