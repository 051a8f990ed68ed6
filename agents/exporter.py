"""Metrics for Prometheus: dcgm-exporter's names, labels and units, and gpupool's own.

Served on a port, in threads of their own; what is told was seen by the watch, and
the driver is asked nothing. Beside a dcgm-exporter, or when its port is taken, only
gpupool's own series are served, on the next port: nothing has two sources.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agents import exporter_dcgm, exporter_own
from agents.exporter_holders import Holders, JobFiles, of_all
from agents.exporter_text import CONTENT_TYPE, text
from agents.gpu import Inventory, Readings
from agents.place import Place
from agents.record import Record
from pool.core.wire import Stay

log = logging.getLogger("agents.exporter")

#: So many scrapes at once; what comes beyond is closed, since the agent has better to do.
MOST_SCRAPES = 4
#: A client that is slower than this is let go.
PATIENCE_S = 5.0
#: Every so many samples it is looked for a dcgm-exporter, or for a port that has become free.
LOOK_EVERY = 15


@dataclass(frozen=True, slots=True)
class Latest:
    """What the watch saw last: the exporter asks the driver nothing. GPUs' processes are attributed.

    `held` are the allocations in force by GPU UUID. `xids` is the newest Xid of each GPU
    whose errors are watched, 0 for none.
    """

    inventory: Inventory
    readings: Mapping[str, Readings]
    record: Record
    stays: tuple[Stay, ...]
    xids: Mapping[str, int]
    dropped: int
    up: bool  # the portal takes reports
    held: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def holders(self) -> dict[str, Holders]:
        return of_all(self.inventory, self.record, self.held, self.stays)


class Exporter:
    """Serves /metrics on `port` (0: not at all) in a thread of its own."""

    def __init__(
        self,
        place: Place,
        port: int,
        latest: Callable[[], Latest | None],
        node: str = "",
        version: str = "",
    ) -> None:
        self._place = place
        self._port = port
        self._latest = latest
        self._node = node
        self._version = version
        # Several simulated nodes share a host; dashboards shall still tell them apart.
        self._hostname = socket.gethostname() if place.real or not node else node
        self._jobs = JobFiles(place.run / "jobs")
        self._server: _Server | None = None
        self._samples = 0

    @property
    def port(self) -> int | None:
        """Where it serves: the wished port, or the next when that is taken; None when it does not."""
        server = self._server
        return None if server is None else int(server.server_address[1])

    def start(self) -> None:
        """Never raises: without the exporter the agent works as well."""
        if self._port:
            self._open()

    def stop(self) -> None:
        """Give the port back."""
        server, self._server = self._server, None
        if server is not None:
            server.end()

    def refresh(self) -> None:
        """After each sample: rewrite the job mapping files if holders have changed, and see to the port."""
        latest = self._latest()
        if latest is not None:
            self._jobs.write(latest.inventory, latest.holders())
        self._samples += 1
        if self._port and self._samples % LOOK_EVERY == 0:
            self._see_to_port()

    def body(self, *, dcgm: bool) -> str:
        """The text of one scrape; `dcgm`: with the series that a dcgm-exporter would have."""
        latest = self._latest()
        if latest is None:
            return text(exporter_own.families(self._told(None), Inventory(None, ()), {}, _NOTHING, {}, ()))
        held = latest.holders()
        found = text(
            exporter_own.families(
                self._told(latest), latest.inventory, latest.readings, latest.record, held, latest.stays
            )
        )
        if dcgm and not self._beside_another():
            found += text(
                exporter_dcgm.families(latest.inventory, latest.readings, latest.xids, held, self._hostname)
            )
        return found

    def _told(self, latest: Latest | None) -> exporter_own.Node:
        up, dropped = (latest.up, latest.dropped) if latest else (None, None)
        return exporter_own.Node(self._node or self._hostname, self._version, up, dropped)

    def _beside_another(self) -> bool:
        """Whether a dcgm-exporter has the same series: as a process, or as the source of a reading."""
        latest = self._latest()
        heard = latest is not None and any(one.source == "dcgm" for one in latest.readings.values())
        return heard or runs_here(self._place.root)

    def _see_to_port(self) -> None:
        server = self._server
        if server is None:
            self._open()
        elif server.dcgm and self._beside_another():
            log.info("A dcgm-exporter runs here; port %d is left to it", self._port)
            self.stop()
            self._open()

    def _open(self) -> None:
        alone = not self._beside_another()
        for port, dcgm in ((self._port, True), (self._port + 1, False)):
            if dcgm and not alone:
                continue
            try:
                server = _Server(port, dcgm, self.body)
            except (OSError, OverflowError) as error:
                log.log(logging.INFO if dcgm else logging.WARNING, "No metrics on port %d: %s", port, error)
                continue
            server.begin()
            self._server = server
            log.info("Metrics on port %d%s", port, "" if dcgm else ", without DCGM's series")
            return


_NOTHING = Record(boot_id="")


def runs_here(root: Path) -> bool:
    """Whether a process on this machine, in a container or not, is a dcgm-exporter."""
    for comm in root.glob("proc/[0-9]*/comm"):
        try:
            if comm.read_bytes() == b"dcgm-exporter\n":
                return True
        except OSError:  # it has ended
            continue
    return False


class _Server(ThreadingHTTPServer):
    """Listens on all addresses, IPv6 too where there is any."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, port: int, dcgm: bool, body: Callable[..., str]) -> None:
        self.dcgm = dcgm
        self.body = body
        self._room = threading.BoundedSemaphore(MOST_SCRAPES)
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(("", port), _Scrape)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="exporter", daemon=True)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Without HTTPServer's look-up of the machine's full name, which may wait for a name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be had
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A scrape went wrong", exc_info=True)


class _Scrape(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gpupool-agent"
    sys_version = ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/metrics":
            self._say(200, CONTENT_TYPE, self.server.body(dcgm=self.server.dcgm))
        elif self.path == "/":
            self._say(200, "text/plain; charset=utf-8", "gpupool agent: see /metrics\n")
        else:
            self._say(404, "text/plain; charset=utf-8", "There is only /metrics\n")

    do_HEAD = do_GET

    def _say(self, status: int, kind: str, words: str) -> None:
        body = words.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
