"""MIG by pynvml: what a GPU offers, its instances, and making and destroying them.

Conventions as in nvml.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import pynvml as n

from agents import nvml
from agents.gpu import Instance
from pool.core.wire import Offer

#: Profile numbers to try; a newer driver may know more than this pynvml, and ends the row itself.
_PROFILES = range(64)


def profiles(device: Any) -> tuple[Any, ...]:
    """What kinds of GPU instances there are, in NVML's own structs; () where the driver answers only in
    MIG mode. They stay as they are for as long as the driver is loaded."""
    return tuple(_profiles(device))


def offers(device: Any, profiles: Iterable[Any]) -> tuple[Offer, ...]:
    """Profiles with their placements."""
    found = []
    for info in profiles:
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
            yield nvml.newest(n.nvmlDeviceGetGpuInstanceProfileInfo, device, number)
        except n.NVMLError as error:
            if error.value == nvml.INVALID_ARGUMENT:
                return
            if error.value != nvml.NOT_SUPPORTED:
                raise


def _profile_name(info: Any) -> str | None:
    """Older drivers give no name (info version 1); newer ones say "MIG 1g.10gb"."""
    return (nvml.text(info.name).removeprefix("MIG ") or None) if hasattr(info, "name") else None


def _placements(device: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint(0)
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, ctypes.byref(count))
    places = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, places, ctypes.byref(count))
    return list(places)[: count.value]


def instances(device: Any, profiles: Iterable[Any]) -> tuple[Instance, ...]:
    """All GPU instances by start, whoever made them. Raises INVALID_ARGUMENT or NOT_FOUND
    when one goes away between two questions."""
    migs = _mig_devices(device)
    found = []
    for profile in profiles:
        # The driver takes no length here: the array must hold whatever this profile can have.
        handles = (n.c_nvmlGpuInstance_t * max(profile.instanceCount, 16))()
        count = ctypes.c_uint(0)
        n.nvmlDeviceGetGpuInstances(device, profile.id, handles, ctypes.byref(count))
        for handle in handles[: count.value]:
            info = n.nvmlGpuInstanceGetInfo(handle)
            found.append(_instance(info, profile, migs.get(info.id, {})))
    return tuple(sorted(found, key=lambda one: (one.start, one.gi)))


def _mig_devices(device: Any) -> dict[int, dict[int, Any]]:
    """MIG device handles by GPU instance id and compute instance id."""
    migs: dict[int, dict[int, Any]] = {}
    for mig in _handles(device):
        migs.setdefault(n.nvmlDeviceGetGpuInstanceId(mig), {})[n.nvmlDeviceGetComputeInstanceId(mig)] = mig
    return migs


def one_of_each(device: Any) -> dict[int, Any]:
    """A MIG device handle of each GPU instance by its id, for what its compute instances share."""
    return {n.nvmlDeviceGetGpuInstanceId(mig): mig for mig in _handles(device)}


def _handles(device: Any) -> Iterator[Any]:
    """By index, which may have holes."""
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            yield n.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except n.NVMLError_NotFound:
            continue


def _instance(info: Any, profile: Any, migs: dict[int, Any]) -> Instance:
    """Without a compute instance nothing can run in it, so its processes are known to be none."""
    ci = min(migs, default=None)
    users = [nvml.running(mig) for mig in migs.values()]
    # Compute instances share their GPU instance's memory.
    used = None if ci is None else nvml.memory(migs[ci])
    return Instance(
        gi=info.id,
        ci=ci,
        mig_uuid=None if ci is None else nvml.uuid(migs[ci]),
        profile_id=info.profileId,
        profile=_profile_name(profile),
        start=info.placement.start,
        size=info.placement.size,
        memory_used_mib=used.used if used else None,
        memory_total_mib=used.total if used else None,
        processes=None if None in users else tuple(one for some in users for one in some or ()),
        sm=_multiprocessors(profile, migs),
    )


def _multiprocessors(profile: Any, migs: dict[int, Any]) -> int | None:
    """Of its MIG devices together, as far as there are any; else what its profile has."""
    counts = [nvml.optional(n.nvmlDeviceGetAttributes_v2, mig) for mig in migs.values()]
    told = [one.multiprocessorCount for one in counts if one is not None]
    if told and len(told) == len(counts):
        return int(sum(told))
    return int(profile.multiprocessorCount) or None


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
        raise n.NVMLError(nvml.NOT_SUPPORTED)
    n.nvmlGpuInstanceCreateComputeInstance(instance, chosen)


def _compute_profiles(instance: Any) -> Iterator[Any]:
    engine = n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield nvml.newest(n.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, engine)
        except n.NVMLError as error:
            if error.value not in (nvml.NOT_SUPPORTED, nvml.INVALID_ARGUMENT):
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
