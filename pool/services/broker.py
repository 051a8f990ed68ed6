"""The way to the nodes through Redis: nudges on their queues, and their Redis users.

Nothing here is needed for the truth: a nudge that is lost costs a node one
report period. No function raises because Redis is away, and none is called
inside a transaction.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from celery import Celery
from django.conf import settings
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from pool.core import wire
from pool.models import Command, Node
from pool.queries import clock

log = logging.getLogger(__name__)

#: After one failure nothing is sent for so long: whoever books shall not wait for a Redis that is away.
PAUSE_S = 10.0
#: A nudge that was not fetched by then says nothing that a report's answer has not said.
EXPIRES_S = 300
#: Sends are done one at a time; a thread that would have to wait for longer leaves it to the report.
TURN_S = 0.5

OPTIONS = {
    "socket_timeout": 0.25,
    "socket_connect_timeout": 0.25,
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: What a node's Redis user may do, and only on its own keys; INFO is what kombu asks for.
RULES = (
    "+@all",
    "-@admin",
    "-@dangerous",
    "-@scripting",
    "-scan",
    "-randomkey",
    "-dbsize",
    "-client|tracking",
    "-pubsub",
    "+info",
)


class Acl(StrEnum):
    """What became of a node's Redis user."""

    SET = "set"
    #: We have no right to make users: commands travel by report only.
    REFUSED = "refused"
    #: The slow lane will do it.
    UNREACHABLE = "unreachable"


class _Sender:
    """One ordinary connection of this process, made when first needed, and the pause after a failure."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._paused_until = 0.0
        self._pid = 0
        self._connection: Any = None
        self._producer: Any = None
        self._app: Any = Celery("gpupool-nodes", set_as_current=False)
        self._app.conf.update(task_serializer="json", result_backend=None, task_ignore_result=True)

    def is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def forget(self) -> None:
        """Drop the connection and end the pause."""
        self._paused_until = 0.0
        self._close()

    def send(self, messages: Sequence[wire.Command]) -> int:
        """How many went out; the first failure starts the pause."""
        sent = 0
        if self.is_paused() or not self._turn.acquire(timeout=TURN_S):
            return sent
        try:
            for message in messages:
                if self.is_paused():
                    break
                self._send(message)
                sent += 1
        except (OperationalError, RedisError, OSError) as error:
            self._paused_until = time.monotonic() + PAUSE_S
            self._close()
            log.warning("Redis is away; commands travel by report", extra={"error": str(error)[:200]})
        finally:
            self._turn.release()
        return sent

    def _send(self, message: wire.Command) -> None:
        if self._pid != os.getpid():  # a connection must not be shared with a parent process
            self._connection = Connection(settings.REDIS_URL, transport_options=OPTIONS)
            self._producer = self._connection.Producer(auto_declare=False)
            self._pid = os.getpid()
        self._app.send_task(
            wire.APPLY_TASK,
            args=[msgspec.to_builtins(message)],
            queue=queue(message.node),
            producer=self._producer,
            retry=False,
            expires=EXPIRES_S,
            ignore_result=True,
        )

    def _close(self) -> None:
        connection, own = self._connection, self._pid == os.getpid()
        self._connection = self._producer = None
        self._pid = 0
        if connection is not None and own:
            with suppress(OperationalError, RedisError, OSError):
                connection.release()


_sender = _Sender()


def queue(node: str) -> Queue:
    """The one queue of a node; it needs no binding in Redis, so an emptied Redis loses no later message."""
    name = f"node:{node}:celery"
    return Queue(name, exchange=Exchange("", type="direct"), routing_key=name, no_declare=True)


def nudge(messages: Sequence[wire.Command]) -> int:
    """Send commands to their nodes; returns how many went out. Never raises because of Redis.

    Takes at most about half a second when Redis is away or silent, and nothing
    within 10 s after that.
    """
    return _sender.send(messages)


def reachable() -> bool:
    """Whether the last send went well, or was so long ago that the next one would be tried."""
    return not _sender.is_paused()


def forget() -> None:
    """Start anew: for tests and after a change of the settings."""
    _sender.forget()


# --- Redis users -------------------------------------------------------------


def user_name(node: str) -> str:
    """The node's user in Redis."""
    return f"node-{node}"


def node_url(node: str, secret: str) -> str | None:
    """The address with which the node reaches Redis as itself; None: by report only."""
    if not settings.NODE_BROKER_URL:
        return None
    parts = urlsplit(settings.NODE_BROKER_URL)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user_name(node)}:{secret}@{host}"))


def acl_set(node: Node) -> Acl:
    """Make or renew the node's Redis user, which may touch only keys and channels `node:<name>:*`."""
    return _managing(lambda client: _set_user(client, node.name, node.broker_hash))


def acl_drop(node: Node) -> Acl:
    """Remove the node's Redis user and cut its connections."""
    return _managing(lambda client: client.execute_command("ACL", "DELUSER", user_name(node.name)))


def _set_user(client: Any, name: str, secret_hash: str) -> None:
    client.execute_command("ACL", "SETUSER", user_name(name), *_user_rules(name, secret_hash))


def _user_rules(name: str, secret_hash: str) -> list[str]:
    return ["reset", "on", f"#{secret_hash}", f"~node:{name}:*", f"&node:{name}:*", *RULES]


def _managing(work: Any) -> Acl:
    try:
        with _client() as client:
            work(client)
    except (NoPermissionError, ResponseError) as error:
        log.warning("Redis users cannot be made", extra={"error": str(error)[:200]})
        return Acl.REFUSED
    except (RedisError, OSError) as error:
        log.warning("Redis is away", extra={"error": str(error)[:200]})
        return Acl.UNREACHABLE
    return Acl.SET


def _client() -> Any:
    return Redis.from_url(
        settings.REDIS_URL,
        decode_responses=True,
        socket_timeout=1.0,
        socket_connect_timeout=1.0,
        retry=Retry(NoBackoff(), 0),
    )


#: Redis' own name of its current run, as this process last saw it.
_run_id = ""


def reapply() -> int:
    """Give Redis back the users that it lacks or has otherwise; returns how many.

    Redis forgets users when it restarts. The slow lane calls this. A restart
    also ends the waiting of commands that were refused.
    """
    nodes = dict(Node.objects.order_by("name").values_list("name", "broker_hash"))
    wanted = {name: secret_hash for name, secret_hash in nodes.items() if secret_hash}
    healed: list[str] = []
    restarted: list[bool] = []

    def heal(client: Any) -> None:
        restarted.append(_note_run(client))
        healed.extend(_heal(client, wanted, {user_name(n) for n in nodes} - {user_name(n) for n in wanted}))

    if _managing(heal) is Acl.SET and (any(restarted) or (wanted and len(healed) == len(wanted))):
        Command.objects.filter(state=Command.State.OPEN, trouble__isnull=False).update(
            trouble=None, attempts=0, next_at=clock.real_now()
        )
    return len(healed)


def _note_run(client: Any) -> bool:
    """Whether Redis has been restarted since this process last looked."""
    global _run_id
    before, _run_id = _run_id, str(client.info("server").get("run_id", ""))
    return bool(before) and before != _run_id


def _heal(client: Any, wanted: dict[str, str], unwanted: set[str]) -> list[str]:
    shown = _users(client)
    for user in sorted(unwanted & shown.keys()):
        client.execute_command("ACL", "DELUSER", user)
    if not wanted:
        return []
    # Versions word the same rules differently: one user that was just set shows how this one does.
    first = next(iter(wanted))
    before = shown.get(user_name(first))
    _set_user(client, first, wanted[first])
    pattern = _users(client).get(user_name(first), "")
    healed = [first] if before != pattern else []
    for name, secret_hash in wanted.items():
        right = _as_for(pattern, first, wanted[first], name, secret_hash)
        if name != first and shown.get(user_name(name)) != right:
            _set_user(client, name, secret_hash)
            healed.append(name)
    return healed


def _users(client: Any) -> dict[str, str]:
    """ACL LIST by user."""
    return {line.split(" ", 2)[1]: line for line in client.execute_command("ACL", "LIST")}


def _as_for(pattern: str, first: str, first_hash: str, name: str, secret_hash: str) -> str:
    """The line of `first` as it would be for `name`."""
    words = pattern.split(" ")
    swap = {
        user_name(first): user_name(name),
        f"#{first_hash}": f"#{secret_hash}",
        f"~node:{first}:*": f"~node:{name}:*",
        f"&node:{first}:*": f"&node:{name}:*",
    }
    return " ".join(swap.get(word, word) for word in words)
