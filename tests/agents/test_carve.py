"""Plans carried out on the simulated driver, with refusals and crashes at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agents import simulator_world as world
from agents.carve import carve
from agents.driver import Driver
from agents.gpu import Instance
from agents.record import Made
from agents.simulator_state import Store
from pool.core.wire import Command, Held, Trouble
from tests.agents.stand_in import command, parts_of, slice_, whole

Open = Callable[..., tuple[Driver, Path]]


class Crash(BaseException):
    """What kill -9 looks like to the steps after it: they never happen."""


class Bench:
    """One GPU, with a ledger on disk, as the applier sees it."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.uuid = driver.look().gpus[0].uuid
        self.reason: str | None = None
        self.news = False
        self.restart()

    def restart(self, boot_id: str = "boot-1") -> None:
        self.parts = parts_of(self.driver, self.folder, lambda: boot_id)
        self.ledger = self.parts.ledger

    def carve(self, generation: int, *held: Held, mig: bool = True) -> Trouble | None:
        return self.obey(command(self.uuid, generation, *held, mig=mig))

    def obey(self, wanted: Command) -> Trouble | None:
        outcome = carve(wanted, self.parts, lambda uuid: self.reason)
        self.news = outcome.news
        return outcome.trouble

    def instances(self) -> tuple[Instance, ...]:
        found = self.driver.gpu(self.uuid).instances
        assert found is not None
        return found

    def spans(self) -> list[tuple[int, int, int]]:
        return [(one.profile_id, one.start, one.size) for one in self.instances()]

    def serials(self) -> list[int]:
        """Tells an instance from a later one at the same place."""
        return [one.serial for one in Store(self.folder).read().gpus[0].instances]

    def fail(self, function: str, *codes: int) -> None:
        world.fail_next(self.folder, function, *codes)


@pytest.fixture
def bench(driver: Open) -> Callable[..., Bench]:
    def make(spec: str = "1xH100-80GB", **options: Any) -> Bench:
        return Bench(*driver(spec, **options))

    return make


MakeBench = Callable[..., Bench]
A, B, C = slice_("a", 0), slice_("b", 1), slice_("c", 4, profile_id=9, size=4)


class TestCarve:
    def test_it_makes_slices_at_their_places_and_reads_them_back(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        assert one.carve(7, A, C) is None
        assert one.spans() == [(19, 0, 1), (9, 4, 4)]
        assert all(instance.mig_uuid for instance in one.instances())
        assert one.ledger.gpu(one.uuid).applied == 7
        assert [made.state for made in one.ledger.gpu(one.uuid).made] == ["made", "made"]

    def test_doing_it_twice_changes_nothing(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A, B)
        before = one.serials()
        assert one.news
        assert one.carve(1, A, B) is None
        assert not one.news
        assert one.serials() == before

    def test_running_slices_stay_when_others_come_and_go(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A, B)
        pid = world.process(one.folder, 0, 0)
        first = one.serials()[0]
        assert one.carve(2, A, C) is None
        assert one.spans() == [(19, 0, 1), (9, 4, 4)]
        assert one.serials()[0] == first
        assert [user.pid for user in one.instances()[0].processes or ()] == [pid]

    def test_the_same_owners_next_allocation_keeps_the_instance(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        before = one.serials()
        world.process(one.folder, 0, 0)
        assert one.carve(2, slice_("later", 0, owner=A.owner)) is None
        assert one.serials() == before
        assert one.ledger.gpu(one.uuid).made[0].allocation == "later"

    def test_another_owner_gets_a_new_instance(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        before = one.serials()
        assert one.carve(2, slice_("theirs", 0)) is None
        assert one.serials() != before
        assert one.ledger.gpu(one.uuid).made[0].owner == "owner of theirs"

    def test_an_empty_layout_destroys_all_that_it_made(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A, B)
        assert one.carve(2) is None
        assert one.spans() == []
        assert one.ledger.gpu(one.uuid).made == ()
        assert one.driver.gpu(one.uuid).mig

    @pytest.mark.parametrize("spec", ["1xH100-80GB", "1xA100-40GB", "1xRTX-PRO-6000-96GB"])
    def test_it_switches_the_mode_both_ways(self, bench: MakeBench, spec: str) -> None:
        one = bench(spec)
        offer = one.driver.gpu(one.uuid).offers[0]
        held = slice_("a", 0, profile_id=offer.profile_id, size=int(offer.size))
        assert one.carve(1, held) is None
        assert one.spans() == [(offer.profile_id, 0, offer.size)]
        assert one.carve(2, whole("w"), mig=False) is None
        assert one.driver.gpu(one.uuid).mig is False
        assert one.ledger.gpu(one.uuid).applied == 2

    def test_a_gpu_without_mig_can_be_held_whole(self, bench: MakeBench) -> None:
        one = bench("1xL40S-48GB")
        assert one.carve(1, whole("w"), mig=False) is None
        assert one.ledger.gpu(one.uuid).applied == 1


class TestRefusals:
    def refused(self, trouble: Trouble | None) -> tuple[str, int | None]:
        assert trouble is not None
        return trouble.code, trouble.nvml

    def test_a_slice_in_use_stays_and_names_its_holders(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        pid = world.process(one.folder, 0, 0)
        trouble = one.carve(2)
        assert self.refused(trouble) == ("in_use", 19)
        assert trouble is not None
        assert [(user.pid, user.user) for user in trouble.holders] == [(pid, trouble.holders[0].user)]
        assert trouble.holders[0].name
        assert one.ledger.gpu(one.uuid).applied == 1
        world.stop_processes(one.folder)
        assert one.carve(2) is None
        assert one.spans() == []

    def test_what_can_be_done_is_done_beside_a_slice_in_use(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A, B)
        world.process(one.folder, 0, 0)
        assert self.refused(one.carve(2, slice_("over", 0), C)) == ("in_use", 19)
        assert one.spans() == [(19, 0, 1), (9, 4, 4)]

    def test_it_never_destroys_what_is_foreign(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 14, 0, 2)
        before = one.serials()
        trouble = one.carve(1, A, C)
        assert self.refused(trouble) == ("foreign", None)
        assert one.spans() == [(14, 0, 2), (9, 4, 4)]
        assert one.carve(2, C) is None
        assert one.carve(3) is None
        assert one.serials() == before

    def test_the_mode_stays_on_over_a_foreign_instance(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 14, 0, 2)
        assert self.refused(one.carve(1, whole("w"), mig=False)) == ("foreign", None)
        assert one.driver.gpu(one.uuid).mig

    def test_the_mode_is_not_touched_over_a_running_process(self, bench: MakeBench) -> None:
        one = bench()
        pid = world.process(one.folder, 0)
        trouble = one.carve(1, A)
        assert self.refused(trouble) == ("in_use", None)
        assert trouble is not None
        assert [user.pid for user in trouble.holders] == [pid]
        assert one.driver.gpu(one.uuid).mig_pending is False

    def test_a_gpu_without_mig_says_so(self, bench: MakeBench) -> None:
        one = bench("1xL40S-48GB")
        assert self.refused(one.carve(1, A)) == ("not_supported", None)

    def test_a_lost_gpu_says_so(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        world.lose(one.folder, 0)
        assert self.refused(one.carve(1, A)) == ("gpu_is_lost", 15)

    def test_missing_permission_is_named(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        world.permission(one.folder, False)
        assert self.refused(one.carve(1, A)) == ("no_permission", 4)
        assert one.ledger.gpu(one.uuid).made == ()

    def test_a_failed_creation_leaves_no_note(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.fail("nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        assert self.refused(one.carve(1, A)) == ("insufficient_resources", 23)
        assert one.ledger.gpu(one.uuid).made == ()

    def test_a_profile_that_is_not_offered_is_the_drivers_refusal(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        assert self.refused(one.carve(1, slice_("a", 0, profile_id=99))) == ("driver", 2)

    def test_a_layout_that_does_not_fit_makes_what_fits(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        assert self.refused(one.carve(1, C, slice_("over", 5))) == ("insufficient_resources", 23)
        assert one.spans() == [(9, 4, 4)]

    def test_an_instance_that_cannot_be_read_stops_everything(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        one.fail("nvmlDeviceGetGpuInstances", *[pynvml.NVML_ERROR_UNKNOWN] * 20)
        assert self.refused(one.carve(2)) == ("driver", None)
        assert len(one.serials()) == 1

    @pytest.mark.parametrize("reason", ["frozen", "observe"])
    def test_a_gpu_that_may_not_be_changed_is_left(self, bench: MakeBench, reason: str) -> None:
        one = bench(mig=(0,))
        one.reason = reason
        assert self.refused(one.carve(1, A)) == (reason, None)
        assert one.serials() == []
        assert one.ledger.gpu(one.uuid).wanted is None
        one.reason = None
        assert one.carve(1, A) is None

    def test_a_freeze_is_no_trouble_for_what_is_in_force(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        one.reason = "frozen"
        assert one.carve(1, A) is None

    def test_a_freeze_stops_in_mid_layout(self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
        one = bench(mig=(0,))
        create = one.driver.create

        def freeze_after(*args: Any) -> Instance:
            one.reason = "frozen"
            return create(*args)

        monkeypatch.setattr(one.driver, "create", freeze_after)
        assert self.refused(one.carve(1, A, B)) == ("frozen", None)
        assert one.spans() == [(19, 0, 1)]


class TestCrashes:
    """The process dies at the worst instant; the next one begins with what is on disk."""

    def crash(
        self, one: Bench, monkeypatch: pytest.MonkeyPatch, where: object, step: str, after: bool
    ) -> None:
        real = getattr(where, step)

        def die(*args: Any, **more: Any) -> None:
            if after:
                real(*args, **more)
            raise Crash

        monkeypatch.setattr(where, step, die)

    @pytest.mark.parametrize(("step", "after"), [("create", False), ("create", True)])
    def test_around_a_creation(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
    ) -> None:
        one = bench(mig=(0,))
        self.crash(one, monkeypatch, one.driver, step, after)
        with pytest.raises(Crash):
            one.carve(1, A, B)
        monkeypatch.undo()
        serials = one.serials()
        one.restart()
        wanted = one.ledger.gpu(one.uuid).wanted
        assert wanted is not None
        assert one.obey(wanted) is None
        assert one.spans() == [(19, 0, 1), (19, 1, 1)]
        assert one.serials()[: len(serials)] == serials
        assert one.carve(2) is None
        assert one.spans() == []

    def test_between_the_two_halves_of_a_creation(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench(mig=(0,))
        self.crash(one, monkeypatch, pynvml, "nvmlGpuInstanceCreateComputeInstance", False)
        with pytest.raises(Crash):
            one.carve(1, A)
        monkeypatch.undo()
        assert one.instances()[0].mig_uuid is None
        one.restart()
        assert one.carve(1, A) is None
        assert one.instances()[0].mig_uuid is not None

    def test_a_crashed_creation_that_nobody_wants_any_more_is_removed(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench(mig=(0,))
        self.crash(one, monkeypatch, one.driver, "create", True)
        with pytest.raises(Crash):
            one.carve(1, A)
        monkeypatch.undo()
        one.restart()
        assert one.carve(2) is None
        assert one.spans() == []

    @pytest.mark.parametrize("after", [False, True])
    def test_around_a_destruction(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch, after: bool
    ) -> None:
        one = bench(mig=(0,))
        one.carve(1, A, B)
        self.crash(one, monkeypatch, one.driver, "destroy", after)
        with pytest.raises(Crash):
            one.carve(2, B)
        monkeypatch.undo()
        one.restart()
        assert one.carve(2, B) is None
        assert one.spans() == [(19, 1, 1)]
        assert [made.allocation for made in one.ledger.gpu(one.uuid).made] == ["b"]

    def test_between_the_two_halves_of_a_destruction(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        self.crash(one, monkeypatch, pynvml, "nvmlGpuInstanceDestroy", False)
        with pytest.raises(Crash):
            one.carve(2)
        monkeypatch.undo()
        one.restart()
        assert one.carve(3, A) is None
        assert one.instances()[0].mig_uuid is not None

    def test_a_boot_loses_instances_and_the_wish_brings_them_back(self, bench: MakeBench) -> None:
        one = bench()
        one.carve(1, A, B)
        world.reboot(one.folder)
        assert one.driver.gpu(one.uuid).mig is False
        one.restart("boot-2")
        wanted = one.ledger.gpu(one.uuid).wanted
        assert wanted is not None
        assert one.obey(wanted) is None
        assert one.spans() == [(19, 0, 1), (19, 1, 1)]

    def test_what_stands_where_ours_stood_after_a_boot_is_foreign(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        world.reboot(one.folder)
        one.driver.set_mig_mode(one.uuid, True)
        one.driver.create(one.uuid, 19, 0, 1)
        one.restart("boot-2")
        trouble = one.carve(2)
        assert trouble is None
        assert one.spans() == [(19, 0, 1)]

    def test_an_instance_that_somebody_removed_is_made_again(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(1, A)
        one.driver.destroy(one.uuid, one.instances()[0].gi)
        assert one.carve(1, A) is None
        assert one.spans() == [(19, 0, 1)]

    def test_nothing_is_made_when_the_record_cannot_be_written(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench(mig=(0,))

        def full(uuid: str, made: Made) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(one.ledger, "put", full)
        with pytest.raises(OSError, match="no space"):
            one.carve(1, A)
        assert one.spans() == []
