"""What the simulated driver answers to what it cannot do, as pynvml meets it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from agents import simulator_world

Simulate = Callable[..., Path]


@pytest.fixture
def start(simulate: Simulate) -> Callable[..., Path]:
    def make(spec: str, **options: Any) -> Path:
        folder = simulate(spec, **options)
        n.nvmlInit()
        return folder

    return make


@contextmanager
def answers(code: int) -> Iterator[None]:
    with pytest.raises(n.NVMLError) as caught:
        yield
    assert caught.value.value == code


def placed(device: Any, profile_id: int, start: int, size: int) -> Any:
    place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size))
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, place)


def filled(device: Any, profile_id: int, start: int, size: int, compute: int = 0) -> tuple[Any, Any]:
    instance = placed(device, profile_id, start, size)
    return instance, n.nvmlGpuInstanceCreateComputeInstance(instance, compute)


class TestReturnCodes:
    def test_1_before_init_and_after_shutdown(self, simulate: Simulate) -> None:
        simulate("1xH100-80GB")
        with answers(n.NVML_ERROR_UNINITIALIZED):
            n.nvmlDeviceGetCount()
        n.nvmlInit()
        n.nvmlInit()
        n.nvmlShutdown()
        assert n.nvmlDeviceGetCount() == 1
        n.nvmlShutdown()
        with answers(n.NVML_ERROR_UNINITIALIZED):
            n.nvmlDeviceGetCount()

    def test_2_for_a_placement_a_size_a_profile_or_an_index_that_does_not_exist(
        self, start: Callable[..., Path]
    ) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        for wrong in ((19, 7, 1), (14, 1, 2), (9, 2, 4), (19, 0, 2), (77, 0, 1)):
            with answers(n.NVML_ERROR_INVALID_ARGUMENT):
                placed(device, *wrong)
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlDeviceGetHandleByIndex(1)
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlDeviceSetMigMode(device, 2)

    @pytest.mark.parametrize("spec", ["1xL40S-48GB", "1xT4-16GB", "1xH100-80GB"])
    def test_3_without_mig_or_while_it_is_off(self, start: Callable[..., Path], spec: str) -> None:
        start(spec)
        device = n.nvmlDeviceGetHandleByIndex(0)
        count = ctypes.byref(ctypes.c_uint(0))
        array = (n.c_nvmlGpuInstance_t * 16)()
        calls: list[Callable[[], object]] = [
            lambda: placed(device, 19, 0, 1),
            lambda: n.nvmlDeviceCreateGpuInstance(device, 19),
            lambda: n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19),
            lambda: n.nvmlDeviceGetGpuInstances(device, 19, array, count),
            lambda: n.nvmlDeviceGetGpuInstanceById(device, 0),
        ]
        if spec != "1xH100-80GB":
            calls += [lambda: n.nvmlDeviceGetMigMode(device), lambda: n.nvmlDeviceSetMigMode(device, 1)]
        for call in calls:
            with answers(n.NVML_ERROR_NOT_SUPPORTED):
                call()

    def test_3_for_utilisation_while_mig_is_on(self, start: Callable[..., Path]) -> None:
        start("1xA100-40GB")
        device = n.nvmlDeviceGetHandleByIndex(0)
        assert n.nvmlDeviceGetUtilizationRates(device).gpu == 0
        n.nvmlDeviceSetMigMode(device, 1)
        device = n.nvmlDeviceGetHandleByIndex(0)
        with answers(n.NVML_ERROR_NOT_SUPPORTED):
            n.nvmlDeviceGetUtilizationRates(device)
        filled(device, 19, 0, 1)
        mig = n.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        for call in (n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetPowerUsage):
            with answers(n.NVML_ERROR_NOT_SUPPORTED):
                call(mig)

    def test_4_for_every_order_without_permission(self, start: Callable[..., Path]) -> None:
        folder = start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance, compute = filled(device, 19, 0, 1)
        empty = placed(device, 19, 1, 1)
        simulator_world.permission(folder, False)
        for call in (
            lambda: n.nvmlDeviceSetMigMode(device, 0),
            lambda: placed(device, 19, 2, 1),
            lambda: n.nvmlGpuInstanceCreateComputeInstance(empty, 0),
            lambda: n.nvmlComputeInstanceDestroy(compute),
            lambda: n.nvmlGpuInstanceDestroy(empty),
        ):
            with answers(n.NVML_ERROR_NO_PERMISSION):
                call()
        simulator_world.permission(folder, True)
        n.nvmlComputeInstanceDestroy(compute)
        n.nvmlGpuInstanceDestroy(instance)

    def test_6_for_ids_and_indices_that_are_not_there(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance, _ = filled(device, 19, 0, 1)
        for call in (
            lambda: n.nvmlDeviceGetGpuInstanceById(device, 13),
            lambda: n.nvmlGpuInstanceGetComputeInstanceById(instance, 1),
            lambda: n.nvmlDeviceGetMigDeviceHandleByIndex(device, 1),
            lambda: n.nvmlDeviceGetHandleByUUID("MIG-00000000-0000-0000-0000-000000000000"),
            lambda: n.nvmlDeviceGetHandleByPciBusId("00000000:FF:00.0"),
        ):
            with answers(n.NVML_ERROR_NOT_FOUND):
                call()

    def test_15_for_every_call_on_a_lost_gpu_and_none_on_another(self, start: Callable[..., Path]) -> None:
        folder = start("2xH100-80GB", mig=(0, 1))
        lost, other = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
        instance, compute = filled(lost, 19, 0, 1)
        mig = n.nvmlDeviceGetMigDeviceHandleByIndex(lost, 0)
        simulator_world.lose(folder, 0)
        for call in (
            lambda: n.nvmlDeviceGetHandleByIndex(0),
            lambda: n.nvmlDeviceGetName(lost),
            lambda: n.nvmlDeviceGetMigMode(lost),
            lambda: n.nvmlDeviceGetPowerUsage(lost),
            lambda: n.nvmlDeviceGetUUID(mig),
            lambda: n.nvmlGpuInstanceGetInfo(instance),
            lambda: n.nvmlComputeInstanceDestroy(compute),
        ):
            with answers(n.NVML_ERROR_GPU_IS_LOST):
                call()
        assert n.nvmlDeviceGetCount() == 2
        assert n.nvmlDeviceGetMigMode(other) == [1, 1]

    def test_15_for_a_search_by_uuid_as_soon_as_any_gpu_is_lost(self, start: Callable[..., Path]) -> None:
        folder = start("2xH100-80GB")
        uuid = n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(1))
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == 1
        simulator_world.lose(folder, 0)
        with answers(n.NVML_ERROR_GPU_IS_LOST):
            n.nvmlDeviceGetHandleByUUID(uuid)
        bus = n.nvmlDeviceGetPciInfo(n.nvmlDeviceGetHandleByIndex(1)).busId
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(bus)) == 1

    def test_19_for_what_still_holds_something(self, start: Callable[..., Path]) -> None:
        folder = start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance, compute = filled(device, 19, 0, 1)
        with answers(n.NVML_ERROR_IN_USE):
            n.nvmlGpuInstanceDestroy(instance)
        simulator_world.process(folder, 0, 0)
        with answers(n.NVML_ERROR_IN_USE):
            n.nvmlComputeInstanceDestroy(compute)
        simulator_world.stop_processes(folder)
        n.nvmlComputeInstanceDestroy(compute)
        n.nvmlGpuInstanceDestroy(instance)

    def test_23_when_there_is_no_room(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance = placed(device, 9, 0, 4)
        for taken in ((19, 0, 1), (14, 2, 2), (5, 0, 4), (0, 0, 8), (9, 0, 4)):
            with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
                placed(device, *taken)
        for _ in range(3):
            n.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
            n.nvmlGpuInstanceCreateComputeInstance(instance, 0)

    def test_the_words_of_an_error_come_from_the_driver(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB")
        assert str(n.NVMLError(n.NVML_ERROR_IN_USE)) == "In use by another client"
        assert str(n.NVMLError(n.NVML_ERROR_INSUFFICIENT_RESOURCES)) == "Insufficient Resources"

    def test_a_fault_that_was_told_comes_once_and_changes_nothing(self, start: Callable[..., Path]) -> None:
        folder = start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        simulator_world.fail_next(folder, "nvmlDeviceCreateGpuInstanceWithPlacement", 999, 23)
        for code in (999, 23):
            with answers(code):
                placed(device, 19, 0, 1)
        assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19) == 7
        placed(device, 19, 0, 1)


class TestMedia:
    def test_media_extensions_are_given_once(self, start: Callable[..., Path]) -> None:
        start("1xA30-24GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        placed(device, 21, 0, 1)  # 1g.6gb+me
        assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 21) == 0
        with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
            placed(device, 6, 2, 2)  # 2g.12gb+me
        placed(device, 14, 1, 1)

    def test_all_media_leaves_room_only_for_instances_without_media(self, start: Callable[..., Path]) -> None:
        start("1xRTX-PRO-6000-96GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        placed(device, 65, 0, 3)  # +me.all
        for refused in (14, 21, 47, 65):
            with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
                placed(device, refused, 3, 3)
        placed(device, 67, 3, 3)  # -me

    def test_all_media_needs_a_gpu_without_media_users(self, start: Callable[..., Path]) -> None:
        start("1xRTX-PRO-6000-96GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        plain = placed(device, 14, 0, 3)
        with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
            placed(device, 65, 3, 3)
        n.nvmlGpuInstanceDestroy(plain)
        placed(device, 67, 0, 3)
        placed(device, 65, 3, 3)
