"""What a benchmark runs against: the demo that the environment names, or one of its own that it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_S = 240.0
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the portal is, the lead's token, and its database."""

    url: str
    token: str
    database_url: str


class Missing(Exception):
    """There is nothing to measure."""


@contextlib.contextmanager
def running() -> Iterator[Stack]:
    """The stack of GPUPOOL_URL, GPUPOOL_TOKEN and DATABASE_URL; without them a demo in a new folder."""
    if os.environ.get("GPUPOOL_URL"):
        yield _from(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-", dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o711)
        with Demo(state) as demo:
            yield demo.stack


class Demo:
    """A demo in a folder; entering waits until it is ready, leaving ends it and keeps the folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.port = _free_port()
        self.process: subprocess.Popen[str] | None = None
        self.seconds = 0.0

    @property
    def stack(self) -> Stack:
        return _from(_read(self.state / "demo.env"))

    def __enter__(self) -> Demo:
        signal.signal(signal.SIGTERM, _end)  # so that this is left in the ordinary way
        call = [sys.executable, "-m", "portal.demo", "--port", str(self.port), "--state", str(self.state)]
        begun = time.monotonic()
        self.process = subprocess.Popen(
            call, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._await_ready(self.process, begun + START_S)
        self.seconds = time.monotonic() - begun
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def _await_ready(self, process: subprocess.Popen[str], until: float) -> None:
        """Read what it says until it says that it is ready; it ends by itself when it cannot start."""
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ready after" in line:
                return
            if time.monotonic() > until:
                break
        self.__exit__()
        raise Missing("The demo did not start:\n" + "".join(said))


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _from(values: os._Environ[str] | dict[str, str]) -> Stack:
    names = ("GPUPOOL_URL", "GPUPOOL_TOKEN", "DATABASE_URL")
    lacking = [name for name in names if not values.get(name)]
    if lacking:
        raise Missing(f"{', '.join(lacking)} must be set, as in .data/demo.env.")
    return Stack(*(values[name] for name in names))


def _read(path: Path) -> dict[str, str]:
    """NAME=value lines, quoted as for a shell."""
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
