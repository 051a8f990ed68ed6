"""GPUs fail under a running agent: what is told and reset, what fails and is done again, what comes back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.journeys.journey import NODE, SLICE, WHOLE_GPU, Journey
from tests.stack import await_

#: By default the pool waits for so long before a booking on a lost GPU fails.
LOST = timedelta(minutes=15)
WHOLE = 2


def gpu_of(booked: Any) -> tuple[str, int]:
    (one,) = booked["allocations"]
    return one["gpu_uuid"], one["gpu"]


def faults(journey: Journey, uuid: str) -> Any:
    status, body = journey.stack.rest("GET", f"/gpus/{uuid}/faults", user="milo")
    assert status == 200, body
    return body


def give_back(journey: Journey, uuid: str) -> None:
    """Once it was seen well often enough, somebody who may puts it into use again."""
    await_(lambda: faults(journey, uuid)["may_return"], f"{uuid} is well")
    status, body = journey.stack.rest("POST", f"/gpus/{uuid}/return", {}, user="anna")
    assert status == 200, body


def test_a_memory_error_lets_the_booking_end_then_resets_the_gpu(journey: Journey) -> None:
    booked = journey.active(SLICE)
    uuid, index = gpu_of(booked)
    journey.stack.simulate(NODE, "xid", "48", "--gpu", str(index))

    told = await_(lambda: faults(journey, uuid)["results"], "the fault is told")
    assert [(one["xid"], one["action"], one["reset"]) for one in told] == [(48, "reset", "waiting")]
    seen = journey.seen(booked)
    assert (seen["state"], seen["allocations"][0]["trouble"]) == ("active", "gpu_faulty")
    assert journey.stack.rest("POST", f"/gpus/{uuid}/return", {}, user="anna")[0] == 409

    journey.release(booked)
    await_(lambda: faults(journey, uuid)["results"][0]["reset"] == "done", "the GPU is reset")
    give_back(journey, uuid)
    journey.await_whole()


def test_a_gpu_that_falls_off_fails_its_booking_which_goes_on_when_it_is_back(journey: Journey) -> None:
    wish = {
        "team": "vision",
        "pool": "main",
        "ask": WHOLE_GPU,
        "duration": "PT3H",
        "class": "batch",
    }
    booked = journey.stack.ask("POST", "/reservations", wish, "lena").json()
    uuid, index = gpu_of(journey.await_state(booked, "active"))
    assert index == WHOLE
    journey.stack.simulate(NODE, "xid", "79", "--gpu", str(index))

    lost = await_(lambda: _lost(journey, booked), "its holder is told that it is lost")
    assert (lost["state"], lost["allocations"][0]["env"]) == ("active", {})
    journey.forward_to(journey.now() + LOST)
    failed = journey.await_state(booked, "failed")
    rest = {"id": failed["continued_by"]}
    assert journey.seen(rest)["continues"] == booked["id"]
    assert journey.seen(rest)["state"] == "waiting"

    journey.stack.simulate(NODE, "reboot")
    give_back(journey, uuid)
    again = journey.await_state(rest, "active")
    assert gpu_of(again)[0] == uuid
    journey.release(rest)
    journey.await_whole()


def _lost(journey: Journey, booked: Any) -> Any:
    seen = journey.seen(booked)
    return seen if seen["allocations"][0]["trouble"] == "gpu_lost" else None
