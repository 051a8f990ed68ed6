"""The way from what a GPU is to what it shall be, without any driver."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from agents.gpu import Gpu, Health, Instance
from agents.plan import Plan, in_force, make_plan
from agents.record import GpuRecord, Made, Whole
from pool.core.wire import Held, Layout, Share, ShareSeen
from tests.agents.stand_in import command, slice_, whole

OFF = Gpu(uuid="GPU-1", index=0, name="H100", mig_capable=True, mig=False, mig_pending=False, instances=())
ON = replace(OFF, mig=True, mig_pending=True)
PLAIN = replace(OFF, mig_capable=False, mig=None, mig_pending=None)


def instance(start: int, size: int = 1, profile_id: int = 19, uuid: str | None = "MIG-1") -> Instance:
    return Instance(
        gi=start + 7,
        ci=0,
        mig_uuid=uuid,
        profile_id=profile_id,
        profile="1g.10gb",
        start=start,
        size=size,
    )


def made(held: Held, state: str = "made") -> Made:
    assert held.profile_id is not None
    return Made(
        profile_id=held.profile_id,
        start=held.start,
        size=held.size,
        allocation=held.allocation,
        owner=held.owner,
        state=state,  # type: ignore[arg-type]
    )


def mig(*held: Held) -> Layout:
    return Layout(mig=True, held=held)


def share(allocation: str) -> Held:
    some = Share(memory_mib=1024, compute_pct=10, limit_pct=10)
    return replace_struct(whole(allocation), share=some)


A, B = slice_("a", 0), slice_("b", 1)


class TestMakePlan:
    def test_it_makes_what_lacks(self) -> None:
        assert make_plan(mig(A, B), ON, GpuRecord()) == Plan(create=(A, B))

    def test_it_switches_the_mode_on_first(self) -> None:
        assert make_plan(mig(A), OFF, GpuRecord()) == Plan(switch=True, create=(A,))

    def test_it_leaves_running_slices_untouched(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(A, B), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(keep=((instance(0), A),), create=(B,))

    def test_nothing_is_to_be_done_where_all_is_as_wanted(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(A), gpu, GpuRecord(made=(made(A),)))
        assert not plan.changes_gpu
        assert not plan.blocked

    def test_it_destroys_what_it_made_and_nobody_wants(self) -> None:
        gpu = replace(ON, instances=(instance(0), instance(1)))
        plan = make_plan(mig(), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(destroy=(instance(0),))

    def test_the_same_owner_keeps_the_instance_for_a_new_allocation(self) -> None:
        later = slice_("later", 0, owner=A.owner)
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(later), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(keep=((instance(0), later),))

    def test_another_owner_gets_a_new_instance(self) -> None:
        theirs = slice_("theirs", 0)
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(theirs), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(destroy=(instance(0),), create=(theirs,))

    def test_another_profile_at_the_same_place_is_another_instance(self) -> None:
        media = slice_("media", 0, owner=A.owner, profile_id=20)
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(media), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(destroy=(instance(0),), create=(media,))

    def test_what_may_have_been_made_before_a_crash_is_adopted(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(mig(A), gpu, GpuRecord(made=(made(A, "making"),)))
        assert plan == Plan(keep=((instance(0), A),))

    def test_a_half_made_instance_is_made_anew(self) -> None:
        half = instance(0, uuid=None)
        gpu = replace(ON, instances=(half,))
        plan = make_plan(mig(A), gpu, GpuRecord(made=(made(A, "making"),)))
        assert plan == Plan(destroy=(half,), create=(A,))

    def test_what_is_no_longer_there_is_forgotten_and_made_again(self) -> None:
        plan = make_plan(mig(A), ON, GpuRecord(made=(made(A), made(B))))
        assert plan == Plan(create=(A,), gone=(made(A).span, made(B).span))

    def test_foreign_instances_are_left_and_block_what_they_overlap(self) -> None:
        foreign = instance(0, size=2, profile_id=14)
        gpu = replace(ON, instances=(foreign,))
        plan = make_plan(mig(B, slice_("c", 2)), gpu, GpuRecord())
        assert plan == Plan(create=(slice_("c", 2),), blocked=((B, foreign),))

    def test_a_foreign_instance_of_the_wanted_kind_is_not_taken_over(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        assert make_plan(mig(A), gpu, GpuRecord()) == Plan(blocked=((A, instance(0)),))

    def test_the_mode_goes_off_when_nothing_foreign_is_there(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(Layout(mig=False), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(switch=False, destroy=(instance(0),))

    def test_a_foreign_instance_keeps_the_mode_on(self) -> None:
        gpu = replace(ON, instances=(instance(0), instance(1)))
        plan = make_plan(Layout(mig=False), gpu, GpuRecord(made=(made(A),)))
        assert plan == Plan(destroy=(instance(0),), blocked=((None, instance(1)),))

    def test_a_gpu_that_cannot_do_mig_is_whole_already(self) -> None:
        assert make_plan(Layout(mig=False, held=(whole("w"),)), PLAIN, GpuRecord()) == Plan()


class TestAdoption:
    def test_a_foreign_instance_becomes_ours_where_an_operator_says_so(self) -> None:
        gpu = replace(ON, instances=(instance(0), instance(1)))
        taken = replace_struct(A, adopt=True)
        plan = make_plan(mig(taken), gpu, GpuRecord())
        assert plan == Plan(adopt=((instance(0), taken),))
        assert plan.changes_gpu

    def test_what_is_gone_by_then_is_made(self) -> None:
        taken = replace_struct(A, adopt=True)
        assert make_plan(mig(taken), ON, GpuRecord()) == Plan(create=(taken,))

    def test_a_half_made_one_and_one_of_another_kind_are_not_adopted(self) -> None:
        taken = replace_struct(A, adopt=True)
        for other in (instance(0, uuid=None), instance(0, size=2, profile_id=14)):
            plan = make_plan(mig(taken), replace(ON, instances=(other,)), GpuRecord())
            assert plan == Plan(blocked=((taken, other),))


class TestReset:
    def test_it_waits_until_nobody_holds_anything(self) -> None:
        wanted = Layout(mig=True, held=(A,), reset=2)
        gpu = replace(ON, instances=(instance(0),))
        assert make_plan(wanted, gpu, GpuRecord(made=(made(A),), reset=1)).reset is None

    def test_an_empty_gpu_is_reset_before_anything_else(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(Layout(mig=False, reset=2), gpu, GpuRecord(made=(made(A),), reset=1))
        assert plan == Plan(destroy=(instance(0),), reset=2)
        assert plan.changes_gpu

    def test_what_was_carried_out_is_not_done_again(self) -> None:
        assert make_plan(Layout(mig=True, reset=2), ON, GpuRecord(reset=2)) == Plan()

    def test_it_does_not_cost_what_is_foreign(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        plan = make_plan(Layout(mig=True, reset=1), gpu, GpuRecord())
        assert plan == Plan(blocked=((None, instance(0)),), reset=1)


class TestComputeMode:
    CLOSED = replace(OFF, health=Health(compute_mode="prohibited"))
    OPEN = replace(OFF, health=Health(compute_mode="default"))

    def mode(self, gpu: Gpu, layout: Layout, before: str | None = None) -> str | None:
        return make_plan(layout, gpu, GpuRecord(compute_mode=before)).compute_mode

    def test_an_unbooked_gpu_is_closed_where_that_is_wanted(self) -> None:
        assert self.mode(self.OPEN, Layout(mig=False, prohibited=True)) == "prohibited"
        assert self.mode(self.CLOSED, Layout(mig=False, prohibited=True)) is None

    def test_a_booked_one_is_as_it_was_before(self) -> None:
        booked = Layout(mig=False, prohibited=True, held=(whole("w"),))
        assert self.mode(self.CLOSED, booked, "exclusive_process") == "exclusive_process"
        assert self.mode(self.OPEN, booked, "default") is None

    def test_what_an_operator_closed_stays_closed(self) -> None:
        assert self.mode(self.CLOSED, Layout(mig=False, held=(whole("w"),))) is None

    def test_it_is_opened_before_it_goes_into_mig_mode(self) -> None:
        plan = make_plan(mig(A), self.CLOSED, GpuRecord(compute_mode="default"))
        assert (plan.compute_mode, plan.switch) == ("default", True)

    def test_there_is_none_in_mig_mode_nor_where_it_cannot_be_read(self) -> None:
        in_mig = replace(ON, health=Health(compute_mode="default"))
        assert self.mode(in_mig, Layout(mig=True, prohibited=True)) is None
        assert self.mode(OFF, Layout(mig=False, prohibited=True)) is None


class TestInForce:
    def test_it_names_what_holds(self) -> None:
        gpu = replace(ON, instances=(instance(0), instance(1)))
        record = GpuRecord(made=(made(A), made(B, "making")))
        assert in_force(mig(A, B), gpu, record) == ("a",)

    def test_a_slice_of_the_former_holder_is_not_the_next_ones(self) -> None:
        gpu = replace(ON, instances=(instance(0),))
        assert in_force(mig(slice_("later", 0)), gpu, GpuRecord(made=(made(A),))) == ()

    def test_a_slice_that_vanished_holds_no_more(self) -> None:
        assert in_force(mig(A), ON, GpuRecord(made=(made(A),))) == ()

    def test_a_whole_gpu_holds_when_mig_is_off(self) -> None:
        layout = Layout(mig=False, held=(whole("w"),))
        record = GpuRecord(whole=Whole(allocation="w", owner="o"))
        assert in_force(layout, OFF, record) == ("w",)
        assert in_force(layout, PLAIN, record) == ("w",)

    def test_a_whole_gpu_of_somebody_else_does_not_hold(self) -> None:
        layout = Layout(mig=False, held=(whole("w"),))
        assert in_force(layout, OFF, GpuRecord(whole=Whole(allocation="former", owner="o"))) == ()
        assert in_force(layout, OFF, GpuRecord()) == ()

    def test_a_whole_gpu_that_an_older_record_shows_as_applied_holds(self) -> None:
        layout = Layout(mig=False, held=(whole("w"),))
        record = GpuRecord(wanted=command("GPU-1", 4, whole("w"), mig=False), applied=4)
        assert in_force(layout, OFF, record) == ("w",)
        assert in_force(layout, OFF, replace_struct(record, applied=3)) == ()

    def test_shares_hold_that_stand(self) -> None:
        layout = Layout(mig=False, sharing="mps", held=(share("s"), share("t")))
        standing = (ShareSeen(allocation="t", state="ok"), ShareSeen(allocation="old", state="ok"))
        assert in_force(layout, OFF, GpuRecord(), standing) == ("t",)

    def test_a_whole_gpu_does_not_hold_in_mig_mode_or_when_the_mode_is_unknown(self) -> None:
        layout = Layout(mig=False, held=(whole("w"),))
        assert in_force(layout, ON, GpuRecord()) == ()
        assert in_force(layout, replace(OFF, mig=None, mig_capable=None), GpuRecord()) == ()
