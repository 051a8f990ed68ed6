"""Redis is killed, emptied, silent: commands travel by report, and everything heals when it is back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.journeys.journey import AGENT, ANSWER_S, NODE, SLICE, TWO_SLICES, Journey
from tests.stack import await_


def quickly(journey: Journey, ask: dict[str, Any]) -> Any:
    """A booking that is answered as fast as if Redis were there."""
    began = time.monotonic()
    booked = journey.book(ask)
    took = time.monotonic() - began
    assert took < ANSWER_S, f"it took {took:.2f} s"
    return booked


@contextmanager
def silent_redis(journey: Journey) -> Iterator[None]:
    """It accepts connections and says nothing."""
    pid = journey.stack.servers.redis.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def admin(journey: Journey) -> redis.Redis:
    return journey.stack.servers.redis.client()


def node_is_connected(journey: Journey) -> bool:
    return bool(journey.rows("SELECT broker_ok FROM pool_node")[0][0])


def test_killed_and_restarted_it_gets_its_users_back(journey: Journey) -> None:
    before = journey.active(SLICE)
    journey.stack.servers.kill_redis()

    during = quickly(journey, TWO_SLICES)
    journey.await_state(during, "active")
    assert journey.health()["broker"] == {"ok": False}

    journey.stack.servers.start_redis()
    await_(lambda: node_is_connected(journey), "the node is on Redis again")
    journey.await_state(journey.book(SLICE), "active")
    assert journey.seen(before)["state"] == "active"
    journey.await_whole()


def test_emptied_with_commands_in_flight_nothing_is_lost(journey: Journey) -> None:
    queue = f"node:{NODE}:celery"
    journey.stack.stop(AGENT)
    booked = [journey.book(SLICE), journey.book(TWO_SLICES)]
    with admin(journey) as client:
        await_(lambda: client.llen(queue), "commands are in flight")
        client.flushall()
        client.execute_command("ACL", "DELUSER", f"node-{NODE}")
        assert client.llen(queue) == 0
    journey.stack.go_on(AGENT)

    for one in booked:
        journey.await_state(one, "active")
    await_(lambda: node_is_connected(journey), "the node is on Redis again")
    journey.await_state(journey.book(SLICE), "active")
    journey.await_whole()


def test_while_it_is_silent_a_booking_is_granted_at_once_and_comes_alive(journey: Journey) -> None:
    with silent_redis(journey):
        first = quickly(journey, TWO_SLICES)
        second = quickly(journey, SLICE)
        journey.await_state(first, "active")
        journey.await_state(second, "active")
        journey.release(second)
        journey.await_state(second, "ended")

    await_(lambda: node_is_connected(journey), "the node is on Redis again")
    journey.await_whole()
