"""The whole product as real processes, for tests that drive it from outside.

`stack()` starts a PostgreSQL and a Redis of its own, migrates, brings in the
cast of tests/cast.py, starts web, workers and beat, and one agent a node on a
simulated machine; at its end nothing is left. Any process can be stopped, killed
and started again; each has its log.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agents import simulator_world
from portal import embedded
from portal.demo_parts import inherited, portal_parts, python, settings
from portal.processes import start_time
from portal.supervisor import Part
from tests.console import Console

#: Seconds for one step; generous, because tests share the machine.
PATIENCE = 90.0
#: A node with one GPU that begins in MIG mode.
ONE_NODE: Mapping[str, str] = {"node-1": "1xH100-80GB"}

_SEED = """
import json
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from pool.queries import clock
from pool.services import inventory, tokens
from tests.cast import make_cast
PBKDF2PasswordHasher.iterations = 1000  # seven passwords of full strength take seconds
cast, now = make_cast(), clock.now()
people = (cast.lena, cast.milo, cast.sam, cast.anna)
make = lambda u: tokens.make(actor=None, user=u, team=None, name="test", days=1, now=now)[1]
made = {{u.username: make(u) for u in people}}
codes = {{name: inventory.make_join_code(actor=None, pool="main", name=name, now=now) for name in {nodes!r}}}
print(json.dumps({{"codes": codes, "tokens": made}}))
"""

_MANAGE = """
from pool.models import Gpu
from pool.queries import clock
from pool.services import inventory
gpus = list(Gpu.objects.select_related("node"))
for use in ("mig", "whole"):
    uuids = [g.uuid for g in gpus if use == ("whole" if (g.node.name, g.index) in {whole!r} else "mig")]
    inventory.set_use(actor=None, gpus=uuids, use=use, now=clock.now())
    inventory.set_managed(actor=None, gpus=uuids, managed=True, now=clock.now())
"""


@dataclass
class Stack:
    """A running product. `tokens` are REST tokens of lena, milo, sam and anna."""

    folder: Path
    url: str
    environment: dict[str, str]
    servers: embedded.Servers
    console: Console
    parts: dict[str, Part] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    client: httpx.Client = field(default_factory=lambda: _client())

    # --- Processes ------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start the process of that name: web, worker-due, worker-slow, beat, or "agent NODE"."""
        part = self.parts[name]
        with self.log_file(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                part.command,
                env=dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # As a supervisor does, for whoever sweeps up after a session that was killed.
        seen = {name: (one.pid, start_time(one.pid)) for name, one in self.processes.items()}
        embedded.write_private(self.folder / "children.json", json.dumps(seen))

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End the process at once; with SIGTERM in order."""
        process = self.processes[name]
        process.send_signal(number)
        process.wait(PATIENCE)

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def stop(self, name: str) -> None:
        """Let the process stand still, as on a machine that hangs, until `go_on`."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def alive(self, name: str) -> bool:
        return self.processes[name].poll() is None

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def log(self, name: str) -> str:
        return self.log_file(name).read_text(errors="replace")

    def agent_folder(self, node: str) -> Path:
        return self.folder / "agents" / node

    # --- From outside ---------------------------------------------------------

    def python(self, code: str) -> str:
        """Run a snippet in the portal's settings; what it prints."""
        return self.console.run(code)

    def manage(self, *arguments: str) -> str:
        return self.console.manage(*arguments)

    def simulate(self, node: str, *arguments: str) -> str:
        """Drive the node's simulated machine: reboot, lose --gpu 0, ..."""
        return self.call(*python("agents", "simulate", "--state", str(self.agent_folder(node)), *arguments))

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
        if done.returncode:
            raise AssertionError(f"{command[:4]} failed: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout.decode()

    def rest(self, method: str, path: str, body: Any = None, user: str = "milo", **headers: str) -> Any:
        """(status, decoded JSON) of a REST call below /api/v1; an answer with an error is an answer."""
        answer = self.ask(method, path, body, user, **headers)
        return answer.status_code, answer.json()

    def ask(
        self, method: str, path: str, body: Any = None, user: str = "milo", **headers: str
    ) -> httpx.Response:
        """The whole answer. httpx.TransportError while the web server is away."""
        known = {"Authorization": f"Bearer {self.tokens[user]}", **headers}
        return self.client.request(method, f"{self.url}/api/v1{path}", json=body, headers=known)

    def answers(self, path: str = "/readyz") -> bool:
        try:
            return self.client.get(self.url + path, timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def _client() -> httpx.Client:
    """Each request has a connection of its own, as the web server may have been killed in between."""
    return httpx.Client(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def await_(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of `condition`; fails saying `what` was awaited."""
    until = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"after {patience:.0f} s still not: {what}")
        time.sleep(0.05)
    return value


@contextmanager
def stack(
    nodes: Mapping[str, str] = ONE_NODE,
    *,
    whole: Collection[tuple[str, int]] = (),
    report_seconds: int = 3,
) -> Generator[Stack]:
    """The product with these nodes (name -> simulated machine).

    All GPUs are managed: those in `whole` (node, index) whole, the others for slices.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpupool-tests-", dir="/tmp"))
    folder.chmod(0o711)
    (folder / "logs").mkdir()
    try:
        with embedded.start(folder, durable=True) as servers:
            running = _stack(folder, servers, report_seconds)
            try:
                _bring_up(running, nodes, set(whole))
                yield running
            finally:
                _end(running, nodes)
    finally:
        embedded.clear(folder)


def _stack(folder: Path, servers: embedded.Servers, report_seconds: int) -> Stack:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    own = settings(servers, folder, url) | {"GPUPOOL_REPORT_SECONDS": str(report_seconds)}
    environment = inherited() | own | {"DJANGO_SETTINGS_MODULE": "portal.settings"}
    console = Console(environment, folder / "logs" / "console.log")
    running = Stack(folder, url, environment, servers, console)
    running.parts = {part.name: part for part in portal_parts(port, environment)}
    return running


def _bring_up(running: Stack, nodes: Mapping[str, str], whole: set[tuple[str, int]]) -> None:
    """What everything else waits for goes first: there are but two cores."""
    portal = [*running.parts]
    running.start("web")
    running.manage("migrate", "--noinput", "--verbosity", "0")
    seed = json.loads(running.python(_SEED.format(nodes=list(nodes))))
    running.tokens = seed["tokens"]
    await_(running.answers, "the web server answers")
    for name, machine in nodes.items():
        sliced = [n for n in range(_count(machine)) if (name, n) not in whole]
        _join(running, name, machine, seed["codes"][name], sliced)
        running.start(f"agent {name}")
    count = sum(_count(machine) for machine in nodes.values())
    await_(lambda: len(running.rest("GET", "/gpus")[1]["results"]) >= count, "every GPU was reported")
    for name in portal:
        if name != "web":
            running.start(name)
    running.python(_MANAGE.format(whole=whole))


def _count(machine: str) -> int:
    return int(machine.partition("x")[0])


def _join(running: Stack, name: str, machine: str, code: str, sliced: list[int]) -> None:
    state = str(running.agent_folder(name))
    call = ["join", "--portal", running.url, "--code", code, "--state", state]
    call += ["--name", name, "--simulate", machine]
    call += ["--mig", ",".join(map(str, sliced))] if sliced else []
    running.call(*python("agents", *call))
    running.parts[f"agent {name}"] = Part(
        f"agent {name}", python("agents", "run", "--state", state), inherited()
    )


def _end(running: Stack, nodes: Mapping[str, str]) -> None:
    """Agents first, then what they talk to; the idle processes of simulated GPUs last."""
    for name in reversed(running.processes):
        process = running.processes[name]
        process.terminate()
        process.send_signal(signal.SIGCONT)
    running.console.close()
    running.client.close()
    for process in running.processes.values():
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for node in nodes:
        if (running.agent_folder(node) / "driver.json").exists():
            simulator_world.stop_processes(running.agent_folder(node))
