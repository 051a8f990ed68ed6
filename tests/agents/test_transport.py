"""The worker's way to Redis, on a real Redis and as the node's own ACL user."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
import redis
from celery import Celery

from agents import transport
from tests.agents.node_broker import NODE, SECRET, USER, Broker, running
from tests.agents.stand_in import ROOT, command


class Listener:
    """The worker as a process; `hears` waits for a line that it says."""

    def __init__(self, url: str) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.agents.listener", url, NODE],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._collect)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def hears(self, wanted: str, timeout_s: float = 60.0) -> list[str]:
        """The lines up to the wanted one."""
        heard = []
        while not heard or heard[-1] != wanted:
            heard.append(self.lines.get(timeout=timeout_s))
        return heard

    def end(self) -> str:
        """Kill the worker; what it logged."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return "".join(self.errors)


Listen = Callable[..., Listener]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """To be killed and emptied at will."""
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def standing() -> Iterator[Broker]:
    """For tests that change nothing in it."""
    with running() as one:
        yield one


@pytest.fixture
def listen(broker: Broker) -> Iterator[Callable[..., Listener]]:
    started: list[Listener] = []

    def begin(way: str = "tcp") -> Listener:
        one = Listener(broker.urls()[way])
        started.append(one)
        one.hears("up")
        return one

    yield begin
    for one in started:
        one.end()


class TestWorker:
    @pytest.mark.parametrize("way", ["tcp", "socket"])
    def test_a_command_arrives_from_an_emptied_redis(self, broker: Broker, listen: Listen, way: str) -> None:
        with broker.server.client() as client:
            client.flushall()
        listener = listen(way)
        broker.send("first")
        listener.hears("got first")

    def test_it_leaves_no_key_behind_and_needs_no_refused_command(
        self, broker: Broker, listen: Listen
    ) -> None:
        listener = listen()
        broker.send("first")
        listener.hears("got first")
        with broker.server.client() as client:
            assert client.keys() == []
            assert client.acl_log() == []

    def test_a_mutex_left_by_a_crash_hides_nothing(self, broker: Broker, listen: Listen) -> None:
        with broker.server.client() as client:
            client.set(f"node:{NODE}:unacked_mutex", "1")
        listener = listen()
        broker.send("first")
        listener.hears("got first")
        with broker.server.client() as client:
            assert client.acl_log() == []

    def test_it_does_not_get_another_nodes_commands(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        broker.send("theirs", node="node-2")
        broker.send("ours")
        assert "got theirs" not in listener.hears("got ours")

    def test_what_is_no_command_is_dropped_and_the_next_one_taken(
        self, broker: Broker, listen: Listen
    ) -> None:
        listener = listen()
        broker.publish({"rm": "-rf"})
        broker.send("good")
        assert listener.hears("got good") == ["got good"]

    @pytest.mark.parametrize("how", [{"serializer": "pickle"}, {"name": "os.system"}])
    def test_only_json_and_only_the_one_task_are_taken(
        self, broker: Broker, listen: Listen, how: dict[str, str]
    ) -> None:
        listener = listen()
        broker.publish(command("GPU-1", 1, name="bad"), **how)
        broker.send("good")
        assert listener.hears("got good") == ["got good"]

    def test_it_goes_on_after_redis_was_emptied(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        with broker.server.client() as client:
            client.flushall()
        broker.send("after")
        listener.hears("got after")

    @pytest.mark.parametrize("way", ["tcp", "socket"])
    def test_it_comes_back_when_redis_was_killed(self, broker: Broker, listen: Listen, way: str) -> None:
        listener = listen(way)
        broker.send("before")
        broker.server.kill()
        listener.hears("down")
        broker.start()
        broker.send("after")
        listener.hears("got after")

    def test_it_comes_back_when_redis_had_forgotten_its_user(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        broker.server.kill()
        listener.hears("down")
        broker.start(user=False)
        broker.let_in()
        listener.hears("up")

    def test_a_worker_whose_rights_were_taken_is_started_anew(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        with broker.server.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "nocommands")
        listener.hears("down")
        broker.let_in()
        listener.hears("up")
        broker.send("after")
        listener.hears("got after")

    def test_it_comes_back_when_redis_had_gone_silent(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        assert broker.server.pid is not None
        os.kill(broker.server.pid, signal.SIGSTOP)
        try:
            listener.hears("down")
        finally:
            os.kill(broker.server.pid, signal.SIGCONT)
        broker.send("after")
        listener.hears("got after")

    def test_the_secret_is_in_no_log(self, broker: Broker, listen: Listen) -> None:
        listener = listen()
        broker.server.kill()
        listener.hears("down")
        broker.start()
        listener.hears("up")
        said = listener.end()
        assert "Cannot connect" in said or "lost" in said
        assert SECRET not in said
        assert quote(SECRET, safe="") not in said


class TestRights:
    @pytest.mark.parametrize(
        "words",
        [
            "SCAN 0",
            "KEYS *",
            "FLUSHALL",
            "FLUSHDB",
            "EVAL 'return 1' 0",
            "FUNCTION FLUSH",
            "FUNCTION LIST",
            "RANDOMKEY",
            "DBSIZE",
            "CONFIG GET *",
            "ACL LIST",
            "ACL SETUSER node-node-1 allkeys",
            "CLIENT LIST",
            "CLIENT TRACKING on",
            "MONITOR",
            "PUBSUB CHANNELS",
            "SUBSCRIBE other",
            "PUBLISH node:node-2:x 1",
            "SORT node:node-1:a BY node:node-2:*",
            "LRANGE node:node-2:celery 0 -1",
            "BRPOP node:node-2:celery 1",
            "LPUSH node:node-2:celery x",
            "LPUSH celery x",
            "COPY node:node-2:celery node:node-1:celery",
            "RENAME node:node-1:celery node:node-2:celery",
            "GET node:node-1",
        ],
    )
    def test_a_node_is_refused(self, standing: Broker, words: str) -> None:
        with standing.as_node() as node, pytest.raises(redis.exceptions.NoPermissionError):
            node.execute_command(*words.split())

    def test_a_node_may_use_its_own_keys(self, standing: Broker) -> None:
        with standing.as_node() as node:
            assert node.lpush(f"node:{NODE}:celery", "x") == 1
            assert node.brpop([f"node:{NODE}:celery"], 1) is not None


class TestSettings:
    def test_tls_checks_the_certificate(self) -> None:
        found = transport.settings("rediss://u:p@redis.example:6380/0", NODE)
        assert found["broker_use_ssl"]["ssl_check_hostname"] is True
        assert "broker_use_ssl" not in transport.settings("redis://u:p@redis.example/0", NODE)

    def test_tls_trusts_the_sites_own_authority_where_one_is_named(self) -> None:
        found = transport.settings("rediss://u:p@redis.example:6380/0", NODE, "/etc/site/ca.pem")
        assert found["broker_use_ssl"]["ssl_ca_certs"] == "/etc/site/ca.pem"
        assert found["broker_use_ssl"]["ssl_check_hostname"] is True

    def test_another_scheme_is_refused(self) -> None:
        with pytest.raises(ValueError, match="amqp"):
            transport.settings("amqp://u:p@host", NODE)

    def test_the_channel_never_brings_messages_back(self) -> None:
        app = Celery("t", fixups=[], set_as_current=False)
        app.conf.update(transport.settings("redis://u:p@127.0.0.1:1/0", NODE))
        with app.connection_for_read() as connection:
            assert isinstance(connection.transport, transport.Transport)
            assert connection.transport.Channel.do_restore is False
        app.close()
