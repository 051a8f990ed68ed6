"""Whose a process is, and when that is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from agents.attribution import attribute, booked, everything_on, host
from agents.containers import Container, Labels
from agents.gpu import Gpu
from agents.processes import Facts
from agents.record import GpuRecord, Whole
from pool.core.wire import Process, Stay
from tests.agents.people import gpu, held, instance, made, process, slices, stay, wants

DOCKER = Container("docker", "ab" * 32)
ALICE = Facts(uid=1001, user="alice", name="python")
BOB = Facts(uid=1002, user="bob", name="python")
ROOT = Facts(uid=0, user="root", name="python")
INSIDE = replace(ROOT, container=DOCKER, root_inside=True)
OWN = {"GPUPOOL_RESERVATION": "r-a"}


def whose(
    facts: Facts | Mapping[int, Facts], seen: Gpu, record: GpuRecord, stays: Sequence[Stay]
) -> dict[int, tuple[str | None, str | None]]:
    """(allocation, by) of each process."""
    look = (lambda one: facts.get(one.pid, Facts())) if isinstance(facts, Mapping) else (lambda one: facts)
    told = attribute(seen, record, stays, look)
    assert everything_on(told) == told.processes
    return {one.pid: (one.allocation, one.by) for one in told.processes or ()}


def one(
    facts: Facts, record: GpuRecord, stays: Sequence[Stay], **process_: Any
) -> tuple[str | None, str | None]:
    return whose(facts, gpu(process(**process_)), record, stays)[100]


def devices(*names: str) -> Labels:
    return Labels(devices=frozenset(names))


@pytest.mark.parametrize(
    ("facts", "by"),
    [
        (ALICE, "user"),
        (replace(ALICE, marks=OWN), "environment"),
        (replace(ALICE, marks={"GPUPOOL_ALLOCATION": "a"}), "environment"),
        (replace(INSIDE, marks=OWN), "environment"),
        (replace(INSIDE, labels=Labels(reservation="r-a")), "label"),
        (replace(INSIDE, labels=Labels(allocation="a"), marks=OWN), "label"),
        (replace(INSIDE, labels=devices("a", "x"), marks=OWN), "cdi"),
        (replace(BOB, container=DOCKER, labels=devices("a")), "cdi"),
        (replace(ALICE, container=replace(DOCKER, rootless=True)), "user"),
        (replace(ALICE, marks={"GPUPOOL_RESERVATION": "r-elsewhere"}), "user"),
    ],
)
def test_the_strongest_proof_says_whose_it_is(facts: Facts, by: str) -> None:
    assert one(facts, wants(held()), [stay()]) == ("a", by)


@pytest.mark.parametrize(
    "facts",
    [
        BOB,
        ROOT,
        INSIDE,
        Facts(),
        replace(BOB, marks=OWN),  # anybody can set a variable
        replace(ROOT, marks=OWN),  # root, but in no container
        replace(BOB, container=DOCKER, marks=OWN),
        replace(ALICE, container=DOCKER),  # an image's uid, which only happens to be alice's
        replace(INSIDE, labels=Labels(devices=frozenset({"b"}), allocation="b", reservation="r-b")),
        replace(INSIDE, marks={"GPUPOOL_RESERVATION": ""}),
    ],
)
def test_what_proves_nothing_is_nobodys(facts: Facts) -> None:
    assert one(facts, wants(held()), [stay()]) == (None, None)


def test_a_team_service_account_is_the_holder_too() -> None:
    facts = Facts(uid=1009, user="red-jobs")
    record = wants(held(users=("alice", "red-jobs")))
    assert one(facts, record, []) == ("a", "user")
    assert one(facts, record, [stay(users=("alice", "red-jobs"))]) == ("a", "user")
    assert one(facts, record, [stay(users=("alice",))]) == (None, None)  # the newer word counts


def test_a_layout_without_reservations_fits_no_empty_variable() -> None:
    facts = replace(ALICE, user="carol", marks={"GPUPOOL_RESERVATION": ""}, labels=Labels(reservation=""))
    assert one(facts, wants(held(reservation="", users=())), []) == (None, None)


def test_on_an_instance_only_its_own_allocation_counts() -> None:
    record = wants(
        held("a", profile_id=19, size=1), held("b", profile_id=19, start=1, size=1, users=("bob",)),
        made=[made("a", 0), made("b", 1)], mig=True,
    )  # fmt: skip
    seen = slices(
        instance(1, 0, process(1), process(2)),
        instance(2, 1, process(3), process(4)),
        instance(3, 2, process(5)),
        processes=(process(6),),
    )
    facts = {1: ALICE, 2: BOB, 3: BOB, 4: ALICE, 5: ALICE, 6: ALICE}
    stays = [stay("a"), stay("b", users=("bob",))]
    nobodys = (None, None)
    assert whose(facts, seen, record, stays) == {
        1: ("a", "user"), 2: nobodys, 3: ("b", "user"), 4: nobodys, 5: nobodys, 6: nobodys,
    }  # fmt: skip
    told = attribute(seen, record, stays, lambda one: facts[one.pid])
    assert [[one.allocation for one in some.processes or ()] for some in told.instances or ()] == [
        ["a", None],
        ["b", None],
        [None],
    ]


def test_two_shares_of_one_user_are_a_doubt_until_a_variable_tells() -> None:
    record = wants(held("a", share=True), held("b", share=True))
    stays = [stay("a"), stay("b")]
    assert one(ALICE, record, stays) == (None, None)
    assert one(replace(ALICE, marks={"GPUPOOL_RESERVATION": "r-b"}), record, stays) == ("b", "environment")
    both = [stay("a", reservation="r"), stay("b", reservation="r")]
    assert one(replace(ALICE, marks={"GPUPOOL_RESERVATION": "r"}), record, both) == (None, None)
    told = replace(ALICE, marks={"GPUPOOL_RESERVATION": "r", "GPUPOOL_ALLOCATION": "b"})
    assert one(told, record, both) == ("b", "environment")
    assert one(replace(ALICE, marks={"GPUPOOL_ALLOCATION": "b"}), record, both) == ("b", "environment")
    assert one(replace(INSIDE, labels=devices("a", "b")), record, stays) == (None, None)


def test_what_is_over_still_counts_for_what_runs_on() -> None:
    over = stay("a", ending=True)
    assert one(ALICE, wants(), [over]) == ("a", "user")
    assert one(ALICE, wants(held("b", users=("bob",))), [over, stay("b", users=("bob",), owner="bob")]) == (
        "a",
        "user",
    )
    assert one(ALICE, wants(), [stay("a")]) == (None, None)  # not yet, or not here
    assert one(ALICE, GpuRecord(), [replace_gpu(over)]) == (None, None)


def replace_gpu(one: Stay) -> Stay:
    return stay(one.allocation, ending=True, gpu="GPU-2")


def test_the_next_part_of_one_stay_takes_over_what_runs() -> None:
    record, stays = wants(held("b")), [stay("a", ending=True), stay("b")]
    assert one(ALICE, record, stays) == ("b", "user")
    assert one(replace(ALICE, marks=OWN), record, stays) == ("b", "environment")
    assert one(replace(INSIDE, labels=devices("a")), record, stays) == ("b", "cdi")


def test_another_teams_booking_of_the_same_user_takes_over_nothing_that_was_named() -> None:
    record, stays = wants(held("b")), [stay("a", ending=True), stay("b", team="blue")]
    assert one(replace(ALICE, marks=OWN), record, stays) == ("a", "environment")
    assert one(ALICE, record, stays) == ("b", "user")  # in doubt, what holds is meant, not what is over


@pytest.mark.parametrize(
    ("facts", "memory", "system"),
    [
        (Facts(uid=1001, user="alice", program="nvidia-cuda-mps-server"), 5000, True),
        (Facts(uid=0, program="Xorg", name="X"), 5, True),
        (Facts(uid=1001, user="alice", program="python3.11", name="Xorg"), 5, False),
        (Facts(uid=1001, user="alice", name="Xorg"), 5, False),
        (Facts(uid=0, user="root", name="nvidia-persistenced"), 5, True),
        (replace(INSIDE, program="dcgm-exporter"), 200, True),
        (replace(INSIDE, program="dcgm-exporter"), 20_000, False),
        (replace(INSIDE, program="dcgm-exporter"), None, False),
        (replace(ALICE, container=DOCKER, program="dcgm-exporter"), 5, False),
        (replace(INSIDE, name="dcgm-exporter"), 5, False),
        (Facts(), 5, False),
    ],
)
def test_the_machines_own_is_known_by_its_program_and_not_by_a_name(
    facts: Facts, memory: int | None, system: bool
) -> None:
    seen = gpu(process(memory_mib=memory))
    (told,) = attribute(seen, wants(held()), [stay()], lambda _: facts).processes or ()
    assert told.system is system
    if system:
        assert (told.allocation, told.by) == (None, None)


def test_what_could_not_be_read_stays_unread() -> None:
    seen = Gpu("GPU-1", 0, "x", mig=None, instances=None, processes=None)
    assert attribute(seen, wants(held()), [stay()], lambda _: ALICE) == seen
    unread = slices(replace(instance(1, 0), processes=None))
    (shown,) = attribute(unread, wants(), [], lambda _: ALICE).instances or ()
    assert shown.processes is None


@pytest.mark.parametrize("mig", [True, None])
def test_while_slices_cannot_be_read_nothing_passes_for_a_stay_that_is_over(mig: bool | None) -> None:
    """Alice's other slice on the GPU goes on: what runs in it must not be taken for the one that is over."""
    seen = Gpu("GPU-1", 0, "x", mig_capable=True, mig=mig, instances=None, processes=(process(1),))
    record = wants(held("b", profile_id=19, start=1, size=1), made=[made("b", 1)], mig=True)
    assert whose(ALICE, seen, record, [stay("a", ending=True), stay("b")]) == {1: (None, None)}


def test_a_gpu_that_knows_no_mig_is_whole() -> None:
    seen = Gpu("GPU-1", 0, "T4", mig_capable=False, instances=(), processes=(process(1),))
    assert whose(ALICE, seen, wants(held()), [stay()]) == {1: ("a", "user")}


def test_an_instance_without_a_record_is_foreign_with_all_that_runs_in_it() -> None:
    seen = slices(instance(1, 0, process(1)))
    assert whose(ALICE, seen, wants(held("a", profile_id=19, size=1), mig=True), [stay()]) == {
        1: (None, None)
    }


def test_in_mig_mode_a_stay_of_the_whole_gpu_that_is_over_is_nobodys_slice() -> None:
    seen = slices(instance(1, 0, process(1)), processes=(process(2),))
    assert whose(ALICE, seen, wants(mig=True), [stay(ending=True)]) == {1: (None, None), 2: (None, None)}


def test_a_gpu_is_booked_by_what_is_held_and_by_what_is_to_come() -> None:
    assert booked(wants(held()), [])
    assert booked(GpuRecord(), [stay()])
    assert not booked(wants(), [])
    assert not booked(GpuRecord(), [])


def test_a_process_runs_in_the_place_of_one_allocation_or_of_nobody() -> None:
    inside, beside = process(1), process(2)
    sliced = slices(instance(1, 0, inside), instance(2, 1, beside))
    assert host(sliced, wants(held("a"), made=[made("a", 0)], mig=True), inside) == "a"
    assert host(sliced, wants(held("a"), made=[made("a", 0)], mig=True), beside) is None
    assert host(gpu(inside), wants(held("a")), inside) == "a"
    assert host(gpu(inside), wants(held("a", share=True), held("b", share=True)), inside) is None
    assert host(gpu(inside), wants(), inside) is None


def test_everything_on_a_gpu_is_counted_once() -> None:
    seen = slices(instance(1, 0, process(1)), processes=(process(2),))
    assert sorted(one.pid for one in everything_on(seen)) == [1, 2]
    assert everything_on(Gpu("GPU-1", 0, "x")) == ()
    assert isinstance(everything_on(gpu(process()))[0], Process)


# --- Adopted ----------------------------------------------------------------------

SINCE = stay().start


def adopted(began: datetime | None, **more: Any) -> Facts:
    return replace(BOB, started_at=began, **more)


@pytest.mark.parametrize("ending", [False, True])
def test_what_ran_when_it_was_adopted_is_its_holders_to_the_end(ending: bool) -> None:
    facts, there = adopted(SINCE - timedelta(hours=1)), [stay(ending=ending)]
    mine = msgspec.structs.replace(made("a", 0), adopted=True)
    sliced = slices(instance(1, 0, process()))
    record = wants(*(() if ending else (held(profile_id=19, size=1, adopt=True),)), made=[mine], mig=True)
    assert whose(facts, sliced, record, there) == {100: ("a", "adopted")}
    whole = msgspec.structs.replace(
        wants(*(() if ending else (held(adopt=True),))),
        whole=Whole(allocation="a", owner="alice/red", adopted=True),
    )
    assert one(facts, whole, there) == ("a", "adopted")


@pytest.mark.parametrize("began", [SINCE + timedelta(seconds=1), None])
def test_what_came_after_an_adoption_needs_a_proof_of_its_own(began: datetime | None) -> None:
    mine = msgspec.structs.replace(made("a", 0), adopted=True)
    record = wants(held(profile_id=19, size=1, adopt=True), made=[mine], mig=True)
    assert whose(adopted(began), slices(instance(1, 0, process())), record, [stay()]) == {100: (None, None)}
    assert whose(ALICE, slices(instance(1, 0, process())), record, [stay()]) == {100: ("a", "user")}


def test_of_what_was_not_adopted_an_early_start_proves_nothing() -> None:
    early = adopted(SINCE - timedelta(hours=1))
    assert one(early, wants(held()), [stay()]) == (None, None)
