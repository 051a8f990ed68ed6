"""What is changed of a GPU as a whole, on the simulated driver: never over anybody's work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agents import simulator_world as world
from agents.driver import Driver
from agents.gpu import DriverRefusal
from agents.parts import simulator
from agents.reset import Reset
from agents.simulator_state import Store
from pool.core.wire import Process
from tests.agents.one_gpu import Bench
from tests.agents.stand_in import slice_, whole

Open = Callable[..., tuple[Driver, Path]]
A = slice_("a", 0)


@pytest.fixture
def bench(driver: Open) -> Callable[..., Bench]:
    def make(spec: str = "1xH100-80GB", **options: Any) -> Bench:
        return Bench(*driver(spec, **options))

    return make


MakeBench = Callable[..., Bench]


class TestReset:
    @pytest.mark.parametrize("spec", ["1xA100-80GB", "1xH100-80GB"])
    def test_an_empty_gpu_is_reset_and_its_mode_restored(self, bench: MakeBench, spec: str) -> None:
        one = bench(spec)
        assert one.carve(A) is None
        assert one.carve(reset=1) is None
        assert one.record.reset == 1
        assert one.gpu().mig is True
        assert one.gpu().instances == ()
        assert one.kinds() == ["reset"]

    def test_it_is_done_once(self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
        one = bench()
        done: list[str] = []
        monkeypatch.setattr(Reset, "__call__", lambda self, uuid: done.append(uuid))
        assert one.carve(mig=False, reset=1) is None
        assert one.carve(whole("w"), mig=False, reset=1) is None
        assert one.carve(mig=False, reset=1) is None
        assert done == [one.uuid]
        assert one.carve(mig=False, reset=2) is None
        assert done == [one.uuid, one.uuid]

    def test_it_waits_for_the_last_holder(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        assert one.carve(A, reset=1) is None
        assert (one.record.reset, one.record.applied) == (0, 1)
        assert one.carve(reset=1) is None
        assert one.record.reset == 1

    def test_nothing_is_reset_under_a_process(self, bench: MakeBench) -> None:
        one = bench()
        pid = world.process(one.folder, 0)
        trouble = one.carve(mig=False, reset=1)
        assert trouble is not None
        assert (trouble.code, [user.pid for user in trouble.holders]) == ("in_use", [pid])
        assert one.record.reset == 0
        world.stop_processes(one.folder)
        assert one.carve(mig=False, reset=1) is None

    def test_nothing_is_reset_over_a_foreign_instance(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 14, 0, 2)
        before = [made.serial for made in Store(one.folder).read().gpus[0].instances]
        trouble = one.carve(reset=1)
        assert trouble is not None
        assert trouble.code == "foreign"
        assert [made.serial for made in Store(one.folder).read().gpus[0].instances] == before

    def test_a_slice_in_use_is_not_reset_away(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.carve(A)
        world.process(one.folder, 0, 0)
        trouble = one.carve(reset=1)
        assert trouble is not None
        assert trouble.code == "in_use"
        assert len(one.gpu().instances or ()) == 1
        assert one.record.reset == 0

    def test_what_the_tool_says_is_the_trouble(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: Reset, uuid: str) -> None:
            raise DriverRefusal("reset_required", None, "the GPU was not reset: not supported")

        one = bench()
        monkeypatch.setattr(Reset, "__call__", refuse)
        trouble = one.carve(mig=False, reset=1)
        assert trouble is not None
        assert (trouble.code, trouble.detail) == ("reset_required", "the GPU was not reset: not supported")
        assert one.driver.look().driver is not None

    def test_a_crash_before_it_is_on_record_costs_one_more(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Crash(BaseException):
            """What kill -9 looks like to the steps after it."""

        def die(*args: object) -> None:
            raise Crash

        one, done = bench(mig=(0,)), []
        monkeypatch.setattr(Reset, "__call__", lambda self, uuid: done.append(uuid))
        with monkeypatch.context() as killed:
            killed.setattr(one.parts.ledger, "reset", die)
            with pytest.raises(Crash):
                one.carve(reset=1)
        one.restart()
        assert one.carve(reset=1) is None
        assert done == [one.uuid, one.uuid]

    def test_a_boot_resets_everything(self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
        one = bench(mig=(0,))
        one.carve(A, reset=4)
        one.boot_id = "boot-2"
        one.restart()
        assert one.record.reset == 4

    def test_the_simulated_gpu_is_reset_by_the_simulators_own_command(self, bench: MakeBench) -> None:
        one = bench(mig=(0,))
        one.driver.create(one.uuid, 14, 0, 2)
        with one.driver.away():
            Reset(simulator(one.parts.place))(one.uuid)
        assert one.gpu().instances == ()


class TestPendingMode:
    """A driver that cannot reset the GPU itself, as in a virtual machine, leaves the change pending."""

    @pytest.fixture
    def one(self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> Bench:
        one = bench("1xA100-80GB")

        def pend(uuid: str, on: bool) -> None:
            with Store(one.folder).edit() as machine:
                machine.gpus[0].pending = on
            raise DriverRefusal("reset_required", 16, "the change of the MIG mode is pending")

        monkeypatch.setattr(one.driver, "set_mig_mode", pend)
        return one

    def test_it_comes_true_by_a_reset(self, one: Bench) -> None:
        assert one.carve(A) is None
        assert one.gpu().mig is True
        assert len(one.gpu().instances or ()) == 1

    def test_what_the_tool_says_is_told_beside_it(self, one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Reset, uuid: str) -> None:
            raise DriverRefusal("reset_required", None, "the GPU was not reset: primary GPU")

        monkeypatch.setattr(Reset, "__call__", refuse)
        trouble = one.carve(A)
        assert trouble is not None
        assert (trouble.code, trouble.nvml) == ("reset_required", 16)
        assert trouble.detail == "the change of the MIG mode is pending; the GPU was not reset: primary GPU"
        assert one.gpu().instances == ()


class TestComputeMode:
    def mode(self, one: Bench) -> str | None:
        return one.gpu().health.compute_mode

    def test_an_unbooked_gpu_takes_no_process_until_it_is_booked(self, bench: MakeBench) -> None:
        one = bench()
        assert one.carve(mig=False, prohibited=True) is None
        assert self.mode(one) == "prohibited"
        assert one.record.compute_mode == "default"
        assert one.carve(whole("w"), mig=False, prohibited=True) is None
        assert self.mode(one) == "default"
        assert one.record.compute_mode is None
        assert one.carve(mig=False, prohibited=True) is None
        assert self.mode(one) == "prohibited"

    def test_what_an_operator_had_set_comes_back(self, bench: MakeBench) -> None:
        one = bench()
        one.driver.set_compute_mode(one.uuid, "exclusive_process")
        one.carve(mig=False, prohibited=True)
        assert one.carve(whole("w"), mig=False, prohibited=True) is None
        assert self.mode(one) == "exclusive_process"

    def test_a_crash_in_between_leaves_the_way_back_on_record(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Crash(BaseException):
            """What kill -9 looks like to the steps after it."""

        def die(*args: object) -> None:
            raise Crash

        one = bench()
        monkeypatch.setattr(one.driver, "set_compute_mode", die)
        with pytest.raises(Crash):
            one.carve(mig=False, prohibited=True)
        monkeypatch.undo()
        one.restart()
        assert one.carve(mig=False, prohibited=True) is None
        assert one.carve(mig=False) is None
        assert self.mode(one) == "default"

    def test_it_is_opened_again_for_mig(self, bench: MakeBench) -> None:
        one = bench()
        one.carve(mig=False, prohibited=True)
        assert one.carve(A, prohibited=True) is None
        assert one.gpu().mig is True
        assert one.record.compute_mode is None

    def test_nothing_is_closed_where_nothing_may_be_changed(self, bench: MakeBench) -> None:
        one = bench()
        one.reason = "observe"
        trouble = one.carve(mig=False, prohibited=True)
        assert trouble is not None
        assert trouble.code == "observe"
        assert self.mode(one) == "default"


class TestWhoIsInTheWay:
    def test_a_client_that_no_call_names_is_found_by_its_open_file(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench("1xA100-80GB")
        gpu = one.gpu()
        monkeypatch.setattr(one.driver, "gpu", lambda uuid: replace(gpu, minor=5))
        device = one.parts.place.root / "dev/nvidia5"
        device.parent.mkdir(parents=True, exist_ok=True)
        device.touch()
        world.fail_next(one.folder, "nvmlDeviceSetMigMode", pynvml.NVML_ERROR_IN_USE)
        code = f"import sys; file = open({str(device)!r}); print(flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as client:
            assert client.stdout
            client.stdout.readline()
            trouble = one.carve(A)
            client.kill()
        assert trouble is not None
        assert (trouble.code, [user.pid for user in trouble.holders]) == ("in_use", [client.pid])

    def test_who_is_named_already_is_not_named_for_another_slice(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench(mig=(0,))
        one.carve(A, slice_("b", 1))
        tenant = world.process(one.folder, 0, 1)
        monitor = Process(pid=1, name="nv-hostengine", computes=False)
        found = (monitor, Process(pid=tenant))
        monkeypatch.setattr("agents.modes.openers", lambda minor, root: found)
        world.fail_next(one.folder, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
        trouble = one.carve(slice_("b", 1))
        assert trouble is not None
        assert (trouble.code, trouble.holders) == ("in_use", (monitor,))

    def test_the_machines_services_are_paused_for_the_change_and_run_again(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench()
        calls: list[str] = []
        units = one.parts.units
        monkeypatch.setattr(units, "_names", ("nvidia-dcgm",))
        monkeypatch.setattr(units, "_do", lambda verb, name, *more: calls.append(verb) or True)
        assert one.carve(A) is None
        assert calls == ["is-active", "stop", "start"]
        calls.clear()
        assert one.carve(A, slice_("b", 1)) is None
        assert calls == []

    def test_nothing_is_paused_for_a_change_that_a_process_forbids(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench()
        monkeypatch.setattr(one.parts.units, "_names", ("nvidia-dcgm",))
        monkeypatch.setattr(one.parts.units, "_do", lambda *words: pytest.fail("a service was touched"))
        world.process(one.folder, 0)
        trouble = one.carve(A)
        assert trouble is not None
        assert trouble.code == "in_use"

    def test_a_program_of_the_machine_is_named_only_when_it_stays(
        self, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = bench()
        display = Process(pid=1, name="Xorg", computes=False, uid=0, user="root")
        monkeypatch.setattr("agents.nvml.running", lambda device: (display,))
        trouble = one.carve(A)
        assert trouble is not None
        assert (trouble.code, [user.name for user in trouble.holders]) == ("in_use", ["Xorg"])
