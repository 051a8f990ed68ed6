"""How busy GPUs and instances are: by GPM, in percent of what they have, with the source beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.gpu import InstanceReadings

Open = Callable[..., tuple[Driver, Path]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that lies between samples, moved by hand."""
    now = [1000.0]
    for module in ("nvml_gpm", "simulator_gpm"):
        monkeypatch.setattr(f"agents.{module}._now", lambda: now[0])
    return now


class TestInstances:
    def test_each_has_its_own_activity_and_memory(self, driver: Open, clock: list[float]) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        busy, idle = one.create(uuid, 9, 4, 4), one.create(uuid, 19, 0, 1)
        simulator_world.process(folder, 0, 1, memory_mib=4096)
        simulator_world.busy(folder, str(busy.mig_uuid), 80)
        first = one.readings()[uuid]
        assert first.instances[busy.gi].activity_pct is None
        clock[0] += 2
        values = one.readings()[uuid]
        assert values.instances[busy.gi] == InstanceReadings(
            activity_pct=80.0,
            memory_activity_pct=40.0,
            source="gpm",
            memory_used_mib=4096,
            memory_free_mib=40448 - 4096,
        )
        assert (values.instances[idle.gi].activity_pct, values.instances[idle.gi].memory_used_mib) == (0.0, 0)
        assert (values.activity_pct, values.utilization_pct, values.source) == (None, None, "nvml")

    def test_an_instance_made_anew_does_not_inherit_a_sample(self, driver: Open, clock: list[float]) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        made = one.create(uuid, 19, 0, 1)
        simulator_world.busy(folder, str(made.mig_uuid), 50)
        one.readings()
        one.destroy(uuid, made.gi)
        again = one.create(uuid, 19, 0, 1)
        assert again.gi == made.gi
        clock[0] += 2
        assert one.readings()[uuid].instances[made.gi].activity_pct is None
        clock[0] += 2
        assert one.readings()[uuid].instances[made.gi].activity_pct == 50.0

    def test_an_instance_that_foreign_hands_made_anew_is_not_measured_once(
        self, driver: Open, clock: list[float]
    ) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        made = one.create(uuid, 19, 0, 1)
        one.readings()
        with simulator.Session(folder).edit() as machine:
            machine.gpus[0].instances[0].serial = machine.draw()
            machine.gpus[0].instances[0].inner[0].serial = machine.draw()
        activity = []
        for _ in range(3):
            clock[0] += 2
            activity.append(one.readings()[uuid].instances[made.gi].activity_pct)
        assert activity == [None, None, 0.0]

    def test_ampere_has_no_such_source(self, driver: Open, clock: list[float]) -> None:
        one, _ = driver("1xA100-40GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        made = one.create(uuid, 9, 0, 4)
        one.readings()
        clock[0] += 2
        inner = one.readings()[uuid].instances[made.gi]
        assert (inner.activity_pct, inner.source, inner.memory_used_mib) == (None, "nvml", 0)

    def test_a_gpu_instance_that_goes_while_one_samples_costs_one_sample(
        self, driver: Open, clock: list[float]
    ) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        one.create(uuid, 19, 0, 1)
        simulator_world.fail_next(folder, "nvmlDeviceGetGpuInstanceId", 2)
        assert one.readings()[uuid].instances == {}
        assert len(one.readings()[uuid].instances) == 1


class TestWholeGpus:
    def test_engines_tensor_memory_and_traffic_are_measured(self, driver: Open, clock: list[float]) -> None:
        one, folder = driver("1xH100-80GB")
        uuid = one.look().gpus[0].uuid
        simulator_world.busy(folder, uuid, 50)
        one.readings()
        clock[0] += 2
        values = one.readings()[uuid]
        assert (values.activity_pct, values.tensor_pct, values.memory_activity_pct) == (50.0, 30.0, 25.0)
        assert (values.pcie_tx_bytes_s, values.pcie_rx_bytes_s) == (1000 * 2**20, 1500 * 2**20)
        assert values.nvlink_mb_s == pytest.approx(40000 * 2**20 / 1e6)
        assert values.source == "gpm"

    def test_a_metric_that_a_gpu_lacks_is_absent_alone(self, driver: Open, clock: list[float]) -> None:
        one, _ = driver("1xRTX-PRO-6000-96GB")
        one.readings()
        clock[0] += 2
        (values,) = one.readings().values()
        assert (values.nvlink_mb_s, values.pcie_tx_bytes_s, values.activity_pct) == (None, 0.0, 0.0)

    def test_two_looks_in_a_tenth_of_a_second_say_the_same(self, driver: Open, clock: list[float]) -> None:
        one, folder = driver("1xH100-80GB")
        uuid = one.look().gpus[0].uuid
        one.readings()
        clock[0] += 2
        assert one.readings()[uuid].activity_pct == 0.0
        simulator_world.busy(folder, uuid, 50)
        clock[0] += 0.05
        assert one.readings()[uuid].activity_pct == 0.0
        clock[0] += 0.06
        assert one.readings()[uuid].activity_pct == 50.0

    @pytest.mark.parametrize("function", ["nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
    def test_a_failure_is_not_measured_and_heals(
        self, driver: Open, clock: list[float], function: str
    ) -> None:
        one, folder = driver("1xH100-80GB")
        uuid = one.look().gpus[0].uuid
        one.readings()
        clock[0] += 2
        if function == "nvmlGpmSampleAlloc":
            one._gpm.forget()
        simulator_world.fail_next(folder, function, 999)
        assert one.readings()[uuid].activity_pct is None
        for _ in range(2):
            clock[0] += 2
            one.readings()
        assert one.readings()[uuid].activity_pct == 0.0

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, 101.5])
    def test_a_figure_that_makes_no_sense_is_none(
        self, driver: Open, clock: list[float], monkeypatch: pytest.MonkeyPatch, value: float
    ) -> None:
        monkeypatch.setitem(simulator._CALLS, "nvmlGpmMetricsGet", _answer(value))
        one, _ = driver("1xH100-80GB")
        one.readings()
        clock[0] += 2
        assert next(iter(one.readings().values())).activity_pct is None

    def test_a_hair_more_than_everything_is_everything(
        self, driver: Open, clock: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(simulator._CALLS, "nvmlGpmMetricsGet", _answer(100.4))
        one, _ = driver("1xH100-80GB")
        one.readings()
        clock[0] += 2
        assert next(iter(one.readings().values())).activity_pct == 100.0

    def test_buffers_are_given_back(self, driver: Open, clock: list[float]) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        session = simulator.pynvml.nvmlLib._session
        for _ in range(3):
            made = one.create(uuid, 19, 0, 1)
            for _ in range(3):
                clock[0] += 2
                one.readings()
            assert len(session.samples) == 2
            one.destroy(uuid, made.gi)
        assert session.samples == {}
        one.create(uuid, 19, 0, 1)
        one.readings()
        one.close()
        assert session.samples == {}


def _answer(value: float) -> Callable[..., None]:
    def metrics(_session: object, ask: object) -> None:
        for metric in ask._obj.metrics[: ask._obj.numMetrics]:  # type: ignore[attr-defined]
            metric.nvmlReturn, metric.value = 0, value

    return metrics


class TestReadings:
    def test_clocks_energy_engines_and_memory_are_there(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        uuid = one.look().gpus[0].uuid
        simulator_world.process(folder, 0, memory_mib=1024)
        before = one.readings()[uuid]
        values = one.readings()[uuid]
        assert (values.sm_clock_mhz, values.memory_clock_mhz) == (1980, 2619)
        assert (values.memory_used_mib, values.memory_reserved_mib) == (1024, 512)
        assert values.memory_free_mib == 81559 - 1024 - 512
        assert (values.memory_utilization_pct, values.memory_temperature_c) == (47, 75)
        assert (values.encoder_pct, values.decoder_pct, values.pcie_replays) == (0, 0, 0)
        assert before.energy_mj is not None
        assert values.energy_mj is not None
        assert values.energy_mj >= before.energy_mj

    def test_what_a_gpu_in_mig_mode_does_not_measure_is_absent(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB", mig=(0,))
        (values,) = one.readings().values()
        assert (values.utilization_pct, values.memory_utilization_pct) == (None, None)
        assert (values.encoder_pct, values.decoder_pct) == (None, None)
        assert values.power_w is not None

    def test_a_board_without_a_sensor_in_its_memory_says_nothing(self, driver: Open) -> None:
        one, _ = driver("1xL40S-48GB")
        (values,) = one.readings().values()
        assert (values.memory_temperature_c, values.temperature_c) == (None, 31)
