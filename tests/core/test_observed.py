"""core.observed: reports without their nonsense, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core import observed, wire
from pool.core.observed import Seen

A, B = "0198c6a0-0000-7000-8000-00000000000a", "0198c6a0-0000-7000-8000-00000000000b"


def held(allocation: str, start: int, size: int = 1) -> wire.Held:
    return wire.Held(
        allocation=allocation, owner="1:1:x", profile="1g.10gb", profile_id=19, start=start, size=size
    )


def instance(start: int, size: int = 1, **over: Any) -> wire.Instance:
    values: dict[str, Any] = {
        "gi": start + 1,
        "ci": 0,
        "mig_uuid": f"MIG-{start}",
        "profile_id": 19,
        "profile": "1g.10gb",
        "start": start,
        "size": size,
        "owned": True,
        "processes": (),
    }
    return wire.Instance(**values | over)


def gpu(**over: Any) -> wire.GpuReport:
    values: dict[str, Any] = {
        "uuid": "GPU-1",
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "mig": True,
        "mig_capable": True,
        "grid": 8,
        "instances": (),
        "generation": 5,
    }
    return wire.GpuReport(**values | over)


def seen(**over: Any) -> Seen:
    (one,), _dropped = observed.clean([gpu(**over)])
    return one


def layout(*slices: wire.Held, mig: bool = True) -> wire.Layout:
    return wire.Layout(mig=mig, held=slices)


# --- Nonsense ----------------------------------------------------------------


def test_it_counts_a_gpu_that_is_named_twice_or_has_no_proper_name() -> None:
    kept, dropped = observed.clean([gpu(), gpu(), gpu(uuid=""), gpu(uuid="a b"), gpu(uuid="x" * 65)])
    assert ([one.uuid for one in kept], dropped) == (["GPU-1"], 4)


@pytest.mark.parametrize("odd", ["GPU-a/b", "GPU-$(id)", "GPU-1;id", "GPU-1?", "GPU-é"])
def test_a_gpu_is_named_so_that_addresses_and_shells_take_it(odd: str) -> None:
    assert observed.clean([gpu(uuid=odd)]) == ((), 1)


@pytest.mark.parametrize("odd", ["MIG-1; id", "MIG-$(id)", "MIG-`id`", "MIG-1\nid", "MIG-'", "", "x"])
def test_an_instance_whose_uuid_makes_no_sense_is_in_nobodys_hands(odd: str) -> None:
    (one,), dropped = observed.clean([gpu(held=(A,), instances=(instance(0, allocation=A, mig_uuid=odd),))])
    assert (observed.in_force(layout(held(A, 0)), one), dropped) == ({}, 1)


def test_mig_uuids_of_older_drivers_are_taken() -> None:
    older = "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0"
    one = seen(held=(A,), instances=(instance(0, allocation=A, mig_uuid=older),))
    assert observed.in_force(layout(held(A, 0)), one) == {A: older}


def test_it_reads_no_more_gpus_than_a_node_can_have() -> None:
    kept, dropped = observed.clean([gpu(uuid=f"GPU-{n}") for n in range(70)])
    assert (len(kept), dropped) == (observed.MOST_GPUS, 70 - observed.MOST_GPUS)


def test_an_instance_outside_the_grid_is_dropped_and_makes_the_gpu_unsure() -> None:
    (one,), dropped = observed.clean(
        [gpu(instances=(instance(0), instance(7, 2), instance(-1), instance(1, 0)))]
    )
    assert ([i.start for i in one.instances or ()], one.unsure, dropped) == ([0], True, 3)


def test_instances_that_all_make_sense_leave_no_doubt() -> None:
    one = seen(instances=(instance(0), instance(7)))
    assert not one.unsure


@pytest.mark.parametrize("value", [-1, 10**9, "8", True, 1.5, float("nan")])
def test_memory_of_an_instance_that_makes_no_sense_is_not_measured(value: object) -> None:
    (one,), dropped = observed.clean([gpu(instances=(instance(0, memory_used_mib=value),))])
    assert one.instances is not None
    assert (one.instances[0].memory_used_mib, dropped) == (None, 1)


def test_what_was_not_measured_drops_nothing() -> None:
    _kept, dropped = observed.clean([gpu(memory_total_mib=None, instances=None, processes=None)])
    assert dropped == 0


def test_only_ids_count_as_allocations_in_force() -> None:
    assert seen(held=(A, "x", A.upper())).held == {A}


def test_plain_keeps_no_nul_no_infinity_and_no_long_text() -> None:
    value = observed.plain(
        {"a\0": ["b\0\n\u202e", float("inf"), float("nan"), 1, None, True], "c": "x" * 999}
    )
    assert value == {"a": ["b", None, None, 1, None, True], "c": "x" * observed.MOST_TEXT}


def test_a_grid_that_is_not_told_comes_from_the_catalogue() -> None:
    assert seen(grid=None).grid == 8
    assert seen(grid=None, name="NVIDIA X9000").grid == 1


# --- Settled -------------------------------------------------------------------


def test_it_is_settled_when_mode_slices_and_allocations_are_as_wanted() -> None:
    one = seen(held=(A,), instances=(instance(0, allocation=A),))
    assert observed.settled(layout(held(A, 0)), 5, one)


@pytest.mark.parametrize(
    "over",
    [
        {"generation": 4},
        {"held": ()},
        {"held": (A, B)},
        {"instances": ()},
        {"instances": None},
        {"instances": (instance(1),)},
        {"instances": (instance(0), instance(1))},
        {"instances": (instance(0, owned=False),)},
        {"mig": False},
        {"mig": None},
        {"lost": True},
        {"instances": (instance(0), instance(9))},
    ],
)
def test_it_is_not_settled_when_anything_differs(over: dict[str, Any]) -> None:
    one = seen(**{"held": (A,), "instances": (instance(0, allocation=A),)} | over)
    assert not observed.settled(layout(held(A, 0)), 5, one)


def test_a_foreign_instance_beside_does_not_matter_to_settling() -> None:
    one = seen(held=(A,), instances=(instance(0), instance(4, 4, owned=False)))
    assert observed.settled(layout(held(A, 0)), 5, one)


def test_a_whole_gpu_is_settled_with_mig_off() -> None:
    whole = wire.Layout(
        mig=False,
        held=(wire.Held(allocation=A, owner="x", profile=None, profile_id=None, start=0, size=8),),
    )
    assert observed.settled(whole, 5, seen(mig=False, held=(A,)))
    assert observed.settled(whole, 5, seen(mig=None, instances=None, held=(A,)))
    assert not observed.settled(whole, 5, seen(mig=True, held=(A,)))


def test_it_contradicts_what_it_was_told_when_it_is_content_with_something_else() -> None:
    told = layout(held(A, 0))
    assert observed.contradicts(told, 5, seen(held=(B,)))
    assert not observed.contradicts(told, 5, seen(held=(A,)))
    assert not observed.contradicts(told, 6, seen(held=(B,)))
    assert not observed.contradicts(told, 5, seen(trouble=wire.Trouble(generation=5, code="driver")))


def test_an_allocation_that_this_generation_has_not_is_unheard_of() -> None:
    told = layout(held(A, 0))
    assert observed.unheard_of(told, 5, seen(held=(A, B))) == {B}
    assert observed.unheard_of(told, 6, seen(held=(A, B))) == set()


# --- In force, gone ---------------------------------------------------------------


def test_each_slice_that_is_there_is_in_force_whatever_the_rest_does() -> None:
    one = seen(generation=4, held=(A, B), instances=(instance(0), instance(6, owned=False)))
    assert observed.in_force(layout(held(A, 0), held(B, 6)), one) == {A: "MIG-0"}


def test_a_slice_without_a_uuid_is_not_in_force_yet() -> None:
    one = seen(held=(A,), instances=(instance(0, ci=None, mig_uuid=None),))
    assert observed.in_force(layout(held(A, 0)), one) == {}


def test_a_whole_gpu_in_force_has_no_mig_uuid() -> None:
    whole = wire.Layout(
        mig=False,
        held=(wire.Held(allocation=A, owner="x", profile=None, profile_id=None, start=0, size=8),),
    )
    assert observed.in_force(whole, seen(mig=False, held=(A,))) == {A: ""}


def test_nothing_is_in_force_on_a_gpu_that_could_not_be_read() -> None:
    assert observed.in_force(layout(held(A, 0)), seen(held=(A,), instances=None)) == {}


def test_gone_is_what_neither_agent_nor_gpu_has() -> None:
    one = seen(held=(B,), instances=(instance(0, allocation=B),))
    assert observed.gone([A, B], 5, one) == {A}


@pytest.mark.parametrize(
    "over",
    [
        {"generation": 4},
        {"instances": (instance(0, allocation=A),)},
        {"held": (A,)},
        {"instances": None},
        {"instances": None, "mig": None},
        {"lost": True},
        {"instances": (instance(9),)},
    ],
)
def test_nothing_is_gone_that_may_still_be_there(over: dict[str, Any]) -> None:
    assert observed.gone([A], 5, seen(**over)) == set()


def test_an_agent_that_was_refused_part_of_the_newest_command_has_dealt_with_it() -> None:
    one = seen(generation=4, trouble=wire.Trouble(generation=5, code="in_use"))
    assert observed.gone([A], 5, one) == {A}


def test_a_whole_gpu_is_given_up_when_nothing_computes_on_it_any_more() -> None:
    job, display = wire.Process(pid=7), wire.Process(pid=8, computes=False)

    def gone(*processes: wire.Process, held: tuple[str, ...] = ()) -> set[str]:
        return observed.gone([A], 5, seen(mig=False, processes=processes, held=held))

    assert gone(job, display) == set()
    assert gone(display) == {A}
    # The same stay goes on under the next booking, and so do its processes.
    assert gone(job, held=(B,)) == {A}
    assert observed.gone([A], 5, seen(mig=False, processes=None)) == {A}


# --- Blockers ------------------------------------------------------------------------


def test_nothing_in_the_way_is_no_blocker() -> None:
    assert observed.blockers(layout(held(A, 0)), seen(held=(A,), instances=(instance(0),))) == {}


def test_a_foreign_instance_is_a_blocker_on_its_span() -> None:
    one = seen(instances=(instance(2, 2, owned=False, profile="2g.20gb"),))
    assert observed.blockers(None, one) == {(2, 2, "foreign"): "2g.20gb"}


def test_an_own_instance_that_is_in_use_and_not_wanted_is_an_overrun() -> None:
    trouble = wire.Trouble(generation=5, code="in_use", holders=(wire.Process(pid=7, name="python"),))
    one = seen(held=(B,), instances=(instance(0, allocation=A), instance(1, allocation=B)), trouble=trouble)
    assert observed.blockers(layout(held(B, 1)), one) == {(0, 1, "overrun"): "python 7"}


def test_without_such_an_instance_the_whole_gpu_is_overrun() -> None:
    one = seen(mig=False, trouble=wire.Trouble(generation=5, code="in_use", detail="busy"))
    assert observed.blockers(layout(mig=True), one) == {(0, 8, "overrun"): "busy"}


def test_what_computes_on_a_whole_gpu_that_nobody_booked_is_foreign() -> None:
    one = seen(mig=False, processes=(wire.Process(pid=7, name="python", user="eve"),))
    whole = wire.Held(allocation=A, owner="x", profile=None, profile_id=None, start=0, size=8)
    assert observed.blockers(layout(mig=False), one) == {(0, 8, "foreign"): "python 7 of eve"}
    assert observed.blockers(layout(whole, mig=False), one) == {}
    assert observed.blockers(None, one) == {}
    drawing = seen(mig=False, processes=(wire.Process(pid=7, computes=False),))
    assert observed.blockers(layout(mig=False), drawing) == {}


def test_what_is_left_of_a_stay_on_a_whole_gpu_is_an_overrun() -> None:
    unattributed = seen(mig=False, processes=(wire.Process(pid=7),))
    assert set(observed.blockers(layout(mig=False), unattributed, ending=True) or ()) == {(0, 8, "overrun")}
    attributed = seen(mig=False, processes=(wire.Process(pid=7, allocation=A, by="user"),))
    assert set(observed.blockers(layout(mig=False), attributed) or ()) == {(0, 8, "overrun")}
    assert observed.overruns(layout(mig=False), unattributed) == [(0, 8)]


def test_the_machines_own_processes_are_in_nobodys_way() -> None:
    server = wire.Process(pid=7, name="nvidia-cuda-mps-server", system=True)
    one = seen(mig=False, processes=(server,))
    assert observed.blockers(layout(mig=False), one) == {}
    assert observed.gone([A], 5, one) == {A}
    assert observed.users(A, kind="gpu", instances=(), processes=(server,)) == ()
    assert observed.nobody_left(layout(), seen(instances=(instance(0, allocation=A, processes=(server,)),)))


def test_what_is_left_of_a_share_beside_others_blocks_the_gpu() -> None:
    share = wire.Share(memory_mib=4096, compute_pct=20, limit_pct=20)
    kept = wire.Held(allocation=B, owner="x", profile=None, profile_id=None, start=0, size=8, share=share)
    shared = wire.Layout(mig=False, sharing="mps", held=(kept,))
    mine, others, unknown = (
        wire.Process(pid=pid, allocation=who) for pid, who in ((1, B), (2, A), (3, None))
    )
    assert observed.blockers(shared, seen(mig=False, held=(B,), processes=(mine, unknown))) == {}
    one = seen(mig=False, held=(B,), processes=(mine, others))
    assert observed.blockers(shared, one) == {(0, 8, "overrun"): "process 2"}
    assert observed.gone([A], 5, one) == set()
    assert observed.users(A, kind="share", instances=(), processes=(mine, others)) == (others,)


def test_a_reset_that_is_wanted_is_done_before_an_empty_gpu_is_as_wanted() -> None:
    wanted = wire.Layout(mig=False, reset=2)
    assert not observed.settled(wanted, 5, seen(mig=False, reset=1))
    assert observed.settled(wanted, 5, seen(mig=False, reset=2))
    assert observed.settled(wanted, 5, seen(mig=False), resets=False)
    held_ = wire.Held(allocation=A, owner="x", profile=None, profile_id=None, start=0, size=8)
    busy = wire.Layout(mig=False, reset=2, held=(held_,))
    assert observed.settled(busy, 5, seen(mig=False, reset=1, held=(A,)))


def test_other_trouble_is_no_blocker() -> None:
    one = seen(instances=(instance(0, allocation=A),), trouble=wire.Trouble(generation=5, code="driver"))
    assert observed.blockers(layout(), one) == {}


def test_a_gpu_of_which_something_made_no_sense_is_blocked_whole() -> None:
    assert set(observed.blockers(layout(), seen(instances=(instance(9),))) or ()) == {(0, 8, "unknown")}


@pytest.mark.parametrize("over", [{"lost": True}, {"instances": None}, {"instances": None, "mig": None}])
def test_of_a_gpu_that_was_not_read_nothing_is_said(over: dict[str, Any]) -> None:
    assert observed.blockers(layout(), seen(**over)) is None


def test_nobody_is_left_only_when_it_was_read_that_nobody_is() -> None:
    def left(processes: tuple[wire.Process, ...] | None) -> bool:
        return observed.nobody_left(
            layout(), seen(instances=(instance(0, allocation=A, processes=processes),))
        )

    assert left(())
    assert not left((wire.Process(pid=1),))
    assert not left(None)
    assert not observed.nobody_left(layout(), seen())
