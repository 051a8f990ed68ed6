"""The agent is killed with kill -9, at each moment of a command's life, and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.journeys.gates import Gate
from tests.journeys.journey import AGENT, SLICE, TWO_SLICES, Journey
from tests.stack import await_

Moment = Callable[[Journey], Any]


@contextmanager
def held_before_the_driver(journey: Journey) -> Iterator[tuple[Any, Gate]]:
    """A booking whose command has arrived: the agent has put down what it makes, and waits for the driver."""
    with Gate(journey.folder / "driver.lock") as gate:
        booked = journey.book(TWO_SLICES)
        await_(journey.is_making, "the agent begins")
        assert journey.serials() == []
        yield booked, gate


def before_the_command(journey: Journey) -> Any:
    journey.stack.kill(AGENT)
    return journey.book(TWO_SLICES)


def before_the_gpu_instance(journey: Journey) -> Any:
    with held_before_the_driver(journey) as (booked, _):
        journey.stack.kill(AGENT)
    return booked


def between_gpu_instance_and_compute_instance(journey: Journey) -> Any:
    with held_before_the_driver(journey) as (booked, gate):
        gate.let_one_through()
        await_(journey.serials, "the GPU instance is made")
        journey.stack.kill(AGENT)
    (half,) = journey.instances()
    assert half[-1] is None
    return booked


def before_the_record(journey: Journey) -> Any:
    draft = journey.folder / ".record.json.new"
    with held_before_the_driver(journey) as (booked, gate), Gate(draft, between_writes=True):
        gate.open()
        await_(journey.usable, "the first slice is there")
        assert journey.is_making()
        journey.stack.kill(AGENT)
    return booked


def before_the_report(journey: Journey) -> Any:
    draft = journey.folder / ".seq.json.new"
    with held_before_the_driver(journey) as (booked, gate), Gate(draft, between_writes=True):
        gate.open()
        await_(lambda: applied(journey), "all is made, and on record")
        assert journey.seen(booked)["state"] == "starting"
        journey.stack.kill(AGENT)
    return booked


def applied(journey: Journey) -> bool:
    """Whether the newest command of the GPU in question is on record as done."""
    ((uuid, generation),) = journey.rows(
        "SELECT gpu.uuid, gpu.generation FROM pool_gpu gpu JOIN pool_command c ON c.gpu_id = gpu.id"
        " WHERE c.state = 'open'"
    )
    return bool(journey.record().get(uuid, {}).get("applied") == generation)


MOMENTS: tuple[Moment, ...] = (
    before_the_command,
    before_the_gpu_instance,
    between_gpu_instance_and_compute_instance,
    before_the_record,
    before_the_report,
)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_what_was_booked_is_made_once_after_a_restart(journey: Journey, moment: Moment) -> None:
    booked = moment(journey)
    assert not journey.stack.alive(AGENT)
    made = journey.usable()

    journey.stack.start(AGENT)

    active = journey.await_state(booked, "active")
    assert len({one["mig_uuid"] for one in active["allocations"]}) == 2
    assert len(journey.instances()) == 2
    assert made <= journey.usable(), "what was there already is taken over, not made anew"
    journey.await_whole()


def test_what_was_released_is_gone_after_a_restart(journey: Journey) -> None:
    booked = journey.active(SLICE)
    with Gate(journey.folder / "driver.lock"):
        assert journey.release(booked)["state"] == "ending"
        await_(lambda: journey.node()["received_at"] and is_wanted_gone(journey), "the agent begins")
        journey.stack.kill(AGENT)
    assert len(journey.serials()) == 1

    journey.stack.start(AGENT)

    journey.await_state(booked, "ended")
    assert journey.serials() == []
    journey.await_whole()


def is_wanted_gone(journey: Journey) -> bool:
    """The agent was told, and has it on record, that nothing is wanted on any GPU."""
    wanted = [gpu["wanted"]["layout"].get("held") for gpu in journey.record().values() if gpu.get("wanted")]
    return not any(wanted)


def test_an_unreadable_record_destroys_nothing(journey: Journey) -> None:
    booked = journey.active(SLICE)
    serials = journey.serials()
    journey.stack.kill(AGENT)
    record = journey.folder / "record.json"
    saved = record.read_text()
    record.write_text(saved[: len(saved) // 2])

    journey.stack.start(AGENT)
    sees_foreign = "SELECT count(*) FROM pool_blocker WHERE kind = 'foreign'"
    await_(lambda: journey.rows(sees_foreign)[0][0], "what nobody knows any more is foreign")
    assert journey.serials() == serials
    assert journey.seen(booked)["state"] == "active"

    journey.stack.kill(AGENT)
    record.write_text(saved)
    journey.stack.start(AGENT)
    await_(lambda: not journey.rows(sees_foreign)[0][0], "it is known again")
    journey.await_whole()
