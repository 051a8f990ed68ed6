"""The simulated C functions for MIG: modes, profiles, GPU instances, compute instances, MIG devices.

Conventions as in simulator_calls.
"""

from __future__ import annotations

from typing import Any

from agents import simulator_driver as driver
from agents import simulator_hardware as hardware
from agents.simulator_arguments import number, put, put_handle, put_handles, put_pointer, target, versioned
from agents.simulator_driver import Failure, Ret
from agents.simulator_handles import Session
from agents.simulator_state import Gpu, GpuInstance
from pool.core import mig

_GI_PROFILE_V2, _CI_PROFILE_V2 = 0x2000098, 0x2000088


def nvmlDeviceGetMigMode(session: Session, device: Any, current: Any, pending: Any) -> None:
    gpu = session.gpu(session.read(), device)
    driver.capable(gpu)
    put(current, int(gpu.mig))
    put(pending, int(gpu.pending))


def nvmlDeviceSetMigMode(session: Session, device: Any, mode: Any, activation: Any) -> None:
    with session.edit() as machine:
        put(activation, driver.set_mode(machine, session.gpu(machine, device), number(mode)))


def nvmlDeviceGetGpuInstanceProfileInfo(session: Session, device: Any, profile: Any, info: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    _put_profile(target(info), gpu, driver.profile_by_number(machine, gpu, number(profile)))


def nvmlDeviceGetGpuInstanceProfileInfoV(session: Session, device: Any, profile: Any, info: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    struct = versioned(info, _GI_PROFILE_V2)
    found = driver.profile_by_number(machine, gpu, number(profile))
    _put_profile(struct, gpu, found)
    struct.name = f"MIG {found.name}".encode()


def _put_profile(struct: Any, gpu: Gpu, profile: mig.Profile) -> None:
    struct.id = profile.profile_id
    struct.isP2pSupported = 0
    struct.sliceCount = profile.compute_slices
    struct.instanceCount = profile.max_instances
    struct.multiprocessorCount = hardware.profile_sm(profile)
    struct.copyEngineCount = profile.copy_engines or 0
    struct.decoderCount = profile.decoders or 0
    struct.encoderCount = profile.encoders or 0
    struct.jpegCount = profile.jpeg or 0
    struct.ofaCount = profile.ofa or 0
    struct.memorySizeMB = hardware.profile_mib(gpu, profile)


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    session: Session, device: Any, profile_id: Any, places: Any, count: Any
) -> Ret:
    machine = session.read()
    gpu = session.gpu(machine, device)
    profile, starts = driver.starts(machine, gpu, number(profile_id))
    room = target(count).value
    put(count, len(starts))
    if places is not None:
        if room < len(starts):
            return Ret.INSUFFICIENT_SIZE
        for place, start in enumerate(starts):
            places[place].start, places[place].size = start, profile.size
    return Ret.SUCCESS


def nvmlDeviceGetGpuInstanceRemainingCapacity(
    session: Session, device: Any, profile_id: Any, count: Any
) -> None:
    put(count, driver.remaining(session.gpu(session.read(), device), number(profile_id)))


def nvmlDeviceCreateGpuInstance(session: Session, device: Any, profile_id: Any, instance: Any) -> None:
    _create(session, device, profile_id, None, instance)


def nvmlDeviceCreateGpuInstanceWithPlacement(
    session: Session, device: Any, profile_id: Any, placement: Any, instance: Any
) -> None:
    place = target(placement)
    _create(session, device, profile_id, (place.start, place.size), instance)


def _create(
    session: Session, device: Any, profile_id: Any, place: tuple[int, int] | None, instance: Any
) -> None:
    with session.edit() as machine:
        gpu = session.gpu(machine, device)
        made = driver.create_instance(machine, gpu, number(profile_id), place)
    put_handle(instance, session.inner_handle("gi", gpu, made))


def nvmlGpuInstanceDestroy(session: Session, instance: Any) -> None:
    with session.edit() as machine:
        driver.destroy_instance(machine, *session.instance(machine, instance))


def nvmlDeviceGetGpuInstances(
    session: Session, device: Any, profile_id: Any, instances: Any, count: Any
) -> None:
    gpu = session.gpu(session.read(), device)
    driver.partitioned(gpu)
    wanted = driver.profile_by_id(gpu, number(profile_id)).profile_id
    found = [session.inner_handle("gi", gpu, one) for one in gpu.instances if one.profile_id == wanted]
    put_handles(instances, count, found)


def nvmlDeviceGetGpuInstanceById(session: Session, device: Any, gi: Any, instance: Any) -> None:
    gpu = session.gpu(session.read(), device)
    put_handle(instance, session.inner_handle("gi", gpu, driver.instance_by_id(gpu, number(gi))))


def nvmlGpuInstanceGetInfo(session: Session, instance: Any, info: Any) -> None:
    gpu, found = session.instance(session.read(), instance)
    struct = target(info)
    put_pointer(struct, "device", session.gpu_handle(gpu))
    struct.id, struct.profileId = found.id, found.profile_id
    struct.placement.start, struct.placement.size = found.start, found.size


def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    session: Session, instance: Any, profile: Any, engine: Any, info: Any
) -> None:
    gpu, found = session.instance(session.read(), instance)
    _put_compute_profile(target(info), gpu, found, number(profile), number(engine))


def nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    session: Session, instance: Any, profile: Any, engine: Any, info: Any
) -> None:
    gpu, found = session.instance(session.read(), instance)
    struct = versioned(info, _CI_PROFILE_V2)
    _put_compute_profile(struct, gpu, found, number(profile), number(engine))
    whole = driver.profile_by_id(gpu, found.profile_id)
    part = "" if struct.sliceCount == whole.compute_slices else f"{struct.sliceCount}c."
    struct.name = f"MIG {part}{whole.name}".encode()


def _put_compute_profile(struct: Any, gpu: Gpu, instance: GpuInstance, profile: int, engine: int) -> None:
    if engine != 0:
        raise Failure(Ret.INVALID_ARGUMENT)
    slices = driver.compute_profile(gpu, instance, profile)
    whole = driver.profile_by_id(gpu, instance.profile_id)
    struct.id = profile
    struct.sliceCount = slices
    struct.instanceCount = whole.compute_slices // slices
    struct.multiprocessorCount = hardware.profile_sm(whole) * slices // whole.compute_slices
    struct.sharedCopyEngineCount = whole.copy_engines or 0
    struct.sharedDecoderCount = whole.decoders or 0
    struct.sharedEncoderCount = whole.encoders or 0
    struct.sharedJpegCount = whole.jpeg or 0
    struct.sharedOfaCount = whole.ofa or 0


def nvmlGpuInstanceCreateComputeInstance(session: Session, instance: Any, profile: Any, compute: Any) -> None:
    with session.edit() as machine:
        gpu, found = session.instance(machine, instance)
        made = driver.create_compute(machine, gpu, found, number(profile))
    put_handle(compute, session.inner_handle("ci", gpu, made))


def nvmlComputeInstanceDestroy(session: Session, compute: Any) -> None:
    with session.edit() as machine:
        driver.destroy_compute(machine, *session.compute(machine, compute))


def nvmlGpuInstanceGetComputeInstances(
    session: Session, instance: Any, profile: Any, computes: Any, count: Any
) -> None:
    gpu, found = session.instance(session.read(), instance)
    handles = [session.inner_handle("ci", gpu, one) for one in found.inner if one.profile == number(profile)]
    put_handles(computes, count, handles)


def nvmlGpuInstanceGetComputeInstanceById(session: Session, instance: Any, ci: Any, compute: Any) -> None:
    gpu, found = session.instance(session.read(), instance)
    for inner in found.inner:
        if inner.id == number(ci):
            return put_handle(compute, session.inner_handle("ci", gpu, inner))
    raise Failure(Ret.NOT_FOUND)


def nvmlComputeInstanceGetInfo_v2(session: Session, compute: Any, info: Any) -> None:
    gpu, instance, inner = session.compute(session.read(), compute)
    struct = target(info)
    put_pointer(struct, "device", session.gpu_handle(gpu))
    put_pointer(struct, "gpuInstance", session.inner_handle("gi", gpu, instance))
    struct.id, struct.profileId = inner.id, inner.profile
    struct.placement.start, struct.placement.size = inner.start, inner.size


def nvmlDeviceIsMigDeviceHandle(session: Session, device: Any, answer: Any) -> None:
    put(answer, int(session.device(session.read(), device)[1] is not None))


def nvmlDeviceGetGpuInstanceId(session: Session, device: Any, gi: Any) -> None:
    put(gi, session.mig(session.read(), device)[1].id)


def nvmlDeviceGetComputeInstanceId(session: Session, device: Any, ci: Any) -> None:
    put(ci, session.mig(session.read(), device)[2].id)


def nvmlDeviceGetMaxMigDeviceCount(session: Session, device: Any, count: Any) -> None:
    """An upper bound while MIG is on, zero otherwise."""
    gpu = session.gpu(session.read(), device)
    put(count, driver.capable(gpu).compute_slices if gpu.mig else 0)


def nvmlDeviceGetMigDeviceHandleByIndex(session: Session, device: Any, index: Any, mig_device: Any) -> None:
    gpu = session.gpu(session.read(), device)
    migs = driver.mig_devices(gpu)
    if number(index) >= driver.capable(gpu).compute_slices:
        raise Failure(Ret.INVALID_ARGUMENT)
    if number(index) >= len(migs):
        raise Failure(Ret.NOT_FOUND)
    put_handle(mig_device, session.inner_handle("mig", gpu, migs[number(index)][1]))


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(session: Session, mig_device: Any, device: Any) -> None:
    put_handle(device, session.gpu_handle(session.mig(session.read(), mig_device)[0]))


def nvmlDeviceGetAttributes_v2(session: Session, device: Any, attributes: Any) -> None:
    """Of MIG devices only."""
    gpu, instance, inner = session.device(session.read(), device)
    if instance is None or inner is None:
        raise Failure(Ret.NOT_SUPPORTED)
    profile = driver.profile_by_id(gpu, instance.profile_id)
    struct = target(attributes)
    struct.multiprocessorCount = hardware.profile_sm(profile) * inner.size // profile.compute_slices
    struct.sharedCopyEngineCount = profile.copy_engines or 0
    struct.sharedDecoderCount = profile.decoders or 0
    struct.sharedEncoderCount = profile.encoders or 0
    struct.sharedJpegCount = profile.jpeg or 0
    struct.sharedOfaCount = profile.ofa or 0
    struct.gpuInstanceSliceCount = profile.compute_slices
    struct.computeInstanceSliceCount = inner.size
    struct.memorySizeMB = hardware.profile_mib(gpu, profile)
