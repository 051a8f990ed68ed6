"""Web server, workers and beat are killed with kill -9 or ended with SIGTERM, and started again."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.journeys.journey import AGENT, SLICE, TWO_SLICES, Journey
from tests.journeys.load import Load
from tests.stack import await_

PORTAL = ("web", "worker-due", "worker-slow", "beat")
#: "Within seconds", on a machine that has other things to do.
ENDS_S = 10.0


def test_a_worker_killed_in_the_middle_of_its_lane_is_taken_over(journey: Journey) -> None:
    start = journey.now() + timedelta(minutes=10)
    booked = journey.book(SLICE, start=start, minutes=10)
    with journey.pool_locked():
        journey.forward_to(start)
        await_(journey.waiting_for_lock, "the lane has begun and waits for the pool")
        journey.stack.kill("worker-due")
    journey.stack.kill("beat")
    assert journey.seen(booked)["state"] == "scheduled"
    assert journey.rows("SELECT until > beat_at FROM pool_lane WHERE name = 'due'") == [(True,)]

    journey.stack.start("worker-due")
    await_(lambda: journey.health()["status"] == "degraded", "without beat the heartbeat is missed")
    assert journey.seen(booked)["state"] == "scheduled"
    journey.stack.start("beat")

    journey.await_state(booked, "active")
    journey.await_whole()


def test_a_web_server_killed_in_the_middle_of_a_booking_books_it_once(journey: Journey) -> None:
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(journey.ask(TWO_SLICES, key="cut-short"))
        except httpx.TransportError as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    with journey.pool_locked():
        asking.start()
        await_(journey.waiting_for_lock, "the booking waits for the pool")
        journey.stack.kill("web")
        asking.join(30)
    assert isinstance(answers[0], httpx.TransportError)
    assert journey.rows("SELECT count(*) FROM pool_reservation WHERE state = 'starting'") == [(0,)]

    journey.stack.start("web")
    await_(journey.stack.answers, "the web server answers")
    journey.await_known()

    first = journey.book(TWO_SLICES, key="cut-short")
    assert journey.book(TWO_SLICES, key="cut-short")["id"] == first["id"]
    journey.await_state(first, "active")
    journey.await_whole()


def test_killed_under_load_each_of_them_loses_nothing_and_books_nothing_twice(journey: Journey) -> None:
    with Load(journey) as load:
        load.await_more()
        for name in PORTAL:
            journey.stack.restart(name)
            load.await_more()
    load.check()
    assert load.statuses.keys() & {"ConnectError", "ReadError", "RemoteProtocolError"}, "nobody noticed"
    journey.await_whole()


@pytest.mark.parametrize("name", [*PORTAL, AGENT])
def test_it_ends_within_seconds_when_asked_to(journey: Journey, name: str) -> None:
    began = time.monotonic()
    journey.stack.kill(name, signal.SIGTERM)
    took = time.monotonic() - began
    status = journey.stack.processes[name].returncode
    journey.stack.start(name)

    assert took < ENDS_S
    # uvicorn ends in order, and then by the same signal, as shells expect it.
    assert status in (0, -signal.SIGTERM)
    await_(journey.stack.answers, "the web server answers")
    journey.await_whole()


def test_an_agent_that_is_ended_keeps_its_slices_and_takes_them_over(journey: Journey) -> None:
    booked = journey.active(TWO_SLICES)
    serials = journey.serials()
    journey.stack.kill(AGENT, signal.SIGTERM)
    assert journey.serials() == serials

    journey.stack.start(AGENT)
    third = journey.active(SLICE)

    assert set(serials) < set(journey.serials())
    assert journey.seen(booked)["state"] == journey.seen(third)["state"] == "active"
    journey.await_whole()
