"""Keeps a handful of processes running and ends them all, also those of an earlier, killed run.

It knows nothing of what the processes do; `portal/demo.py` lists them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from portal.embedded import write_private
from portal.processes import end_process, start_time

#: Seconds before a process that died is started again: doubled each time, forgotten after a good while.
FIRST_PAUSE, LONGEST_PAUSE, GOOD_WHILE = 1.0, 30.0, 60.0
#: Seconds that a process has to end in order.
PATIENCE = 12.0
#: A log that is longer when its process starts is put aside first.
LONGEST_LOG = 10_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """One process: what it is called, its command, and its whole environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    since: float
    pause: float = FIRST_PAUSE
    again_at: float | None = None


class Supervisor:
    """`say` is told, in one sentence each, what a person would want to know.

    Pids and start times lie in `folder`/children.json, logs in `folder`/logs.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self._running: dict[str, _Running] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The living processes by name."""
        return {name: r.process.pid for name, r in self._running.items() if r.process.poll() is None}

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self, part: Part) -> None:
        """Start a part; from then on `watch` starts it again whenever it ends."""
        self._running[part.name] = _Running(part, self._spawn(part), time.monotonic())
        self._note()

    def _spawn(self, part: Part) -> subprocess.Popen[bytes]:
        log = self.log(part.name)
        log.parent.mkdir(exist_ok=True)
        if log.exists() and log.stat().st_size > LONGEST_LOG:
            log.replace(log.with_suffix(".old.log"))
        with log.open("ab") as file:
            return subprocess.Popen(
                part.command,
                env=dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C shall reach us alone, so that we end them in order
            )

    def watch(self) -> None:
        """Look after each part once: say who ended, and start again whose pause is over."""
        now = time.monotonic()
        for running in self._running.values():
            status = running.process.poll()
            if status is None:
                continue
            if running.again_at is None:  # this is news
                if now - running.since > GOOD_WHILE:
                    running.pause = FIRST_PAUSE
                running.again_at = now + running.pause
                self.say(
                    f"{running.part.name} ended ({_status(status)}) and is started again "
                    f"in {running.pause:.0f} s; its log: {self.log(running.part.name)}"
                )
            elif now >= running.again_at:
                running.process = self._spawn(running.part)
                running.since, running.again_at = now, None
                running.pause = min(running.pause * 2, LONGEST_PAUSE)
                self._note()

    def stop(self) -> None:
        """End every part: all are asked at once, and forced if they do not go in time."""
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()
        until = time.monotonic() + PATIENCE
        for running in self._running.values():
            try:
                running.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.say(f"{running.part.name} did not end in time and was killed.")
                running.process.kill()
                running.process.wait()
        self._running.clear()
        (self.folder / "children.json").unlink(missing_ok=True)

    def clear_leftovers(self) -> int:
        """End what a killed run has left; a pid that belongs to somebody else by now is left alone."""
        try:
            left: dict[str, tuple[int, str]] = json.loads((self.folder / "children.json").read_text())
        except (OSError, ValueError):
            return 0
        alive = [(pid, started) for pid, started in left.values() if start_time(pid) == started]
        for pid, _ in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid, started in alive:
            end_process(pid, started, ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 5.0)))
        (self.folder / "children.json").unlink(missing_ok=True)
        return len(alive)

    def _note(self) -> None:
        seen = {name: (pid, start_time(pid)) for name, pid in self.pids.items()}
        write_private(self.folder / "children.json", json.dumps(seen, indent=2) + "\n")


def _status(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
