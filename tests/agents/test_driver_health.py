"""How GPUs are and how they are wired, each value as the driver has it, or absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu, Health
from pool.core.wire import Link, Remapped

Open = Callable[..., tuple[Driver, Path]]


def healths(driver: Driver) -> list[Health]:
    return [gpu.health for gpu in driver.look().gpus]


def neighbours(gpu: Gpu, kind: str) -> list[tuple[str | None, object]]:
    return [(link.peer, link.count) for link in gpu.health.links or () if link.kind == kind]


class TestHealth:
    def test_a_sound_gpu_is_told_in_full(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        (health,) = healths(one)
        assert (health.sm_clock_mhz, health.memory_clock_mhz) == (345, 2619)
        assert (health.throttle, health.compute_mode, health.numa) == (("idle",), "default", 0)
        assert (health.ecc_corrected, health.ecc_uncorrected) == (0, 0)
        assert health.remapped == Remapped(correctable=0, uncorrectable=0, pending=False, failure=False)
        assert (health.fabric_state, health.fabric_health) == ("completed", "healthy")

    def test_errors_of_memory_and_rows_to_replace_are_counted(self, driver: Open) -> None:
        one, folder = driver("1xA100-80GB")
        simulator_world.ecc(folder, 0, corrected=3, uncorrected=1)
        simulator_world.ecc(folder, 0, corrected=1)
        simulator_world.remap(folder, 0)
        simulator_world.remap(folder, 0, correctable=True)
        (health,) = healths(one)
        assert (health.ecc_corrected, health.ecc_uncorrected) == (4, 1)
        assert health.remapped == Remapped(correctable=1, uncorrectable=1, pending=True, failure=False)
        simulator_world.remap(folder, 0, failed=True)
        assert healths(one)[0].remapped == Remapped(
            correctable=1, uncorrectable=1, pending=True, failure=True
        )

    def test_reasons_that_hold_clocks_down_are_words(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.process(folder, 0)
        assert (healths(one)[0].throttle, healths(one)[0].sm_clock_mhz) == ((), 1980)
        simulator_world.throttle(folder, 0, "power_brake", "hw_thermal")
        assert (healths(one)[0].throttle, healths(one)[0].sm_clock_mhz) == (
            ("hw_thermal", "power_brake"),
            1200,
        )
        simulator_world.throttle(folder, 0)
        assert healths(one)[0].throttle == ()

    def test_half_of_the_gpus_are_near_each_socket(self, driver: Open) -> None:
        one, _ = driver("4xH100-80GB")
        assert [health.numa for health in healths(one)] == [0, 0, 1, 1]

    def test_a_gpu_without_a_fabric_or_remapping_says_nothing_of_them(self, driver: Open) -> None:
        one, _ = driver("1xT4-16GB")
        (health,) = healths(one)
        assert (health.remapped, health.fabric_state, health.fabric_health, health.links) == (
            None,
            None,
            None,
            (),
        )

    @pytest.mark.parametrize(
        ("summary", "word"), [(1, "healthy"), (2, "unhealthy"), (3, "limited"), (0, None)]
    )
    def test_the_fabric_s_health_is_a_word(self, driver: Open, summary: int, word: str | None) -> None:
        one, folder = driver("1xGB200-186GB")
        with simulator.Session(folder).edit() as machine:
            machine.gpus[0].health = summary
        assert healths(one)[0].fabric_health == word

    @pytest.mark.parametrize(
        ("state", "error", "word", "clique"),
        [
            (0, 0, "not_supported", None),
            (1, 0, "not_started", None),
            (2, 0, "in_progress", None),
            (3, 0, "completed", 7),
            (3, 999, "failed", None),
        ],
    )
    def test_a_domain_counts_only_when_the_gpu_has_joined_it(
        self, driver: Open, state: int, error: int, word: str, clique: int | None
    ) -> None:
        one, folder = driver("1xGB200-186GB", cluster="7e0c1b52-91aa-4c1e-8f5e-1f3f6d1d2a3b", clique=7)
        with simulator.Session(folder).edit() as machine:
            machine.gpus[0].fabric, machine.gpus[0].fabric_error = state, error
        (gpu,) = one.look().gpus
        assert (gpu.health.fabric_state, gpu.fabric_clique) == (word, clique)
        assert (gpu.fabric_cluster is not None) == (clique is not None)

    @pytest.mark.parametrize(
        ("function", "field"),
        [
            ("nvmlDeviceGetTotalEccErrors", "ecc_corrected"),
            ("nvmlDeviceGetRemappedRows", "remapped"),
            ("nvmlDeviceGetMemoryAffinity", "numa"),
            ("nvmlDeviceGetComputeMode", "compute_mode"),
            ("nvmlDeviceGetNvLinkState", "links"),
            ("nvmlDeviceGetGpuFabricInfoV", "fabric_state"),
        ],
    )
    def test_what_fails_alone_is_absent_alone(self, driver: Open, function: str, field: str) -> None:
        one, folder = driver("2xH100-80GB")
        whole = healths(one)
        simulator_world.fail_next(folder, function, 999)
        broken, other = healths(one)
        names = [name for name in Health.__slots__ if getattr(broken, name) != getattr(whole[0], name)]
        assert field in names
        assert set(names) <= {field, "fabric_health"}
        assert getattr(broken, field) is None
        assert other == whole[1]

    def test_a_driver_with_the_old_name_of_the_reasons_is_asked_by_it(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetCurrentClocksEventReasons", 13)
        assert healths(one)[0].throttle == ("idle",)


class TestWiring:
    def test_links_to_switches_are_counted_as_far_as_they_are_up(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB")
        first, second = one.look().gpus
        assert neighbours(first, "nvswitch") == neighbours(second, "nvswitch") == [(None, 18)]
        simulator_world.links_down(folder, 1, 2)
        assert [neighbours(gpu, "nvswitch") for gpu in one.look().gpus] == [[(None, 18)], [(None, 16)]]

    def test_a_bridge_names_its_other_end(self, driver: Open) -> None:
        one, _ = driver("3xH100-94GB")
        first, second, third = one.look().gpus
        assert neighbours(first, "nvlink") == [(second.uuid, 12)]
        assert neighbours(second, "nvlink") == [(first.uuid, 12)]
        assert neighbours(third, "nvlink") == []

    def test_who_reads_whose_memory_is_told_also_without_nvlink(self, driver: Open) -> None:
        one, _ = driver("2xL40S-48GB+1xT4-16GB")
        first, second, other = one.look().gpus
        assert first.health.links == (Link(peer=second.uuid, kind="p2p", count=None),)
        assert other.health.links == ()

    def test_a_link_whose_end_is_not_told_is_left_out_alone(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetNvLinkRemoteDeviceType", 999)
        assert neighbours(one.look().gpus[0], "nvswitch") == [(None, 17)]

    def test_a_bridge_whose_other_end_does_not_answer_is_still_a_bridge(self, driver: Open) -> None:
        one, folder = driver("2xA30-24GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetNvLinkRemotePciInfo_v2", *[999] * 4)
        first, second = one.look().gpus
        assert (neighbours(first, "nvlink"), neighbours(second, "nvlink")) == ([(None, 4)], [(first.uuid, 4)])

    def test_a_pair_that_is_not_told_is_left_out_alone(self, driver: Open) -> None:
        one, folder = driver("3xH100-80GB")
        simulator_world.fail_next(folder, "nvmlDeviceGetP2PStatus", 999)
        assert [len(neighbours(gpu, "p2p")) for gpu in one.look().gpus] == [1, 2, 2]

    def test_in_mig_mode_a_gpu_reaches_no_other_and_its_links_are_not_denied(self, driver: Open) -> None:
        one, _ = driver("3xH100-80GB", mig=(1,))
        first, mig, third = one.look().gpus
        assert mig.health.links is None
        assert neighbours(first, "p2p") == [(third.uuid, None)]

    def test_a_lost_neighbour_costs_only_its_own_line(self, driver: Open) -> None:
        one, folder = driver("8xH100-80GB")
        one.look()
        simulator_world.lose(folder, 5)
        gpus = one.look().gpus
        assert [gpu.lost for gpu in gpus] == [index == 5 for index in range(8)]
        assert [len(neighbours(gpu, "p2p")) for gpu in gpus] == [0 if index == 5 else 6 for index in range(8)]


class TestComputeMode:
    def test_it_is_set_read_back_and_may_come_twice(self, driver: Open) -> None:
        one, _ = driver("2xH100-80GB")
        first, second = one.look().gpus
        for mode in ("prohibited", "prohibited", "exclusive_process", "default"):
            one.set_compute_mode(first.uuid, mode)
            assert one.gpu(first.uuid).health.compute_mode == mode
            assert one.gpu(second.uuid).health.compute_mode == "default"

    def test_a_prohibited_gpu_takes_no_process(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        one.set_compute_mode(one.look().gpus[0].uuid, "prohibited")
        with pytest.raises(ValueError, match="compute mode is prohibited"):
            simulator_world.process(folder, 0)

    @pytest.mark.parametrize(
        ("code", "word"), [(4, "no_permission"), (3, "not_supported"), (15, "gpu_is_lost")]
    )
    def test_a_refusal_has_its_code(self, driver: Open, code: int, word: str) -> None:
        one, folder = driver("1xH100-80GB")
        (gpu,) = one.look().gpus
        simulator_world.fail_next(folder, "nvmlDeviceSetComputeMode", code)
        with pytest.raises(DriverRefusal) as caught:
            one.set_compute_mode(gpu.uuid, "prohibited")
        assert (caught.value.code, caught.value.nvml) == (word, code)

    def test_a_mode_that_does_not_read_back_is_no_success(
        self, driver: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, _ = driver("1xH100-80GB")
        (gpu,) = one.look().gpus
        monkeypatch.setattr("agents.nvml.set_compute_mode", lambda _device, _word: None)
        with pytest.raises(DriverRefusal, match="not prohibited as asked for"):
            one.set_compute_mode(gpu.uuid, "prohibited")


class TestAnOldDriver:
    def test_what_it_lacks_is_absent_and_all_else_is_there(self, driver: Open) -> None:
        one, folder = driver("1xA100-40GB", mig=(0,), old_driver=True)
        seen = one.look()
        (gpu,) = seen.gpus
        assert seen.driver == "470.256.02"
        assert {offer.name for offer in gpu.offers} == {None}
        assert (gpu.grid, gpu.memory_total_mib, gpu.minor) == (8, 40960, 0)
        assert (gpu.health.fabric_state, gpu.health.throttle) == (None, ("idle",))
        made = one.create(gpu.uuid, 9, 4, 4)
        assert (made.profile, made.sm, made.processes) == (None, 42, ())
        pid = simulator_world.process(folder, 0, 0, memory_mib=1000)
        values = one.readings()[gpu.uuid]
        assert (values.temperature_c is not None, values.memory_reserved_mib) == (True, None)
        assert values.instances[made.gi].memory_used_mib == 1000
        assert [each.pid for each in (one.gpu(gpu.uuid).instances or ())[0].processes or ()] == [pid]
        simulator_world.stop_processes(folder)
        one.destroy(gpu.uuid, made.gi)
        one.set_mig_mode(gpu.uuid, False)
        assert one.gpu(gpu.uuid).mig is False

    def test_it_measures_no_activity(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", old_driver=True)
        (values,) = one.readings().values()
        assert (values.activity_pct, values.source) == (None, "nvml")
