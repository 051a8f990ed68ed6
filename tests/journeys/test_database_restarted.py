"""PostgreSQL is restarted, and killed, while people book, nodes report and lanes run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.journeys.journey import SLICE, TWO_SLICES, Journey
from tests.journeys.load import Load


def test_restarted_and_killed_under_load_it_loses_nothing_and_books_nothing_twice(journey: Journey) -> None:
    servers = journey.stack.servers
    booked = journey.active(TWO_SLICES)
    serials = journey.serials()
    with Load(journey) as load:
        load.await_more()
        servers.restart_postgres()
        load.await_more()
        servers.kill_postgres()
        servers.start_postgres()
        load.await_more()
    load.check()
    assert journey.seen(booked)["state"] == "active"
    journey.await_state(journey.book(SLICE), "active")
    journey.await_whole()
    assert set(serials) < set(journey.serials())


def test_while_it_is_away_people_are_told_so_and_slices_live_on(journey: Journey) -> None:
    servers = journey.stack.servers
    booked = journey.active(TWO_SLICES)
    serials = journey.serials()
    probes = [f"{journey.stack.url}/{name}" for name in ("livez", "readyz", "healthz")]
    servers.postgres.stop()
    try:
        with ThreadPoolExecutor() as asking:
            refused = asking.submit(journey.ask, SLICE)
            alive, ready, well = (asking.submit(journey.stack.client.get, url) for url in probes)
        assert (refused.result().status_code, refused.result().json()["code"]) == (503, "not_ready")
        assert (alive.result().status_code, ready.result().status_code) == (200, 503)
        assert well.result().json()["status"] == "down"
    finally:
        servers.start_postgres()
    assert journey.serials() == serials
    journey.await_known()
    journey.await_state(journey.book(SLICE), "active")
    assert journey.seen(booked)["state"] == "active"
    journey.await_whole()
