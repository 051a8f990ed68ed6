"""A portal that only speaks the agents' door, and a node as a real process beside it.

Nothing is decided here: a test says what is answered and waits for what arrives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from agents.config import Config
from agents.driver import Driver
from agents.parts import Parts, assemble
from agents.place import Place
from agents.post import JOIN, REPORTS
from pool.core.wire import Answer, Command, GpuReport, Held, JoinAnswer, JoinAsk, Layout, Policy, Report

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "gpn_1_very-secret-token"
WAIT_S = 45.0


class StandIn:
    """A portal in a thread. `answer` is what the next reports get; a status other than 200 refuses them."""

    def __init__(self) -> None:
        self.answer = Answer(accepted_seq=0, next_report_s=0.5)
        self.status = 200
        self.seq = 0  # what it has already; a report that is no newer is not taken
        self.broker_url: str | None = None
        self.asks: list[JoinAsk] = []
        self.reports: list[Report] = []
        self.refused: list[Report] = []
        self.headers: list[dict[str, str]] = []
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def say(self, **fields: object) -> None:
        """Change what the next reports are answered."""
        self.answer = msgspec.structs.replace(self.answer, **fields)

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if path == JOIN:
            ask = msgspec.json.decode(body, type=JoinAsk)
            self.asks.append(ask)
            if ask.code != "right":
                return 401, b'{"title": "This code is not valid."}'
            joined = JoinAnswer(node=ask.node, token=TOKEN, broker_url=self.broker_url, report_s=0.5)
            return 201, msgspec.json.encode(joined)
        assert path == REPORTS
        report = msgspec.json.decode(body, type=Report)
        with self._news:
            (self.reports if self.status == 200 else self.refused).append(report)
            self.headers.append(headers)
            self._news.notify_all()
        answer = msgspec.structs.replace(self.answer, accepted_seq=max(report.seq, self.seq))
        return self.status, msgspec.json.encode(answer) if self.status == 200 else b"{}"

    def await_report(self, wanted: Callable[[Report], bool], timeout_s: float = WAIT_S) -> Report:
        """The first report from now on, or the newest so far, that is as wanted."""
        with self._news:
            fine = self._news.wait_for(lambda: self.reports and wanted(self.reports[-1]), timeout_s)
            assert fine, f"no such report; the last: {self.reports[-1:]}"
            return self.reports[-1]

    def await_refused(self, wanted: Callable[[Report], bool]) -> Report:
        """The same among the reports that were not taken."""
        with self._news:
            assert self._news.wait_for(lambda: self.refused and wanted(self.refused[-1]), WAIT_S)
            return self.refused[-1]

    def await_gpu(self, uuid: str, wanted: Callable[[GpuReport], bool]) -> GpuReport:
        return gpu_of(self.await_report(lambda report: wanted(gpu_of(report, uuid))), uuid)


def gpu_of(report: Report, uuid: str) -> GpuReport:
    """The GPU in a report; an empty one if it is not in it."""
    return next((gpu for gpu in report.gpus if gpu.uuid == uuid), GpuReport(uuid="", index=-1, name=""))


def _door(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = stand_in.take(self.path, body, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    return Door


class Node:
    """`python -m agents` with a folder of its own; `run` is a process that can be killed."""

    def __init__(self, folder: Path, portal: StandIn, name: str = "node-1") -> None:
        self.place = Place(folder)
        self.portal = portal
        self.name = name
        self.log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agents", words[0], "--state", str(self.place.folder), *words[1:]]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=check, timeout=60)

    def join(self, spec: str = "2xH100-80GB", *more: str, code: str = "right") -> None:
        self.call(
            "join",
            "--portal",
            self.portal.url,
            "--code",
            code,
            "--name",
            self.name,
            "--simulate",
            spec,
            *more,
        )

    def start(self, **environment: str) -> None:
        command = [sys.executable, "-m", "agents", "run", "--state", str(self.place.folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and wait; the exit status, negative for the signal itself."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(10)
        self.process = None
        return status

    def clear(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def parts_of(driver: Driver, folder: Path, boot_id: Callable[[], str], **own: Any) -> Parts:
    """What an agent on the simulated machine in `folder` is made of; the portal counts as there."""
    config = Config(portal="http://portal", node="node-1", token=TOKEN, simulated="a machine", **own)
    parts = assemble(Place(folder), driver, boot_id, config)
    parts.stays.heed((), Policy(), 1000.0)
    return parts


def command(
    uuid: str, generation: int, *held: Held, mig: bool = True, node: str = "node-1", name: str = ""
) -> Command:
    layout = Layout(mig=mig, held=held)
    return Command(id=name or f"c{generation}", node=node, gpu=uuid, generation=generation, layout=layout)


def slice_(allocation: str, start: int, *, owner: str = "", profile_id: int = 19, size: int = 1) -> Held:
    """A 1g.10gb slice of an H100, unless it is said otherwise; each has its own owner."""
    return Held(
        allocation=allocation,
        owner=owner or f"owner of {allocation}",
        profile="1g.10gb",
        profile_id=profile_id,
        start=start,
        size=size,
    )


def whole(allocation: str) -> Held:
    return Held(allocation=allocation, owner="o", profile=None, profile_id=None, start=0, size=8)
