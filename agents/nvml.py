"""The only way to a GPU, in demo, tests and production: the unmodified pynvml.

One function a question or an order, on a device handle; values come back plain.
Errors are pynvml's (`Error`, `error.value`). Not here: which GPUs there are, what
is lost, refusals and rollback (agents.driver).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml as n

from agents import processes
from agents.gpu import Instance, Readings
from pool.core.wire import Offer, Process

Error: Any = n.NVMLError  # no stubs: typed Any, used only in `except`

INVALID_ARGUMENT: int = n.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED: int = n.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION: int = n.NVML_ERROR_NO_PERMISSION
NOT_FOUND: int = n.NVML_ERROR_NOT_FOUND
GPU_IS_LOST: int = n.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED: int = n.NVML_ERROR_RESET_REQUIRED
IN_USE: int = n.NVML_ERROR_IN_USE
INSUFFICIENT_RESOURCES: int = n.NVML_ERROR_INSUFFICIENT_RESOURCES
#: Errors of the driver as a whole; no other GPU would answer either.
NO_DRIVER = (n.NVML_ERROR_UNINITIALIZED, n.NVML_ERROR_DRIVER_NOT_LOADED, n.NVML_ERROR_LIBRARY_NOT_FOUND)

_OLD_DRIVER = (n.NVML_ERROR_FUNCTION_NOT_FOUND, n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
_MIB = 1024 * 1024
#: Profile numbers to try; a newer driver may know more than this pynvml, and ends the row itself.
_PROFILES = range(64)


def start() -> None:
    """Load and initialise the library."""
    n.nvmlInit()


def stop() -> None:
    """Give the library back."""
    n.nvmlShutdown()


def driver_version() -> str | None:
    """As the driver writes it: "580.95.05"."""
    version: str | None = optional(n.nvmlSystemGetDriverVersion)
    return version


def count() -> int:
    """GPUs that the driver counts, also those that no longer answer."""
    return int(n.nvmlDeviceGetCount())


def device(index: int) -> Any:
    """The handle of the GPU at `index`; keep it for no longer than one question."""
    return n.nvmlDeviceGetHandleByIndex(index)


def uuid(device: Any) -> str:
    """Of a GPU ("GPU-...") or of a MIG device ("MIG-...")."""
    return str(n.nvmlDeviceGetUUID(device))


def name(device: Any) -> str:
    """The product's name."""
    return str(n.nvmlDeviceGetName(device))


def pci(device: Any) -> tuple[str | None, int | None]:
    """Bus id ("00000000:1B:00.0") and device id (0x233010DE)."""
    info = optional(n.nvmlDeviceGetPciInfo, device)
    return (_text(info.busId), info.pciDeviceId) if info else (None, None)


def mig_mode(device: Any) -> tuple[bool, bool]:
    """Whether MIG is on, and whether it will be after the next reset."""
    current, pending = n.nvmlDeviceGetMigMode(device)
    return bool(current), bool(pending)


def set_mig_mode(device: Any, on: bool) -> int:
    """Returns the activation status, which is no exception: 0, IN_USE or RESET_REQUIRED."""
    return int(n.nvmlDeviceSetMigMode(device, n.NVML_DEVICE_MIG_ENABLE if on else n.NVML_DEVICE_MIG_DISABLE))


def offers(device: Any) -> tuple[Offer, ...]:
    """Profiles with their placements; a driver may answer only in MIG mode."""
    found = []
    for info in _profiles(device):
        places = _placements(device, info.id)
        if places:
            size = places[0].size
            offer = Offer(
                profile_id=info.id,
                name=_profile_name(info),
                compute_slices=info.sliceCount,
                size=size,
                memory_mib=info.memorySizeMB,
                sm=info.multiprocessorCount,
                max_instances=info.instanceCount,
                starts=tuple(sorted(place.start for place in places if place.size == size)),
            )
            found.append(offer)
    return tuple(found)


def _profiles(device: Any) -> Iterator[Any]:
    for number in _PROFILES:
        try:
            yield _newest(n.nvmlDeviceGetGpuInstanceProfileInfo, device, number)
        except n.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                return
            if error.value != NOT_SUPPORTED:
                raise


def _profile_name(info: Any) -> str | None:
    """Older drivers give no name (info version 1); newer ones say "MIG 1g.10gb"."""
    return (_text(info.name).removeprefix("MIG ") or None) if hasattr(info, "name") else None


def _placements(device: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint(0)
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, ctypes.byref(count))
    places = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, places, ctypes.byref(count))
    return list(places)[: count.value]


def instances(device: Any) -> tuple[Instance, ...]:
    """All GPU instances by start, whoever made them. Raises INVALID_ARGUMENT or NOT_FOUND
    when one goes away between two questions."""
    migs = _mig_devices(device)
    found = []
    for profile in _profiles(device):
        # The driver takes no length here: the array must hold whatever this profile can have.
        handles = (n.c_nvmlGpuInstance_t * max(profile.instanceCount, 16))()
        count = ctypes.c_uint(0)
        n.nvmlDeviceGetGpuInstances(device, profile.id, handles, ctypes.byref(count))
        for handle in handles[: count.value]:
            info = n.nvmlGpuInstanceGetInfo(handle)
            found.append(_instance(info, _profile_name(profile), migs.get(info.id, {})))
    return tuple(sorted(found, key=lambda one: (one.start, one.gi)))


def _mig_devices(device: Any) -> dict[int, dict[int, Any]]:
    """MIG device handles by GPU instance id and compute instance id; indices may have holes."""
    migs: dict[int, dict[int, Any]] = {}
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            mig = n.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except n.NVMLError_NotFound:
            continue
        migs.setdefault(n.nvmlDeviceGetGpuInstanceId(mig), {})[n.nvmlDeviceGetComputeInstanceId(mig)] = mig
    return migs


def _instance(info: Any, profile: str | None, migs: dict[int, Any]) -> Instance:
    """Without a compute instance nothing can run in it, so its processes are known to be none."""
    ci = min(migs, default=None)
    users = [running(mig) for mig in migs.values()]
    used = None if ci is None else memory(migs[ci])  # compute instances share their GPU instance's memory
    return Instance(
        gi=info.id,
        ci=ci,
        mig_uuid=None if ci is None else uuid(migs[ci]),
        profile_id=info.profileId,
        profile=profile,
        start=info.placement.start,
        size=info.placement.size,
        memory_used_mib=used[0] if used else None,
        memory_total_mib=used[1] if used else None,
        processes=None if None in users else tuple(one for some in users for one in some or ()),
    )


def running(device: Any) -> tuple[Process, ...] | None:
    """What computes or draws on a GPU or MIG device, by pid; None when the driver does not tell."""
    found: dict[int, Process] = {}
    for kind in ("Graphics", "Compute"):
        try:
            rows = _rows(kind, device)
        except n.NVMLError as error:
            raise_if_gone(error)
            if kind == "Graphics" and error.value in (*_OLD_DRIVER, NOT_SUPPORTED):
                continue  # a GPU that only computes draws nothing
            return None
        found.update({row.pid: _process(row, computes=kind == "Compute") for row in rows})
    return tuple(one for _, one in sorted(found.items()))


def _rows(kind: str, device: Any) -> list[Any]:
    rows: list[Any]
    try:
        rows = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses_v3")(device)
    except n.NVMLError_FunctionNotFound:
        rows = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses_v2")(device)
    return rows


def _process(row: Any, *, computes: bool) -> Process:
    uid, user = processes.owner(row.pid)
    used = None if row.usedGpuMemory is None else row.usedGpuMemory // _MIB
    name = processes.name(row.pid)
    return Process(pid=row.pid, uid=uid, user=user, name=name, memory_mib=used, computes=computes)


def memory(device: Any) -> tuple[int, int] | None:
    """Used and total MiB; version 2 does not count what the driver keeps for itself as used."""
    info = optional(n.nvmlDeviceGetMemoryInfo, device, n.nvmlMemory_v2)
    info = info or optional(n.nvmlDeviceGetMemoryInfo, device)
    return (info.used // _MIB, info.total // _MIB) if info else None


def readings(device: Any) -> Readings:
    """Instant values; utilisation is not measured while MIG is on."""
    rates = optional(n.nvmlDeviceGetUtilizationRates, device)
    used = memory(device)
    milliwatts = optional(n.nvmlDeviceGetPowerUsage, device)
    degrees = optional(n.nvmlDeviceGetTemperatureV, device, n.NVML_TEMPERATURE_GPU)
    if degrees is None:
        degrees = optional(n.nvmlDeviceGetTemperature, device, n.NVML_TEMPERATURE_GPU)
    return Readings(
        utilization_pct=rates.gpu if rates else None,
        memory_used_mib=used[0] if used else None,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=degrees,
    )


def fabric(device: Any) -> tuple[str | None, int | None]:
    """NVLink domain (hex) and clique; an all-zero domain does not leave the node and is None."""
    for struct in (n.c_nvmlGpuFabricInfo_v3_t, n.c_nvmlGpuFabricInfo_v2_t):
        info = struct()
        try:
            n.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
        except n.NVMLError as error:
            raise_if_gone(error)
            if error.value == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                continue
            return None, None
        if info.state != n.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != n.NVML_SUCCESS:
            return None, None
        cluster = bytes(info.clusterUuid)
        return (cluster.hex() if any(cluster) else None), info.cliqueId
    return None, None


def create_instance(device: Any, profile_id: int, start: int, size: int) -> Any:
    """The handle of a new GPU instance at exactly this span; it has no compute instance yet."""
    # By reference: pynvml hands the argument on as it is, and a struct by value ends the process.
    place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size))
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, place)


def instance_by_id(device: Any, gi: int) -> Any:
    """The handle of a GPU instance; NOT_FOUND when there is none."""
    return n.nvmlDeviceGetGpuInstanceById(device, gi)


def instance_id(instance: Any) -> int:
    """Ids are the driver's and come back after a destroy: read them, never compute them."""
    return int(n.nvmlGpuInstanceGetInfo(instance).id)


def fill_instance(instance: Any) -> None:
    """Make the compute instance that takes the whole GPU instance, engines included."""
    best, chosen = (0, 0), None
    for info in _compute_profiles(instance):
        engines = (
            info.sharedDecoderCount + info.sharedEncoderCount + info.sharedJpegCount + info.sharedOfaCount
        )
        if (info.sliceCount, engines) > best:
            best, chosen = (info.sliceCount, engines), info.id
    if chosen is None:
        raise n.NVMLError(NOT_SUPPORTED)
    n.nvmlGpuInstanceCreateComputeInstance(instance, chosen)


def _compute_profiles(instance: Any) -> Iterator[Any]:
    engine = n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield _newest(n.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, engine)
        except n.NVMLError as error:
            if error.value not in (NOT_SUPPORTED, INVALID_ARGUMENT):
                raise


def destroy_instance(instance: Any) -> None:
    """Destroy its compute instances, then itself. IN_USE leaves what is in use as it was."""
    for info in _compute_profiles(instance):
        inner = (n.c_nvmlComputeInstance_t * max(info.instanceCount, 16))()
        count = ctypes.c_uint(0)
        n.nvmlGpuInstanceGetComputeInstances(instance, info.id, inner, ctypes.byref(count))
        for one in inner[: count.value]:
            n.nvmlComputeInstanceDestroy(one)
    n.nvmlGpuInstanceDestroy(instance)


def _newest(call: Callable[..., Any], *args: Any) -> Any:
    """The struct with a name where the driver has it, else the first version."""
    try:
        return call(*args, version=2)
    except n.NVMLError as error:
        if error.value not in _OLD_DRIVER:
            raise
        return call(*args, version=1)


def optional(call: Callable[..., Any], *args: Any) -> Any:
    """None where this GPU or this driver does not have the reading; a lost GPU still raises."""
    try:
        return call(*args)
    except n.NVMLError as error:
        raise_if_gone(error)
        return None


def raise_if_gone(error: Any) -> None:
    """Pass on what says that the GPU, or the driver, answers nothing any more."""
    if error.value in (*NO_DRIVER, GPU_IS_LOST):
        raise error


def _text(value: str | bytes) -> str:
    """Structs of pynvml decode some of their fields themselves."""
    return value if isinstance(value, str) else value.decode(errors="replace")
