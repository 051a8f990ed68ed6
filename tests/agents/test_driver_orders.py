"""Orders to GPUs: MIG mode, create, destroy, and what stands in their way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from agents import nvml, simulator, simulator_world
from agents.driver import Driver
from agents.gpu import DriverRefusal, Inventory

Open = Callable[..., tuple[Driver, Path]]


def refused(call: Callable[..., object], *args: object) -> DriverRefusal:
    with pytest.raises(DriverRefusal) as caught:
        call(*args)
    return caught.value


def uuids(seen: Inventory) -> list[str]:
    return [gpu.uuid for gpu in seen.gpus]


class TestMigMode:
    def test_it_comes_at_once_on_hopper_and_after_a_reset_on_ampere(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB+1xA100-40GB")
        for uuid in uuids(one.look()):
            one.set_mig_mode(uuid, True)
            one.set_mig_mode(uuid, True)
            assert (one.gpu(uuid).mig, one.gpu(uuid).mig_pending) == (True, True)
            one.set_mig_mode(uuid, False)
            assert one.gpu(uuid).mig is False

    def test_a_client_stands_in_the_way_and_is_named(self, driver: Open) -> None:
        one, folder = driver("1xA100-40GB")
        (uuid,) = uuids(one.look())
        pid = simulator_world.process(folder, 0)
        error = refused(one.set_mig_mode, uuid, True)
        assert (error.code, error.nvml, [each.pid for each in error.holders]) == ("in_use", 19, [pid])
        assert (one.gpu(uuid).mig, one.gpu(uuid).mig_pending) == (False, True)
        simulator_world.stop_processes(folder)
        one.set_mig_mode(uuid, True)
        assert one.gpu(uuid).mig is True

    def test_our_own_wait_for_errors_does_not_stand_in_the_way(
        self, driver: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, folder = driver("1xA100-40GB")
        (uuid,) = uuids(one.look())
        one.xids(1)
        change, waits = nvml.set_mig_mode, []

        def busy_while_we_wait(device: object, on: bool) -> int:
            waits.append(one._xids.waits)
            return nvml.IN_USE if waits[-1] else change(device, on)

        monkeypatch.setattr(nvml, "set_mig_mode", busy_while_we_wait)
        one.set_mig_mode(uuid, True)
        assert (one.gpu(uuid).mig, waits) == (True, [True, False])
        one.xids(1)
        simulator_world.xid(folder, 0, 31)
        assert [xid.number for xid in one.xids(1000)] == [31]

    def test_a_virtual_machine_that_cannot_reset_says_so(self, driver: Open) -> None:
        one, folder = driver("1xA100-40GB")
        with simulator.Session(folder).edit() as machine:
            machine.gpus[0].passthrough = True
        error = refused(one.set_mig_mode, one.look().gpus[0].uuid, True)
        assert (error.code, error.nvml, error.holders) == ("reset_required", 16, ())

    def test_a_gpu_without_mig_does_not_support_it(self, driver: Open) -> None:
        one, _ = driver("1xL40S-48GB")
        error = refused(one.set_mig_mode, one.look().gpus[0].uuid, True)
        assert (error.code, error.nvml) == ("not_supported", 3)

    def test_it_needs_permission(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.permission(folder, False)
        error = refused(one.set_mig_mode, one.look().gpus[0].uuid, True)
        assert (error.code, error.nvml) == ("no_permission", 4)


class TestCreate:
    def test_it_makes_exactly_what_was_asked_and_reads_it_back(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        made = one.create(uuid, 9, 0, 4)
        assert (made.profile_id, made.profile, made.start, made.size, made.ci) == (9, "3g.40gb", 0, 4, 0)
        assert made.mig_uuid is not None
        assert made.mig_uuid.startswith("MIG-")
        assert one.gpu(uuid).instances == (made,)

    def test_the_compute_instance_fills_it(self, driver: Open) -> None:
        one, _ = driver("1xRTX-PRO-6000-96GB+1xH100-80GB", mig=(0, 1))
        for gpu in one.look().gpus:
            for offer in gpu.offers:
                made = one.create(gpu.uuid, offer.profile_id, offer.starts[-1], offer.size)
                mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(
                    pynvml.nvmlDeviceGetHandleByIndex(gpu.index), 0
                )
                attributes = pynvml.nvmlDeviceGetAttributes_v2(mig)
                assert attributes.computeInstanceSliceCount == offer.compute_slices, offer
                assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (
                    offer.sm,
                    offer.memory_mib,
                )
                one.destroy(gpu.uuid, made.gi)

    @pytest.mark.parametrize(
        ("profile_id", "start", "size", "code", "number"),
        [
            (19, 0, 1, "insufficient_resources", 23),  # occupied
            (19, 7, 1, "driver", 2),  # never offered
            (19, 1, 2, "driver", 2),  # another size
            (77, 1, 1, "driver", 2),  # no such profile
        ],
    )
    def test_it_says_why_not(
        self, driver: Open, profile_id: int, start: int, size: int, code: str, number: int
    ) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        one.create(uuid, 19, 0, 1)
        error = refused(one.create, uuid, profile_id, start, size)
        assert (error.code, error.nvml) == (code, number)
        assert len(one.gpu(uuid).instances or ()) == 1

    def test_mig_off_is_not_supported(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        assert refused(one.create, one.look().gpus[0].uuid, 19, 0, 1).code == "not_supported"

    @pytest.mark.parametrize(
        ("function", "code", "number"),
        [
            ("nvmlGpuInstanceCreateComputeInstance", "insufficient_resources", 23),
            ("nvmlGpuInstanceGetComputeInstanceProfileInfoV", "driver", 999),
            ("nvmlDeviceGetComputeInstanceId", "driver", None),  # made, but it cannot be read back
        ],
    )
    def test_a_failure_half_way_leaves_nothing_behind(
        self, driver: Open, function: str, code: str, number: int | None
    ) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        simulator_world.fail_next(folder, function, number or 999)
        error = refused(one.create, uuid, 19, 0, 1)
        assert (error.code, error.nvml) == (code, number)
        assert one.gpu(uuid).instances == ()
        assert one.create(uuid, 19, 0, 1).start == 0

    def test_what_could_not_be_removed_again_is_said(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        simulator_world.fail_next(folder, "nvmlGpuInstanceCreateComputeInstance", 23)
        simulator_world.fail_next(folder, "nvmlGpuInstanceDestroy", 19)
        error = refused(one.create, uuid, 19, 0, 1)
        assert error.code == "insufficient_resources"
        assert "could not be removed again" in str(error)
        assert [each.ci for each in one.gpu(uuid).instances or ()] == [None]


class TestDestroy:
    def test_it_takes_both_away_and_may_come_twice(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        made = one.create(uuid, 14, 2, 2)
        one.destroy(uuid, made.gi)
        one.destroy(uuid, made.gi)
        assert one.gpu(uuid).instances == ()

    def test_with_mig_off_there_is_nothing_to_destroy(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB+1xL40S-48GB")
        for uuid in uuids(one.look()):
            one.destroy(uuid, 0)

    def test_it_refuses_while_somebody_runs_in_it_and_names_him(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        free, used = one.create(uuid, 19, 0, 1), one.create(uuid, 19, 1, 1)
        pid = simulator_world.process(folder, 0, 1)
        error = refused(one.destroy, uuid, used.gi)
        assert (error.code, error.nvml, [each.pid for each in error.holders]) == ("in_use", 19, [pid])
        one.destroy(uuid, free.gi)
        assert [each.gi for each in one.gpu(uuid).instances or ()] == [used.gi]

    def test_it_needs_permission(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        made = one.create(uuid, 19, 0, 1)
        simulator_world.permission(folder, False)
        assert refused(one.destroy, uuid, made.gi).code == "no_permission"

    def test_a_foreign_instance_with_several_compute_instances_is_shown_and_goes_whole(
        self, driver: Open
    ) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        handle = pynvml.nvmlDeviceCreateGpuInstance(device, 9)
        for _ in range(3):
            pynvml.nvmlGpuInstanceCreateComputeInstance(handle, 0)
        gpu = one.look().gpus[0]
        (shown,) = gpu.instances or ()
        assert shown.ci == 0
        one.destroy(gpu.uuid, shown.gi)
        assert one.gpu(gpu.uuid).instances == ()
