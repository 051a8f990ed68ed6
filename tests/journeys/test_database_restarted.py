"""PostgreSQL is restarted, and killed, while people book, nodes report and lanes run."""

from __future__ import annotations

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
    servers.postgres.stop()
    try:
        refused = journey.ask(SLICE)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert journey.stack.client.get(f"{journey.stack.url}/livez").status_code == 200
        assert journey.stack.client.get(f"{journey.stack.url}/readyz").status_code == 503
        assert journey.health()["status"] == "down"
    finally:
        servers.start_postgres()
    assert journey.serials() == serials
    journey.await_known()
    journey.await_state(journey.book(SLICE), "active")
    assert journey.seen(booked)["state"] == "active"
    journey.await_whole()
