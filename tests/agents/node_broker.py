"""A Redis of a test's own, with the node's user, and the portal's side of the node's queue."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import redis
from celery import Celery
from kombu import Exchange, Queue

from pool.core.wire import APPLY_TASK
from portal.broker import Redis
from portal.processes import server_account
from portal.servers import Place
from tests.agents.stand_in import command

NODE, USER, SECRET = "node-1", "node-node-1", "s3cret/@:%"
RULES = (
    f"~node:{NODE}:* &node:{NODE}:* +@all -@admin -@dangerous -@scripting "
    "-scan -randomkey -dbsize -client|tracking -pubsub +info"
).split()


class Broker:
    """A Redis of the test's own, with the node's user, and the portal's side of the queue."""

    def __init__(self, folder: Path) -> None:
        account = server_account()
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        self.server = Redis(Place(folder, folder, account, durable=False), "portal")

    def start(self, *, user: bool = True) -> None:
        self.server.start()
        if user:
            self.let_in()

    def let_in(self) -> None:
        """Redis forgets its users; the portal sets them again."""
        with self.server.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{SECRET}", *RULES)

    def urls(self) -> dict[str, str]:
        secret = quote(SECRET, safe="")
        return {
            "tcp": f"redis://{USER}:{secret}@127.0.0.1:{self.server.port}/0",
            "socket": f"redis+socket://{USER}:{secret}@{self.server.socket}?virtual_host=0",
        }

    def send(self, name: str, node: str = NODE) -> None:
        """A command for a GPU that there is not."""
        self.publish(command("GPU-1", 1, name=name), node)

    def publish(
        self, message: object, node: str = NODE, *, name: str = APPLY_TASK, serializer: str = "json"
    ) -> None:
        """As the portal does: one ordinary connection, the node's whole key as the queue's name."""
        key = f"node:{node}:celery"
        to = Queue(key, exchange=Exchange("", type="direct"), routing_key=key, no_declare=True)
        app = Celery("portal", broker=self.server.url, set_as_current=False, fixups=[])
        with app.connection_for_write() as connection:
            app.send_task(
                name,
                args=[msgspec.to_builtins(message)],
                queue=to,
                connection=connection,
                serializer=serializer,
            )
        app.close()

    def as_node(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.server.socket), username=USER, password=SECRET)


@contextmanager
def running() -> Iterator[Broker]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-agents-", dir="/tmp"))
    folder.chmod(0o711)
    one = Broker(folder)
    one.start()
    try:
        yield one
    finally:
        one.server.stop()
        shutil.rmtree(folder)
