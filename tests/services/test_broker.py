"""services.broker: nudges that never hold anybody up, and Redis users that reach only their own keys."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from pool.core import wire
from pool.core.shapes import MigAsk
from pool.models import Command, Node, Pool, Reservation
from pool.queries import clock
from pool.services import broker, reservations, secrets
from portal.embedded import Servers
from tests.cast import Cast, SimNode, enrol_node

SECRET = secrets.make_secret()
OTHER_SECRET = secrets.make_secret()


@pytest.fixture(autouse=True)
def _fresh(settings: Any) -> Iterator[None]:
    broker.forget()
    yield
    broker.forget()


@pytest.fixture
def redis(settings: Any) -> Iterator[Redis]:
    """The portal's own connection, to an emptied Redis."""
    with Redis.from_url(settings.REDIS_URL, decode_responses=True) as client:
        client.flushall()
        yield client
        for user in client.execute_command("ACL", "USERS"):
            if user.startswith("node-"):
                client.execute_command("ACL", "DELUSER", user)


@pytest.fixture
def silent(settings: Any) -> Iterator[None]:
    """In Redis's place something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        settings.REDIS_URL = f"redis://:x@127.0.0.1:{server.getsockname()[1]}/0"
        yield


@pytest.fixture
def closed(settings: Any) -> None:
    """Nobody listens on Redis's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings.REDIS_URL = f"redis://:x@127.0.0.1:{port}/0"


def command(node: str = "node-1", generation: int = 1) -> wire.Command:
    layout = wire.Layout(mig=True)
    return wire.Command(id="c-1", node=node, gpu="GPU-1", generation=generation, layout=layout)


def as_node(settings: Any, name: str = "node-1", secret: str = SECRET) -> Redis:
    parts = urlsplit(settings.REDIS_URL)
    return Redis(
        host=parts.hostname or "",
        port=parts.port or 0,
        username=f"node-{name}",
        password=secret,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


@pytest.fixture
def node_row(cast: Cast) -> Node:
    return Node.objects.create(
        pool=cast.main, name="node-1", machine_id="machine-1", broker_hash=secrets.plain(SECRET)
    )


# --- Nudges ----------------------------------------------------------------------


def test_a_nudge_lies_in_the_queue_of_its_node_as_a_task_with_one_command(redis: Redis) -> None:
    assert broker.nudge([command(), command("node-2")]) == 2
    assert sorted(redis.keys()) == ["node:node-1:celery", "node:node-2:celery"]
    message = json.loads(redis.lrange("node:node-1:celery", 0, -1)[0])
    assert message["headers"]["task"] == wire.APPLY_TASK
    assert message["headers"]["expires"] is not None
    ((told,), kwargs, _more) = json.loads(base64.b64decode(message["body"]))
    assert (told["node"], told["generation"], kwargs) == ("node-1", 1, {})
    assert msgspec.convert(told["layout"], wire.Layout) == command().layout


def test_nudges_come_in_the_order_in_which_they_were_sent(redis: Redis) -> None:
    broker.nudge([command(generation=n) for n in (1, 2, 3)])
    bodies = [json.loads(raw)["body"] for raw in redis.lrange("node:node-1:celery", 0, -1)]
    generations = [json.loads(base64.b64decode(body))[0][0]["generation"] for body in bodies]
    assert generations[::-1] == [1, 2, 3]  # the right end is fetched first


def test_an_emptied_redis_takes_the_next_nudge(redis: Redis) -> None:
    broker.nudge([command()])
    redis.flushall()
    assert broker.nudge([command()]) == 1
    assert redis.llen("node:node-1:celery") == 1


def test_threads_share_the_connection_one_after_the_other(redis: Redis) -> None:
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda n: broker.nudge([command(generation=n)]), range(40)))
    assert sum(sent) == redis.llen("node:node-1:celery") == 40


@pytest.mark.parametrize("outage", ["silent", "closed"])
def test_an_outage_costs_one_short_wait_and_then_nothing(request: pytest.FixtureRequest, outage: str) -> None:
    request.getfixturevalue(outage)
    began = time.monotonic()
    assert broker.nudge([command() for _ in range(50)]) == 0
    assert time.monotonic() - began < 1.0
    assert not broker.reachable()
    began = time.monotonic()
    for _ in range(100):
        broker.nudge([command()])
    assert time.monotonic() - began < 0.1


def test_a_connection_that_was_good_and_falls_silent_costs_no_more(redis: Redis) -> None:
    broker.nudge([command()])
    redis.client_pause(1500)
    began = time.monotonic()
    assert broker.nudge([command()]) == 0
    assert time.monotonic() - began < 1.0
    redis.ping()  # answers when the pause is over
    broker.forget()
    assert broker.nudge([command()]) == 1


def test_after_the_pause_it_is_tried_again(
    redis: Redis, settings: Any, closed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = redis.connection_pool.connection_kwargs
    assert broker.nudge([command()]) == 0
    settings.REDIS_URL = f"redis://:{good['password']}@{good['host']}:{good['port']}/0"
    assert broker.nudge([command()]) == 0
    later = time.monotonic() + broker.PAUSE_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert broker.nudge([command()]) == 1


@pytest.mark.parametrize("outage", ["silent", "closed"])
@pytest.mark.django_db(transaction=True)
def test_a_booking_is_granted_within_a_second_and_a_half_during_an_outage(
    request: pytest.FixtureRequest, outage: str
) -> None:
    cast: Cast = request.getfixturevalue("cast")
    node = enrol_node(cast.main, count=4)
    request.getfixturevalue(outage)
    broker.forget()
    began = time.monotonic()
    booked = reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="7g.80gb", count=4),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    assert time.monotonic() - began < 1.5
    # The report brings what the nudge could not.
    answer = node.send(received=clock.real_now() + timedelta(seconds=2))
    assert len(answer.commands) == 4
    assert answer.next_report_s == 3
    for message in answer.commands:
        node.gpu(message.gpu).carve(message)
    node.send()
    assert Reservation.objects.get(pk=booked.pk).state == "active"


@pytest.mark.django_db(transaction=True)
def test_a_flush_with_commands_in_flight_loses_nothing(redis: Redis) -> None:
    cast_pool = Pool.objects.create(name="main")
    node = enrol_node(cast_pool)
    Command.objects.all().delete()
    node.gpus[0].instances.clear()
    node.reboot()
    node.send()
    assert redis.llen("node:node-1:celery") > 0
    redis.flushall()
    assert len(node.send(received=clock.real_now() + timedelta(seconds=2)).commands) == 1


# --- Redis users --------------------------------------------------------------------


REFUSED: list[tuple[Any, ...]] = [
    ("SCAN", "0"),
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "0" * 40, "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("FUNCTION", "FLUSH"),
    ("FCALL", "f", "0"),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("CONFIG", "GET", "*"),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "TRACKING", "ON", "BCAST"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "node-1", "+@all"),
    ("SHUTDOWN", "NOSAVE"),
    ("MONITOR",),
    ("REPLICAOF", "NO", "ONE"),
    ("SAVE",),
    ("SORT", "node:node-1:celery", "GET", "node:node-2:*"),
    ("PUBSUB", "CHANNELS"),
    ("LRANGE", "node:node-2:celery", "0", "-1"),
    ("LPUSH", "node:node-2:celery", "x"),
    ("BRPOP", "node:node-2:celery", "1"),
    ("LPUSH", "celery", "x"),
    ("DEL", "due"),
    ("COPY", "node:node-1:celery", "mine"),
    ("RENAME", "node:node-1:celery", "mine"),
    ("GET", "node:node-10:celery"),
    ("PUBLISH", "node:node-2:x", "x"),
    ("PUBLISH", "x", "x"),
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_node_may_not(node_row: Node, redis: Redis, settings: Any, words: tuple[str, ...]) -> None:
    assert broker.acl_set(node_row) is broker.Acl.SET
    redis.lpush("node:node-1:celery", "own")
    with as_node(settings) as client, pytest.raises(NoPermissionError):
        client.execute_command(*words)


def test_a_node_may_use_its_own_keys_and_channels(node_row: Node, redis: Redis, settings: Any) -> None:
    broker.acl_set(node_row)
    with as_node(settings) as client:
        assert client.ping()
        assert client.info("server")["run_id"]
        client.lpush("node:node-1:celery", "x")
        assert client.brpop(["node:node-1:celery"], 1) == ("node:node-1:celery", "x")
        with client.pipeline(transaction=True) as pipe:
            pipe.hset("node:node-1:unacked", "tag", "x").zadd("node:node-1:unacked_index", {"tag": 1})
            assert pipe.execute() == [1, 1]
        client.publish("node:node-1:news", "x")


def test_only_the_hash_of_the_secret_goes_to_redis(node_row: Node, redis: Redis) -> None:
    broker.acl_set(node_row)
    line = broker._users(redis)["node-node-1"]
    assert f"#{secrets.plain(SECRET)}" in line
    assert SECRET not in line


def test_a_new_secret_ends_the_old_one(node_row: Node, redis: Redis, settings: Any) -> None:
    broker.acl_set(node_row)
    node_row.broker_hash = secrets.plain(OTHER_SECRET)
    broker.acl_set(node_row)
    with as_node(settings) as client, pytest.raises(RedisError):
        client.ping()
    with as_node(settings, secret=OTHER_SECRET) as client:
        assert client.ping()


def test_a_user_that_is_dropped_can_do_nothing(node_row: Node, redis: Redis, settings: Any) -> None:
    broker.acl_set(node_row)
    broker.acl_drop(node_row)
    with as_node(settings) as client, pytest.raises(RedisError):
        client.ping()


def test_the_address_of_a_node_carries_its_own_user_and_no_other(settings: Any) -> None:
    settings.NODE_BROKER_URL = "rediss://:our-own@redis.example:6380/2"
    assert broker.node_url("node-1", "s3cret") == "rediss://node-node-1:s3cret@redis.example:6380/2"
    settings.NODE_BROKER_URL = ""
    assert broker.node_url("node-1", "s3cret") is None


# --- Healing ------------------------------------------------------------------------


def _more_nodes(cast: Cast) -> list[Node]:
    return Node.objects.bulk_create(
        Node(pool=cast.main, name=f"node-{n}", machine_id=f"m-{n}", broker_hash=secrets.plain(f"secret-{n}"))
        for n in range(2, 6)
    )


def test_it_gives_back_the_users_that_redis_has_forgotten(
    cast: Cast, node_row: Node, redis: Redis, settings: Any
) -> None:
    nodes = [node_row, *_more_nodes(cast)]
    assert broker.reapply() == 5
    assert broker.reapply() == 0
    redis.execute_command("ACL", "DELUSER", *[broker.user_name(node.name) for node in nodes])
    assert broker.reapply() == 5
    with as_node(settings) as client:
        assert client.ping()


@pytest.mark.parametrize("name", ["node-1", "node-4"])
@pytest.mark.parametrize(
    "change", [("+flushall",), ("~*",), ("off",), ("resetpass",), ("nopass",), ("&*",), (">another",)]
)
def test_it_puts_right_a_user_that_was_changed(
    cast: Cast, node_row: Node, redis: Redis, name: str, change: tuple[str, ...]
) -> None:
    _more_nodes(cast)
    broker.reapply()
    before = broker._users(redis)
    redis.execute_command("ACL", "SETUSER", broker.user_name(name), *change)
    assert broker.reapply() == 1
    assert broker._users(redis) == before


def test_it_removes_the_user_of_a_node_that_has_none_any_more(node_row: Node, redis: Redis) -> None:
    broker.reapply()
    redis.execute_command("ACL", "SETUSER", "somebody-else", "on")
    Node.objects.update(broker_hash="")
    assert broker.reapply() == 0
    users = broker._users(redis)
    assert "node-node-1" not in users
    assert "somebody-else" in users
    redis.execute_command("ACL", "DELUSER", "somebody-else")


def test_users_that_are_all_gone_mean_a_restart_and_end_the_waiting_of_commands(
    cast: Cast, node: SimNode, redis: Redis
) -> None:
    Node.objects.update(broker_hash=secrets.plain(SECRET))
    broker.reapply()
    trouble = {"code": "driver"}
    Command.objects.update(
        state="open", trouble=trouble, attempts=4, next_at=clock.real_now() + timedelta(hours=1)
    )
    broker.reapply()
    assert Command.objects.get().trouble == trouble
    redis.execute_command("ACL", "DELUSER", "node-node-1")
    broker.reapply()
    row = Command.objects.get()
    assert row.next_at is not None
    assert (row.trouble, row.attempts) == (None, 0)
    assert row.next_at <= clock.real_now()


def test_a_redis_that_was_killed_gets_its_users_back(
    node_row: Node, private_pair: Servers, settings: Any
) -> None:
    settings.REDIS_URL = private_pair.redis_url
    assert broker.reapply() == 1
    private_pair.kill_redis()
    assert broker.reapply() == 0
    private_pair.start_redis()
    with as_node(settings) as client, pytest.raises(RedisError):
        client.ping()
    assert broker.reapply() == 1
    with as_node(settings) as client:
        assert client.ping()


def test_without_the_right_to_make_users_it_says_so(node_row: Node, redis: Redis, settings: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "node-portal", "reset", "on", ">p", "~*", "+@all", "-acl")
    parts = urlsplit(settings.REDIS_URL)
    settings.REDIS_URL = f"redis://node-portal:p@{parts.hostname}:{parts.port}/0"
    assert broker.acl_set(node_row) is broker.Acl.REFUSED
    assert broker.reapply() == 0
    assert broker.nudge([command()]) == 1


@pytest.mark.parametrize("outage", ["silent", "closed"])
def test_without_redis_it_says_so(node_row: Node, request: pytest.FixtureRequest, outage: str) -> None:
    request.getfixturevalue(outage)
    assert broker.acl_set(node_row) is broker.Acl.UNREACHABLE
    assert broker.reapply() == 0
