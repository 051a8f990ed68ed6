"""Names, handles and arguments of the simulated driver, as pynvml meets them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from agents import simulator
from agents.simulator_state import create_state

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


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "profile_id", "start_at", "size", "gi"),
        [
            ("1xH100-80GB", 19, 6, 1, 13),
            ("1xH100-80GB", 14, 0, 2, 3),
            ("1xH100-80GB", 14, 4, 2, 5),
            ("1xH100-80GB", 5, 0, 4, 1),
            ("1xH100-80GB", 9, 4, 4, 2),
            ("1xH100-80GB", 0, 0, 8, 0),
            ("1xRTX-PRO-6000-96GB", 14, 6, 3, 5),
            ("1xRTX-PRO-6000-96GB", 5, 0, 6, 1),
        ],
    )
    def test_ids_are_numbered_by_levels_and_come_back(
        self, start: Callable[..., Path], spec: str, profile_id: int, start_at: int, size: int, gi: int
    ) -> None:
        start(spec, mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        for _ in range(2):
            instance = placed(device, profile_id, start_at, size)
            info = n.nvmlGpuInstanceGetInfo(instance)
            assert (info.id, info.profileId, info.placement.start, info.placement.size) == (
                gi,
                profile_id,
                start_at,
                size,
            )
            n.nvmlGpuInstanceDestroy(instance)

    def test_the_same_place_has_the_same_uuid_and_another_place_another(
        self, start: Callable[..., Path]
    ) -> None:
        start("2xH100-80GB", mig=(0, 1))
        seen = []
        for index, start_at in ((0, 0), (0, 0), (0, 1), (1, 0)):
            device = n.nvmlDeviceGetHandleByIndex(index)
            instance, compute = filled(device, 19, start_at, 1)
            seen.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)))
            n.nvmlComputeInstanceDestroy(compute)
            n.nvmlGpuInstanceDestroy(instance)
        assert seen[0] == seen[1]
        assert len(set(seen)) == 3
        assert all(uuid.startswith("MIG-") and uuid[18] == "5" for uuid in seen)

    def test_a_mig_device_says_what_it_is_part_of(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance = placed(device, 9, 4, 4)
        n.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        filled(device, 19, 0, 1)
        first = n.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        assert n.nvmlDeviceGetName(first) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
        assert n.nvmlDeviceIsMigDeviceHandle(first).value == 1
        assert n.nvmlDeviceIsMigDeviceHandle(device).value == 0
        assert (n.nvmlDeviceGetGpuInstanceId(first), n.nvmlDeviceGetComputeInstanceId(first)) == (2, 0)
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(first)
        assert n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(device)
        assert n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(first)).contents is not None
        attributes = n.nvmlDeviceGetAttributes_v2(first)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 2)
        assert n.nvmlDeviceGetMemoryInfo(first).total == 40448 * 1024 * 1024

    def test_compute_instances_have_names_of_their_part(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        instance = placed(n.nvmlDeviceGetHandleByIndex(0), 9, 0, 4)
        info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
        assert (info.name, info.sliceCount, info.instanceCount) == ("MIG 1c.3g.40gb", 1, 3)
        assert n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 2, 0).name == "MIG 3g.40gb"
        with answers(n.NVML_ERROR_NOT_SUPPORTED):
            n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 3, 0)


class TestPlacementByTheDriver:
    def test_it_takes_the_far_end_first_and_so_spoils_a_layout_that_would_fit(
        self, start: Callable[..., Path]
    ) -> None:
        start("1xA100-40GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        taken = []
        for profile_id in (19, 19, 14):
            info = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceCreateGpuInstance(device, profile_id))
            taken.append(info.placement.start)
        assert taken == [6, 4, 0]
        with answers(n.NVML_ERROR_INSUFFICIENT_RESOURCES):
            n.nvmlDeviceCreateGpuInstance(device, 9)

    def test_a_12_slice_gpu_fills_from_the_beginning(self, start: Callable[..., Path]) -> None:
        start("1xRTX-PRO-6000-96GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        infos = [n.nvmlGpuInstanceGetInfo(n.nvmlDeviceCreateGpuInstance(device, 14)) for _ in range(4)]
        assert [info.placement.start for info in infos] == [0, 3, 6, 9]


class TestHandles:
    def test_a_handle_of_a_destroyed_instance_is_not_that_of_its_successor(
        self, start: Callable[..., Path]
    ) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance, compute = filled(device, 19, 0, 1)
        mig = n.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        n.nvmlComputeInstanceDestroy(compute)
        n.nvmlGpuInstanceDestroy(instance)
        filled(device, 19, 0, 1)
        for call, stale in (
            (n.nvmlGpuInstanceGetInfo, instance),
            (n.nvmlComputeInstanceGetInfo, compute),
            (n.nvmlDeviceGetUUID, mig),
        ):
            with answers(n.NVML_ERROR_INVALID_ARGUMENT):
                call(stale)

    def test_a_reset_makes_a_device_handle_stale(self, start: Callable[..., Path]) -> None:
        start("1xA100-40GB")
        device = n.nvmlDeviceGetHandleByIndex(0)
        n.nvmlDeviceSetMigMode(device, 1)
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlDeviceGetMigMode(device)
        assert n.nvmlDeviceGetMigMode(n.nvmlDeviceGetHandleByIndex(0)) == [1, 1]

    def test_one_kind_of_handle_is_not_another(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlGpuInstanceGetInfo(ctypes.cast(device, n.c_nvmlGpuInstance_t))
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlDeviceGetUUID(n.c_nvmlDevice_t())

    def test_a_compute_instance_knows_where_it_is(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        instance, compute = filled(device, 9, 0, 4, compute=2)
        info = n.nvmlComputeInstanceGetInfo(compute)
        assert (info.id, info.profileId, info.placement.start, info.placement.size) == (0, 2, 0, 3)
        assert n.nvmlGpuInstanceGetInfo(info.gpuInstance).id == n.nvmlGpuInstanceGetInfo(instance).id
        assert n.nvmlDeviceGetIndex(info.device) == 0


class TestArguments:
    def test_a_struct_by_value_is_caught_before_it_ends_the_process(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device = n.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(TypeError, match="by value"):
            n.nvmlDeviceCreateGpuInstanceWithPlacement(device, 19, n.c_nvmlGpuInstancePlacement_t(0, 1))
        assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19) == 7

    def test_the_list_of_instances_wants_an_array(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB", mig=(0,))
        device, count = n.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(0)
        placed(device, 19, 5, 1)
        with answers(n.NVML_ERROR_INVALID_ARGUMENT):
            n.nvmlDeviceGetGpuInstances(device, 19, None, ctypes.byref(count))
        array = (n.c_nvmlGpuInstance_t * 7)()
        n.nvmlDeviceGetGpuInstances(device, 19, array, ctypes.byref(count))
        assert count.value == 1
        assert n.nvmlGpuInstanceGetInfo(array[0]).placement.start == 5

    def test_placements_are_counted_first_and_need_room(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB")
        device, count = n.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(0)
        n.nvmlDeviceGetGpuInstancePossiblePlacements(device, 14, None, ctypes.byref(count))
        assert count.value == 3
        few = (n.c_nvmlGpuInstancePlacement_t * 1)()
        with answers(n.NVML_ERROR_INSUFFICIENT_SIZE):
            n.nvmlDeviceGetGpuInstancePossiblePlacements(device, 14, few, ctypes.byref(ctypes.c_uint(1)))
        places = (n.c_nvmlGpuInstancePlacement_t * 3)()
        n.nvmlDeviceGetGpuInstancePossiblePlacements(device, 14, places, ctypes.byref(count))
        assert [(place.start, place.size) for place in places] == [(0, 2), (2, 2), (4, 2)]

    def test_the_row_of_profiles_has_gaps_and_an_end(self, start: Callable[..., Path]) -> None:
        start("1xA30-24GB")
        device = n.nvmlDeviceGetHandleByIndex(0)
        codes = []
        for number in range(19):
            try:
                codes.append(n.nvmlDeviceGetGpuInstanceProfileInfo(device, number).id)
            except n.NVMLError as error:
                codes.append(-error.value)
        assert [code for code in codes if code >= 0] == [14, 5, 0, 21, 6]
        assert codes[2] == -n.NVML_ERROR_NOT_SUPPORTED
        assert codes[18] == -n.NVML_ERROR_INVALID_ARGUMENT

    def test_a_struct_of_another_version_is_a_mismatch(self, start: Callable[..., Path]) -> None:
        start("1xH100-80GB")
        device = n.nvmlDeviceGetHandleByIndex(0)
        with answers(n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            n.nvmlDeviceGetMemoryInfo(device, 0x1000028)
        info = n.c_nvmlGpuFabricInfo_v3_t()
        info.version = 0x9000028
        with answers(n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            n.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))

    def test_a_function_that_the_driver_lacks_is_not_found(self, simulate: Simulate) -> None:
        folder = simulate("1xH100-80GB")
        with simulator.Session(folder).edit() as machine:
            machine.missing = ["nvmlDeviceGetMemoryInfo_v2"]
        simulator.install(folder)
        n.nvmlInit()
        device = n.nvmlDeviceGetHandleByIndex(0)
        for call in (
            lambda: n.nvmlDeviceGetMemoryInfo(device, n.nvmlMemory_v2),
            lambda: n.nvmlDeviceGetFanSpeed(device),
        ):
            with answers(n.NVML_ERROR_FUNCTION_NOT_FOUND):
                call()
        assert n.nvmlDeviceGetMemoryInfo(device).used == 512 * 1024 * 1024

    def test_installing_forgets_the_functions_of_the_library_before(
        self, start: Callable[..., Path], tmp_path: Path
    ) -> None:
        start("1xH100-80GB")
        assert n.nvmlDeviceGetCount() == 1
        create_state(tmp_path / "other", "3xH100-80GB", seed="node-2")
        simulator.install(tmp_path / "other")
        n.nvmlInit()
        assert n.nvmlDeviceGetCount() == 3

    def test_it_is_not_installed_on_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            simulator.install(tmp_path / "nowhere")


def test_figures_without_a_source_are_filled_in(start: Callable[..., Path]) -> None:
    start("1xB300-269GB+1xGB200-186GB", mig=(0, 1))
    b300, gb200 = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
    assert n.nvmlDeviceGetMemoryInfo(b300).total == 269 * 1024**3
    info = n.nvmlDeviceGetGpuInstanceProfileInfo(b300, n.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (info.memorySizeMB, info.multiprocessorCount) == (135 * 1024, 3)
    info = n.nvmlDeviceGetGpuInstanceProfileInfo(gb200, n.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (info.memorySizeMB, info.multiprocessorCount) == (189471 * 4 // 8, 3)


def test_gpm_is_there_from_hopper_on(start: Callable[..., Path]) -> None:
    start("1xH100-80GB+1xA100-40GB+1xL40S-48GB")
    devices = [n.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
    assert [n.nvmlGpmQueryDeviceSupport(one).isSupportedDevice for one in devices] == [1, 0, 0]


def test_bus_ids_and_minor_numbers_are_distinct(start: Callable[..., Path]) -> None:
    start("64xH100-80GB")
    devices = [n.nvmlDeviceGetHandleByIndex(index) for index in range(64)]
    assert len({n.nvmlDeviceGetPciInfo(device).busId for device in devices}) == 64
    assert [n.nvmlDeviceGetMinorNumber(device) for device in devices] == list(range(64))
    assert all(a != b for a, b in itertools.pairwise(map(n.nvmlDeviceGetUUID, devices)))
