"""Bookings start and end by themselves, and one stay after another keeps its instance only for one owner."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.journeys.journey import SLICE, TWO_SLICES, Journey

TEN_MINUTES = timedelta(minutes=10)


def end_of(booked: Any) -> datetime:
    return datetime.fromisoformat(booked["end"])


def place_of(booked: Any) -> Any:
    (one,) = booked["allocations"]
    return one["gpu_uuid"], one["span"]


def test_a_later_booking_starts_and_ends_by_itself(journey: Journey) -> None:
    start = journey.now() + TEN_MINUTES
    booked = journey.book(TWO_SLICES, start=start, minutes=10)
    assert booked["state"] == "scheduled"
    assert journey.instances() == []

    journey.forward_to(start)
    journey.await_state(booked, "active")
    assert len(journey.instances()) == 2
    journey.await_whole()

    journey.forward_to(start + TEN_MINUTES)
    assert journey.await_state(booked, "ended")["state_reason"] == "time_up"
    assert journey.instances() == []
    journey.await_whole()


def test_the_next_stay_of_the_same_owner_touches_nothing(journey: Journey) -> None:
    first = journey.active(SLICE, minutes=10)
    second = journey.book(SLICE, start=end_of(first), minutes=10)
    assert place_of(second) == place_of(first)
    serials = journey.serials()

    journey.forward_to(end_of(first))
    follows = journey.await_state(second, "active")
    assert follows["state_reason"] == "handed_over"
    assert follows["allocations"][0]["mig_uuid"] == first["allocations"][0]["mig_uuid"]
    journey.await_state(first, "ended")
    assert journey.serials() == serials
    journey.await_whole()


def test_the_next_stay_of_somebody_else_gets_a_new_instance(journey: Journey) -> None:
    first = journey.active(SLICE, minutes=10, user="lena")
    second = journey.book(SLICE, start=end_of(first), minutes=10, user="milo")
    assert place_of(second) == place_of(first)
    serials = journey.serials()

    journey.forward_to(end_of(first))
    follows = journey.await_state(second, "active")
    assert follows["state_reason"] == "applied"
    assert len(journey.serials()) == 1
    assert journey.serials() != serials
    journey.await_whole()
