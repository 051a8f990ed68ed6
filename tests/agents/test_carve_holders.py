"""Who gets a GPU or an instance that somebody had before, and who has to wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agents import simulator_world as world
from agents.driver import Driver
from agents.simulator_state import Store
from pool.core.wire import Held, Stay
from tests.agents.one_gpu import Bench
from tests.agents.stand_in import slice_

Open = Callable[..., tuple[Driver, Path]]
A = slice_("a", 0)


@pytest.fixture
def bench(driver: Open) -> Callable[..., Bench]:
    def make(spec: str = "1xH100-80GB", **options: Any) -> Bench:
        return Bench(*driver(spec, **options))

    return make


MakeBench = Callable[..., Bench]


class TestWholeGpus:
    """A whole GPU is handed to somebody else only when nobody is on it any more."""

    def later(self, allocation: str, owner: str) -> Held:
        return Held(allocation=allocation, owner=owner, profile=None, profile_id=None, start=0, size=8)

    def test_the_next_owner_waits_for_the_former_ones_processes(self, bench: MakeBench) -> None:
        one = bench()
        assert one.carve(self.later("first", "us"), mig=False) is None
        pid = world.process(one.folder, 0)
        trouble = one.carve(self.later("second", "them"), mig=False)
        assert trouble is not None
        assert (trouble.code, [user.pid for user in trouble.holders]) == ("in_use", [pid])
        assert one.record.whole.allocation == "first"
        world.stop_processes(one.folder)
        assert one.carve(self.later("second", "them"), mig=False) is None
        assert one.record.whole.allocation == "second"

    def test_the_same_owner_goes_on_over_running_processes(self, bench: MakeBench) -> None:
        one = bench()
        one.carve(self.later("first", "us"), mig=False)
        world.process(one.folder, 0)
        assert one.carve(self.later("second", "us"), mig=False) is None
        assert one.record.whole.allocation == "second"

    def test_the_holders_own_processes_are_in_nobodys_way(self, bench: MakeBench) -> None:
        one = bench()
        world.process(one.folder, 0)
        user = (one.gpu().processes or ())[0].user
        assert user is not None
        mine = Stay(
            allocation="w",
            reservation="r",
            gpu=one.uuid,
            team="t",
            owner="o",
            users=(user,),
            start=datetime(2026, 1, 1, tzinfo=UTC),
        )
        one.parts.stays.heed((mine,), one.parts.stays.policy, 1000.0)
        assert one.carve(self.later("w", "o"), mig=False) is None

    def test_foreign_use_that_an_operator_adopts_is_handed_over_as_it_runs(self, bench: MakeBench) -> None:
        one = bench()
        world.process(one.folder, 0)
        adopted = Held(allocation="w", owner="o", profile=None, profile_id=None, start=0, size=8, adopt=True)
        assert one.carve(adopted, mig=False) is None
        assert one.record.whole.allocation == "w"

    def test_who_had_it_before_others_did_finds_them_in_his_way(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(self.later("first", "us"), mig=False)
        assert one.carve(A) is None
        assert one.record.whole is None
        one.carve(mig=False)
        world.process(one.folder, 0)
        trouble = one.carve(self.later("again", "us"), mig=False)
        assert trouble is not None
        assert trouble.code == "in_use"

    def test_a_boot_changes_no_holder(self, bench: MakeBench) -> None:
        one = bench()
        one.carve(self.later("w", "o"), mig=False)
        one.boot_id = "boot-2"
        one.restart()
        world.process(one.folder, 0)
        assert one.carve(self.later("w", "o"), mig=False) is None

    def test_what_cannot_be_read_counts_as_in_use(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench()
        monkeypatch.setattr("agents.nvml.running", lambda device: None)
        trouble = one.carve(self.later("w", "o"), mig=False)
        assert trouble is not None
        assert (trouble.code, trouble.detail) == (
            "in_use",
            "somebody else is still on it: its processes cannot be read",
        )


class TestAdoption:
    def test_a_foreign_instance_becomes_ours_and_runs_on(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 19, 0, 1)
        pid = world.process(one.folder, 0, 0)
        before = [made.serial for made in Store(one.folder).read().gpus[0].instances]
        taken = Held(allocation="a", owner="o", profile="1g.10gb", profile_id=19, start=0, size=1, adopt=True)
        assert one.carve(taken) is None
        assert [made.serial for made in Store(one.folder).read().gpus[0].instances] == before
        assert one.record.made[0].allocation == "a"
        assert [user.pid for user in (one.gpu().instances or ())[0].processes or ()] == [pid]
        world.stop_processes(one.folder)
        assert one.carve() is None
        assert one.gpu().instances == ()

    def test_nothing_is_taken_over_where_nothing_may_be_changed(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 19, 0, 1)
        one.reason = "frozen"
        taken = Held(allocation="a", owner="o", profile="1g.10gb", profile_id=19, start=0, size=1, adopt=True)
        assert one.carve(taken) is not None
        assert one.record.made == ()


def test_a_slice_whose_processes_cannot_be_read_counts_as_in_use(bench: MakeBench) -> None:
    one = bench(mig=(0,))
    assert one.carve(A) is None
    world.fail_next(one.folder, "nvmlDeviceGetComputeRunningProcesses_v3", 4)
    trouble = one.carve()
    assert trouble is not None
    assert (trouble.code, trouble.nvml) == ("in_use", None)
    assert len(one.gpu().instances or ()) == 1
    assert one.carve() is None
    assert one.gpu().instances == ()
