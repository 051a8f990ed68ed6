"""The whole product on one machine: `make demo`, or `python -m portal.demo --port 8000`.

Says what it does, keeps its data in one folder, and ends all it started on
SIGINT or SIGTERM. What it consists of is in portal/demo_parts.py, how processes
are kept running in portal/supervisor.py, the two servers in portal/embedded.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from portal import embedded
from portal.demo_parts import (
    NODES,
    Node,
    inherited,
    portal_parts,
    python,
    readdress,
    settings,
    welcome,
    write_environment,
)
from portal.processes import Fault
from portal.supervisor import Part, Supervisor

#: Seconds for one step; generous, for a laptop that is busy.
STEP_SECONDS = 180.0
#: Seconds for the simulated GPU processes of one node to end.
SIMULATED_SECONDS = 20.0
#: Python computes on one core at a time, so a small machine takes two; if one is killed the other serves.
WEB_PROCESSES = 2


class Stopped(Exception):
    """SIGINT or SIGTERM has come."""


def say(text: str) -> None:
    print(text, flush=True)


class Demo:
    """One run: everything is started in order, looked after, and ended in reverse."""

    def __init__(self, state: Path, port: int) -> None:
        self.state = state
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.supervisor = Supervisor(state, say)
        self.servers: embedded.Servers | None = None
        self.settings: dict[str, str] = {}
        self.stopping = False

    def run(self) -> None:
        """Start all, say so, look after it until `stopping`; raises `Fault` or `Stopped`, leaving nothing."""
        began = time.monotonic()
        with embedded.hold(self.state) as lock:
            try:
                if left := self.supervisor.clear_leftovers():
                    say(f"Ended {left} processes of an earlier demo that was killed.")
                refuse_taken_port(self.port)
                with self._step("PostgreSQL and Redis"):
                    self.servers = embedded.start(self.state, lock=lock)
                seed = self._start()
                say(welcome(self.url, seed["logins"], self.state, time.monotonic() - began))
                while True:
                    self._pause(0.5)
                    self._look_after()
            finally:
                self._stop()

    # --- Starting -------------------------------------------------------------

    def _start(self) -> dict[str, Any]:
        assert self.servers is not None
        self.settings = settings(self.servers, self.state, self.url)
        with self._step("Tables"):
            self._manage("migrate", "--noinput", "--verbosity", "0")
        joined = [node for node in NODES if self._has_joined(node)]
        for node in joined:
            readdress(self._config(node), self.url, self.settings["REDIS_URL"])
        parts = portal_parts(self.port, inherited() | self.settings, web=WEB_PROCESSES)
        for part in [*parts, *map(self._agent, joined)]:
            self.supervisor.start(part)  # they come up while the seed is laid
        with self._step("Teams, people, quota and nodes"):
            seed = self._seed()
            write_environment(self.state / "demo.env", self.settings, seed["tokens"])
        with self._step("Web server, workers and beat"):
            self._await(lambda: answers(f"{self.url}/readyz"), "The web server does not answer")
        with self._step(f"Agents of {len(NODES)} simulated nodes"):
            for node in NODES:
                if node not in joined:
                    self._join(node, seed["join_codes"][node.name])
                    self.supervisor.start(self._agent(node))
            self._manage("demo_nodes")
        return seed

    def _seed(self) -> dict[str, Any]:
        out = self.state / "seed.json"
        self._manage("demo_seed", "--out", str(out))
        read: dict[str, Any] = json.loads(out.read_text())
        return read

    def _has_joined(self, node: Node) -> bool:
        """Whether it can run as it is; without its simulated machine it would fail again and again."""
        return self._config(node).exists() and (self._folder(node) / "driver.json").exists()

    def _config(self, node: Node) -> Path:
        return self._folder(node) / "agent.json"

    def _join(self, node: Node, code: str) -> None:
        where = ("--portal", self.url, "--code", code, "--state", str(self._folder(node)))
        self._call(f"{node.name} joining", python("agents", "join", *where, *node.options()), inherited())

    def _agent(self, node: Node) -> Part:
        call = python("agents", "run", "--state", str(self._folder(node)))
        return Part(f"agent-{node.name}", call, inherited())

    def _folder(self, node: Node) -> Path:
        return self.state / "agents" / node.name

    # --- Steps ----------------------------------------------------------------

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Say what is being done, and how long it took."""
        began = time.monotonic()
        print(f"  {what} ".ljust(44, "."), end=" ", flush=True)
        try:
            yield
        except BaseException:
            say("")
            raise
        say(f"{time.monotonic() - began:.1f} s")

    def _manage(self, *arguments: str) -> None:
        call = (sys.executable, str(embedded.ROOT / "manage.py"), *arguments)
        self._call(f"manage.py {arguments[0]}", call, inherited() | self.settings)

    def _call(self, name: str, command: tuple[str, ...], environment: dict[str, str]) -> None:
        """Run a program to its end; its output goes to a log, whose last line a `Fault` repeats."""
        log = self.supervisor.log("start")
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            self._await(lambda: process.poll() is not None, f"{name} does not end", watch=False)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            words = log.read_text(errors="replace").strip().splitlines()
            raise Fault(f"{name} failed: {words[-1] if words else 'no words'} (all of it: {log})")

    def _await(self, done: Callable[[], bool], otherwise: str, *, watch: bool = True) -> None:
        until = time.monotonic() + STEP_SECONDS
        while not done():
            if time.monotonic() > until:
                raise Fault(f"{otherwise} within {STEP_SECONDS:.0f} s; see {self.state / 'logs'}.")
            self._pause(0.1)
            if watch:
                self.supervisor.watch()

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        if self.stopping:
            raise Stopped

    # --- Running and ending ---------------------------------------------------

    def _look_after(self) -> None:
        """Start again whatever died, the two servers too."""
        assert self.servers is not None
        for server in (self.servers.postgres, self.servers.redis):
            if server.pid is None:
                say(f"{server.name} ended and is started again; its log: {server.log}")
                server.start()
        self.supervisor.watch()

    def _stop(self) -> None:
        if self.servers is not None or self.supervisor.pids:
            say("Ending everything ...")
        self.supervisor.stop()
        self._stop_simulated()
        if self.servers is not None:
            self.servers.stop()

    def _stop_simulated(self) -> None:
        """End the processes that were started on the simulated GPUs."""
        calls = [
            subprocess.Popen(
                python("agents", "simulate", "--state", str(self._folder(node)), "stop-processes"),
                env=inherited(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            for node in NODES
            if (self._folder(node) / "driver.json").exists()
        ]
        for call in calls:
            try:
                call.wait(SIMULATED_SECONDS)
            except subprocess.TimeoutExpired:
                call.kill()
                call.wait()


def answers(url: str) -> bool:
    """Whether `url` gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - our own address
            return bool(response.status == 200)
    except OSError:
        return False


def refuse_taken_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise Fault(f"Port {port} is for root only; choose another: make demo PORT=8080.") from None
        except OSError:
            raise Fault(
                f"Port {port} is taken by another program; choose another: make demo PORT={port + 1}."
            ) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; choose one from 1 to 65535")
    return int(text)


def main() -> int:
    """Run the demo; 0 after SIGINT or SIGTERM, 1 if it could not start."""
    parser = argparse.ArgumentParser(prog="python -m portal.demo", description=main.__doc__)
    parser.add_argument("--port", type=_port, default=8000, help="of the web server on this machine")
    parser.add_argument("--state", type=Path, default=embedded.state_folder(), help="where the data are kept")
    asked = parser.parse_args()
    demo = Demo(asked.state.absolute(), asked.port)

    def stop(number: int, frame: object) -> None:
        demo.stopping = True

    signal.signal(signal.SIGINT, stop)  # also where a shell's `&` has it ignored
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks to be left alone
        signal.signal(signal.SIGHUP, stop)
    try:
        demo.run()
    except Stopped:
        say("Ended; the data are kept.")
    except Fault as fault:
        print(f"demo: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
