"""What is seen of GPUs: identities, offers, instances, readings, and what is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from agents import nvml, nvml_mig, simulator, simulator_world
from agents.driver import Driver
from agents.gpu import DriverRefusal, Inventory

Open = Callable[..., tuple[Driver, Path]]


def refused(call: Callable[..., object], *args: object) -> DriverRefusal:
    with pytest.raises(DriverRefusal) as caught:
        call(*args)
    return caught.value


def uuids(seen: Inventory) -> list[str]:
    return [gpu.uuid for gpu in seen.gpus]


class TestLook:
    def test_it_tells_what_each_gpu_is(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB+1xRTX-PRO-6000-96GB+1xL40S-48GB", mig=(0,))
        seen = one.look()
        h100, rtx, l40s = seen.gpus
        assert seen.driver == "595.71.05"
        assert [gpu.index for gpu in seen.gpus] == [0, 1, 2]
        assert (h100.name, h100.pci_device_id, h100.memory_total_mib) == (
            "NVIDIA H100 80GB HBM3",
            0x233010DE,
            81559,
        )
        assert h100.pci_bus_id == "00000000:04:00.0"
        assert (h100.mig_capable, h100.mig, h100.mig_pending, h100.grid) == (True, True, True, 8)
        assert (rtx.mig_capable, rtx.mig, rtx.grid) == (True, False, 12)
        assert (l40s.mig_capable, l40s.mig, l40s.grid, l40s.offers) == (False, None, None, ())
        assert h100.instances == rtx.instances == l40s.instances == ()
        assert not any(gpu.lost for gpu in seen.gpus)

    def test_it_tells_what_the_driver_offers(self, driver: Open) -> None:
        one, _ = driver("1xA100-40GB", mig=(0,))
        offers = {offer.name: offer for offer in one.look().gpus[0].offers}
        assert next(iter(offers)) == "1g.5gb"
        assert (offers["3g.20gb"].profile_id, offers["3g.20gb"].size, offers["3g.20gb"].starts) == (
            9,
            4,
            (0, 4),
        )
        assert (offers["1g.5gb"].starts, offers["1g.5gb"].compute_slices) == (tuple(range(7)), 1)
        assert (offers["7g.40gb"].memory_mib, offers["7g.40gb"].sm) == (40192, 98)
        assert offers["1g.5gb+me"].max_instances == 1

    def test_offers_of_a_driver_that_answers_only_in_mig_mode_are_left_out(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        with simulator.Session(folder).edit() as machine:
            machine.profiles_when_off = False
        off = one.look().gpus[0]
        assert (off.mig, off.offers, off.grid) == (False, (), None)
        one.set_mig_mode(off.uuid, True)
        assert one.gpu(off.uuid).grid == 8

    def test_offers_are_asked_for_once_until_the_mode_or_the_driver_changes(self, driver: Open) -> None:
        one, folder = driver("1xA100-40GB")
        (gpu,) = one.look().gpus
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuInstanceProfileInfoV", 999)
        assert one.look().gpus[0].offers == gpu.offers
        one.set_mig_mode(gpu.uuid, True)
        assert one.gpu(gpu.uuid).offers == ()
        assert one.gpu(gpu.uuid).offers == gpu.offers
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuInstanceProfileInfoV", 999)
        one.close()
        one.open()
        assert one.gpu(gpu.uuid).offers == ()

    def test_a_gpu_that_cannot_be_asked_about_mig_is_unknown_and_not_off(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetMigMode", 999)
        gpu = one.look().gpus[0]
        assert (gpu.mig_capable, gpu.mig, gpu.instances) == (None, None, None)

    def test_instances_that_cannot_be_read_are_unknown_and_not_none(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuInstances", 999)
        assert one.look().gpus[0].instances is None
        assert one.look().gpus[0].instances == ()

    def test_an_instance_that_goes_away_while_one_looks_only_costs_a_second_look(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        gpu = one.look().gpus[0]
        one.create(gpu.uuid, 19, 0, 1)
        simulator_world.fail_next(folder, "nvmlDeviceGetComputeInstanceId", 2)
        assert [each.start for each in one.gpu(gpu.uuid).instances or ()] == [0]

    def test_processes_that_may_not_be_read_are_unknown(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        assert one.look().gpus[0].processes == ()
        simulator_world.fail_next(folder, "nvmlDeviceGetComputeRunningProcesses_v3", 4)
        assert one.look().gpus[0].processes is None

    def test_it_tells_who_runs_on_which_instance(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        one.create(uuid, 9, 4, 4)
        one.create(uuid, 19, 0, 1)
        pid = simulator_world.process(folder, 0, 1, memory_mib=2048)
        gpu = one.gpu(uuid)
        idle, used = gpu.instances or ()
        assert (idle.processes, idle.memory_used_mib) == ((), 0)
        assert (used.memory_used_mib, used.memory_total_mib) == (2048, 40448)
        assert [(each.pid, each.uid, each.name, each.memory_mib) for each in used.processes or ()] == [
            (pid, os.getuid(), "sleep", 2048)
        ]
        assert [each.pid for each in gpu.processes or ()] == [pid]

    def test_an_instance_without_a_compute_instance_is_shown(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 19)
        (bare,) = one.look().gpus[0].instances or ()
        assert (bare.ci, bare.mig_uuid, bare.profile, bare.start, bare.processes) == (
            None,
            None,
            "1g.10gb",
            6,
            (),
        )
        assert bare.memory_total_mib is None

    def test_an_nvlink_domain_has_its_name_and_a_node_alone_has_none(
        self, driver: Open, tmp_path: Path
    ) -> None:
        cluster = "7e0c1b52-91aa-4c1e-8f5e-1f3f6d1d2a3b"
        one, _ = driver("1xGB200-186GB+1xA100-80GB", cluster=cluster, clique=2)
        gb200, a100 = one.look().gpus
        assert (gb200.fabric_cluster, gb200.fabric_clique) == (cluster.replace("-", ""), 2)
        assert (a100.fabric_cluster, a100.fabric_clique) == (None, None)

    def test_an_all_zero_domain_is_none(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        gpu = one.look().gpus[0]
        assert (gpu.fabric_cluster, gpu.fabric_clique) == (None, 0)


class TestLostGpu:
    def test_it_is_named_and_hides_no_other(self, driver: Open) -> None:
        one, folder = driver("3xH100-80GB")
        before = one.look()
        simulator_world.lose(folder, 1)
        after = one.look()
        assert uuids(after) == uuids(before)
        assert [gpu.lost for gpu in after.gpus] == [False, True, False]
        assert after.gpus[1].name == "NVIDIA H100 80GB HBM3"
        assert after.unidentified == ()
        assert set(one.readings()) == {before.gpus[0].uuid, before.gpus[2].uuid}

    def test_one_that_was_never_read_is_counted_by_index(self, driver: Open) -> None:
        one, folder = driver("3xH100-80GB")
        simulator_world.lose(folder, 0)
        seen = one.look()
        assert [gpu.index for gpu in seen.gpus] == [1, 2]
        assert seen.unidentified == (0,)

    def test_one_that_goes_while_it_is_read_is_lost(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetMigMode", 15)
        assert [gpu.lost for gpu in one.look().gpus] == [True, False]

    def test_the_others_can_still_be_changed(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB", mig=(0, 1))
        first, second = uuids(one.look())
        simulator_world.lose(folder, 0)
        assert one.create(second, 19, 0, 1).start == 0
        for error in (
            refused(one.create, first, 19, 0, 1),
            refused(one.destroy, first, 7),
            refused(one.set_mig_mode, first, False),
            refused(one.gpu, first),
        ):
            assert (error.code, error.nvml) == ("gpu_is_lost", 15)

    def test_a_uuid_of_another_node_is_lost_too(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        assert refused(one.gpu, "GPU-00000000-0000-0000-0000-000000000000").code == "gpu_is_lost"


class TestReadings:
    def test_utilisation_is_not_measured_while_mig_is_on(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB", mig=(0,))
        mig, whole = uuids(one.look())
        simulator_world.process(folder, 1, memory_mib=4096)
        simulator_world.busy(folder, whole, 40)
        values = one.readings()
        assert (values[mig].utilization_pct, values[mig].memory_used_mib) == (None, 0)
        assert (values[whole].utilization_pct, values[whole].memory_used_mib) == (40, 4096)
        assert values[whole].power_w == pytest.approx(282.0)
        assert values[mig].power_w == pytest.approx(70.0)
        assert (values[mig].temperature_c, values[whole].temperature_c) == (31, 47)

    @pytest.mark.parametrize("function", ["PowerUsage", "UtilizationRates", "TemperatureV"])
    def test_what_a_gpu_does_not_measure_is_none_or_asked_the_old_way(
        self, driver: Open, function: str
    ) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.fail_next(folder, f"nvmlDeviceGet{function}", 3)
        (value,) = one.readings().values()
        assert (value.power_w is None) == (function == "PowerUsage")
        assert (value.utilization_pct is None) == (function == "UtilizationRates")
        assert value.temperature_c == 31


class TestDriverItself:
    def test_without_a_library_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_library(name: str) -> None:
            raise OSError(name)

        simulator.uninstall()
        monkeypatch.setattr(pynvml, "CDLL", no_library)
        error = refused(Driver().open)
        assert (error.code, error.nvml) == ("driver", 12)

    def test_a_driver_that_vanishes_refuses_to_be_looked_at(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        (folder / "driver.json").rename(folder / "away.json")
        for call in (one.look, one.readings):
            assert (refused(call).code, refused(call).nvml) == ("driver", 9)
        (folder / "away.json").rename(folder / "driver.json")
        assert len(one.look().gpus) == 1
        (folder / "driver.json").unlink()
        one.close()

    def test_before_open_and_after_close_nothing_answers(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        one.close()
        one.close()
        assert refused(one.look).nvml == 1
        with one:
            assert len(one.look().gpus) == 1

    def test_it_looks_while_another_thread_carves(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        (uuid,) = uuids(one.look())
        wrong: list[object] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                try:
                    gpu = one.gpu(uuid)
                    if gpu.lost or not gpu.mig:
                        wrong.append(gpu)
                except Exception as error:
                    wrong.append(error)

        watching = threading.Thread(target=watch)
        watching.start()
        for _ in range(15):
            one.destroy(uuid, one.create(uuid, 19, 3, 1).gi)
        done.set()
        watching.join()
        assert wrong == []


def test_what_only_draws_is_told_from_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"Graphics": [1, 2, 3], "MPSCompute": [3, 4], "Compute": [2]}
    monkeypatch.setattr(
        nvml, "_rows", lambda kind, _device: [SimpleNamespace(pid=p, usedGpuMemory=None) for p in kinds[kind]]
    )
    assert {one.pid: one.computes for one in nvml.running(None) or ()} == {
        1: False,
        2: True,
        3: True,
        4: True,
    }


class TestProcesses:
    def test_clients_of_mps_are_told_beside_the_others(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        pids = [simulator_world.process(folder, 0, memory_mib=mib, mps=mib > 100) for mib in (100, 200)]
        seen = one.look().gpus[0].processes or ()
        assert {each.pid: each.memory_mib for each in seen} == dict(zip(pids, (100, 200), strict=True))

    def test_a_driver_without_mps_has_no_clients(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        pid = simulator_world.process(folder, 0)
        simulator_world.fail_next(folder, "nvmlDeviceGetMPSComputeRunningProcesses_v3", 3)
        assert [each.pid for each in one.look().gpus[0].processes or ()] == [pid]

    @pytest.mark.parametrize("kind", ["Graphics", "MPSCompute", "Compute"])
    def test_a_list_that_is_kept_from_us_leaves_all_unknown(self, driver: Open, kind: str) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.fail_next(folder, f"nvmlDeviceGet{kind}RunningProcesses_v3", 4)
        assert one.look().gpus[0].processes is None


class TestIdentity:
    @pytest.mark.parametrize("function", ["Name", "PciInfo_v3", "MinorNumber"])
    def test_what_it_does_not_tell_now_is_what_it_told_before(self, driver: Open, function: str) -> None:
        one, folder = driver("2xH100-80GB")
        before = one.look()
        simulator_world.fail_next(folder, f"nvmlDeviceGet{function}", 999)
        assert one.look() == before

    def test_a_gpu_that_never_told_its_name_is_still_there(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetName", 999)
        assert [gpu.name for gpu in one.look().gpus] == ["unknown", "NVIDIA H100 80GB HBM3"]


class TestOlderDrivers:
    def test_profiles_have_no_names_but_all_else(self, driver: Open, tmp_path: Path) -> None:
        one, folder = driver("1xA100-40GB", mig=(0,))
        with simulator.Session(folder).edit() as machine:
            machine.missing = [
                "nvmlDeviceGetGpuInstanceProfileInfoV",
                "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
                "nvmlDeviceGetMemoryInfo_v2",
                "nvmlDeviceGetTemperatureV",
            ]
        one.close()
        simulator.install(folder)
        one.open()
        gpu = one.look().gpus[0]
        assert {offer.name for offer in gpu.offers} == {None}
        assert gpu.grid == 8
        assert gpu.memory_total_mib == 40960
        made = one.create(gpu.uuid, 19, 0, 1)
        assert (made.profile, made.processes) == (None, ())
        assert one.readings()[gpu.uuid].temperature_c == 31

    def test_a_fabric_of_the_older_kind_is_read(self, driver: Open) -> None:
        cluster = "7e0c1b52-91aa-4c1e-8f5e-1f3f6d1d2a3b"
        one, folder = driver("1xGB200-186GB", cluster=cluster)
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuFabricInfoV", 25)
        assert one.look().gpus[0].fabric_cluster == cluster.replace("-", "")

    def test_other_mismatches_of_versions_are_not_hidden(self, driver: Open) -> None:
        one, folder = driver("1xA100-40GB", mig=(0,))
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuInstanceProfileInfoV", 999)
        with pytest.raises(nvml.Error) as caught:
            nvml_mig.profiles(nvml.device(0))
        assert caught.value.value == 999
        assert one.look().gpus[0].grid == 8
