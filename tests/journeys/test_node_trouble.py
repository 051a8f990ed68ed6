"""The node is rebooted, falls silent, is frozen on itself, and has instances that somebody else made."""

from __future__ import annotations

import sys
from datetime import timedelta

from tests.journeys.journey import AGENT, NODE, SLICE, TWO_SLICES, WHOLE_GPU, Journey
from tests.stack import await_

TEN_MINUTES = timedelta(minutes=10)
#: A 3g.40gb in the upper half.
HALF = {"profile_id": 9, "start": 4, "size": 4}


def freeze(journey: Journey, *off: str) -> None:
    journey.stack.call(sys.executable, "-m", "agents", "freeze", "--state", str(journey.folder), *off)


def agent_is_frozen(journey: Journey) -> bool:
    return bool(journey.node()["agent_frozen"])


def has_heard_of_the_boot(journey: Journey) -> bool:
    return journey.rows("SELECT boot_id FROM pool_node") == [(journey.machine().boot_id,)]


def reasons(journey: Journey) -> set[str | None]:
    """Why GPUs of the node are not offered; None: they are."""
    return {gpu["why"] for gpu in journey.node()["gpus"]}


# --- Reboots ------------------------------------------------------------------


def test_after_a_reboot_the_same_bookings_have_their_slices_again(journey: Journey) -> None:
    sliced, whole = journey.active(TWO_SLICES), journey.active(WHOLE_GPU)
    serials = journey.serials()

    journey.stack.kill(AGENT)
    journey.stack.simulate(NODE, "reboot")
    assert journey.serials() == []
    journey.stack.start(AGENT)

    await_(lambda: has_heard_of_the_boot(journey), "the portal has heard of the boot")
    journey.await_whole()
    assert not set(serials) & set(journey.serials())
    for booked in (sliced, whole):
        after = journey.seen(booked)
        assert (after["state"], after["state_reason"]) == ("active", "applied")
        assert after["allocations"] == booked["allocations"]
        assert journey.history(booked).count("reservation.active") == 1


def test_a_reboot_under_the_running_agent_is_noticed_too(journey: Journey) -> None:
    booked = journey.active(TWO_SLICES)

    journey.stack.simulate(NODE, "reboot")

    await_(lambda: has_heard_of_the_boot(journey), "the portal has heard of the boot")
    journey.await_whole()
    assert len(journey.usable()) == 2
    assert journey.seen(booked)["allocations"] == booked["allocations"]


# --- Silence ------------------------------------------------------------------


def test_a_silent_node_is_unknown_and_not_offered_while_its_bookings_stay(journey: Journey) -> None:
    booked = journey.active(SLICE)
    journey.stack.stop(AGENT)
    try:
        await_(lambda: journey.node()["unknown_since"], "three reports are missing")
        assert reasons(journey) == {"unknown"}
        refused = journey.ask(SLICE)
        assert refused.status_code == 409
        assert refused.json()["counts"]["unknown"]
        assert journey.health()["agents"] == {"ok": False, "fresh": 0, "stale": 1, "never": 0}
        seen = journey.seen(booked)
        assert seen["state"] == "active"
        assert seen["unknown_since"] == {NODE: journey.node()["unknown_since"]}
    finally:
        journey.stack.go_on(AGENT)

    await_(lambda: journey.node()["unknown_since"] is None, "two good reports have come")
    assert journey.seen(booked)["unknown_since"] == {}
    journey.await_state(journey.book(SLICE), "active")
    assert journey.seen(booked)["state"] == "active"
    journey.await_whole()


# --- Frozen on the node -------------------------------------------------------


def test_frozen_on_the_node_nothing_changes_and_bookings_are_kept(journey: Journey) -> None:
    ending, staying = journey.active(SLICE), journey.active(SLICE)
    later = journey.book(TWO_SLICES, start=journey.now() + TEN_MINUTES, minutes=30)
    serials = journey.serials()
    freeze(journey)
    await_(lambda: agent_is_frozen(journey), "the portal has heard of it")

    assert reasons(journey) == {"frozen"}
    assert journey.ask(SLICE).status_code == 409
    journey.release(ending)
    journey.forward_to(journey.now() + TEN_MINUTES)
    waiting = journey.await_state(later, "starting")
    assert waiting["state_reason"] == "frozen"
    received = journey.node()["received_at"]
    await_(lambda: journey.node()["received_at"] > received, "another report has come")
    assert journey.serials() == serials
    assert journey.seen(ending)["state"] == "ending"
    assert journey.seen(staying)["state"] == "active"

    freeze(journey, "--off")

    journey.await_state(ending, "ended")
    journey.await_state(later, "active")
    assert len(set(serials) & set(journey.serials())) == 1
    journey.await_whole()


# --- Somebody else's instance -------------------------------------------------


def test_an_instance_of_somebody_else_is_never_destroyed_nor_offered(journey: Journey) -> None:
    uuid = journey.gpus()[0].uuid
    with journey.driver() as driver:
        made = driver.create(uuid, **HALF)
    foreign = (uuid, made.start, made.size, made.profile_id, made.mig_uuid)
    serials = journey.serials()
    try:
        blockers = "SELECT count(*) FROM pool_blocker WHERE kind = 'foreign'"
        await_(lambda: journey.rows(blockers)[0][0], "the portal has heard of it")
        # A GPU holds seven of these; beside the foreign one four have room.
        refused = journey.ask(SLICE | {"count": 12})
        assert refused.status_code == 409
        assert refused.json()["free"] == 11
        booked = journey.active(SLICE | {"count": 11})
        journey.await_whole(foreign=(foreign,))
        journey.release(booked)
        journey.await_state(booked, "ended")
        assert journey.serials() == serials
        journey.stack.restart(AGENT)
        journey.await_whole(foreign=(foreign,))
        assert journey.serials() == serials
    finally:
        with journey.driver() as driver:
            driver.destroy(uuid, made.gi)
    await_(lambda: not journey.rows(blockers)[0][0], "the portal has heard that it is gone")
    journey.await_state(journey.book(SLICE | {"count": 14}), "active")
    journey.await_whole()
