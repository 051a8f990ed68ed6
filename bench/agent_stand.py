"""What an agent under measurement stands on: a portal that only answers, and a broker for commands."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from celery import Celery
from kombu import Exchange, Queue

from pool.core.wire import APPLY_TASK, Answer, Command, Report
from portal.broker import Redis
from portal.processes import server_account
from portal.servers import Place

NODE, TOKEN = "bench-node", "gpn_bench_token"
USER, SECRET = f"node-{NODE}", "bench-secret"
RULES = (
    f"~node:{NODE}:* &node:{NODE}:* +@all -@admin -@dangerous -@scripting "
    "-scan -randomkey -dbsize -client|tracking -pubsub +info"
).split()
PATIENCE_S = 120.0


class Portal:
    """Takes every report. `say` sets what is answered; `await_held` waits for allocations in force."""

    def __init__(self) -> None:
        self.answer = Answer(accepted_seq=0, next_report_s=15.0)
        self.held: set[str] = set()
        self.exporter: int | None = None
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, body: bytes) -> bytes:
        report = msgspec.json.decode(body, type=Report)
        with self._news:
            self.held = {one for gpu in report.gpus for one in gpu.held}
            self.exporter = report.exporter
            self._news.notify_all()
        return msgspec.json.encode(msgspec.structs.replace(self.answer, accepted_seq=report.seq))

    def await_held(self, wanted: set[str]) -> None:
        with self._news:
            if not self._news.wait_for(lambda: self.held == wanted, PATIENCE_S):
                raise TimeoutError(f"{len(self.held & wanted)} of {len(wanted)} allocations came into force")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _door(portal: Portal) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = portal.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    return Door


class Broker:
    """A Redis with the node's user; `send` publishes as the portal does, over one ordinary connection."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        account = server_account()
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        self._server = Redis(Place(folder, folder, account, durable=False), "portal")
        self._server.start()
        with self._server.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{SECRET}", *RULES)
        key = f"node:{NODE}:celery"
        self._queue: Any = Queue(key, exchange=Exchange("", type="direct"), routing_key=key, no_declare=True)
        self._app = Celery("portal", broker=self._server.url, set_as_current=False, fixups=[])
        self._connection = self._app.connection_for_write()
        self._connection.ensure_connection(max_retries=1)

    @property
    def url(self) -> str:
        """As the node gets it."""
        return f"redis://{USER}:{quote(SECRET, safe='')}@127.0.0.1:{self._server.port}/0"

    def send(self, command: Command) -> None:
        self._app.send_task(
            APPLY_TASK, args=[msgspec.to_builtins(command)], queue=self._queue, connection=self._connection
        )

    def close(self) -> None:
        self._connection.release()
        self._app.close()
        self._server.stop()


@contextmanager
def standing(folder: Path) -> Iterator[tuple[Portal, Broker]]:
    """Both, ended at the end."""
    portal = Portal()
    try:
        broker = Broker(folder / "broker")
        try:
            yield portal, broker
        finally:
            broker.close()
    finally:
        portal.close()
