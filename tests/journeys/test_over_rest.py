"""A pipeline books through REST, gets what it asked for on a node, and gives it back."""

from __future__ import annotations

from tests.journeys.journey import NODE, SLICE, TWO_SLICES, WHOLE_GPU, Journey


def observed(journey: Journey) -> list[object]:
    """The observed layout of every GPU that can be sliced, as REST shows it."""
    _, node = journey.stack.rest("GET", f"/nodes/{NODE}", user="anna")
    details = [journey.stack.rest("GET", f"/gpus/{gpu['uuid']}", user="anna")[1] for gpu in node["gpus"]]
    return [cell for gpu in details for cell in gpu["observed"] or () if cell["kind"] != "free"]


def test_two_slices_come_alive_on_the_node_and_are_given_back(journey: Journey) -> None:
    booked = journey.book(TWO_SLICES)
    assert booked["state"] == "starting"

    active = journey.await_state(booked, "active")
    uuids = {one["mig_uuid"] for one in active["allocations"]}
    assert len(uuids) == 2
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    assert all(one["env"]["CUDA_VISIBLE_DEVICES"] == one["mig_uuid"] for one in active["allocations"])
    assert {uuid for *_, uuid in journey.instances()} == uuids
    journey.await_whole()

    assert journey.release(booked)["state"] == "ending"
    journey.await_state(booked, "ended")
    assert journey.instances() == []
    assert observed(journey) == []
    journey.await_whole()


def test_the_same_key_answers_the_first_result_and_another_body_is_refused(journey: Journey) -> None:
    booked = journey.book(SLICE, key="one-of-a-kind")
    journey.await_state(booked, "active")

    again = journey.ask(SLICE, key="one-of-a-kind")
    assert again.status_code == 201
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["id"] == booked["id"]
    assert journey.ask(TWO_SLICES, key="one-of-a-kind").status_code == 422
    assert len(journey.instances()) == 1
    journey.await_whole()


def test_a_whole_gpu_comes_alive_without_slices_and_is_given_back(journey: Journey) -> None:
    active = journey.active(WHOLE_GPU)

    (one,) = active["allocations"]
    assert (one["kind"], one["gpu"], one["mig_uuid"], one["profile"]) == ("gpu", 2, None, None)
    assert one["env"]["NVIDIA_VISIBLE_DEVICES"] == one["gpu_uuid"]
    assert [gpu.mig for gpu in journey.gpus()] == [True, True, False]
    assert journey.ask(WHOLE_GPU).status_code == 409
    journey.await_whole()

    journey.release(active)
    journey.await_state(active, "ended")
    journey.await_state(journey.book(WHOLE_GPU), "active")
