"""How the simulated driver behaves: modes, placements, instances, and its refusals.

Plain Python over the state; each refusal is a `Failure` with NVML's own number.
Not here: ctypes (simulator_calls), files (simulator_state), sizes (simulator_hardware).
"""

from __future__ import annotations

import time
import uuid
from enum import IntEnum
from functools import lru_cache

from agents import simulator_lives
from agents.simulator_hardware import model
from agents.simulator_state import Child, ComputeInstance, Gpu, GpuInstance, Machine
from pool.core import mig

#: NVML counts this many GPU instance profiles; a higher number ends the row.
GPU_PROFILES = 18
#: Compute instance profiles by compute slices; number and id of each are the same.
COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
#: Starts in the order in which a driver takes them when it may choose (seen on 8-slice GPUs).
_PREFERRED = {1: (6, 4, 5, 0, 1, 2, 3), 2: (4, 0, 2, 6), 4: (4, 0)}
#: What a process makes of its GPU when nobody said how busy it is.
_WORKING_PCT = 95
#: A sensor's value is so old at most.
SENSOR_S = 0.02
_loads: dict[str, tuple[Machine, float, int]] = {}


class Ret(IntEnum):
    """NVML's return values, as far as this driver gives them."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25


class Failure(Exception):
    """The C function returns this number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def capable(gpu: Gpu) -> mig.Model:
    """Its entry in the catalogue; NOT_SUPPORTED for a GPU that cannot do MIG."""
    entry = model(gpu)
    if entry is None:
        raise Failure(Ret.NOT_SUPPORTED)
    return entry


def partitioned(gpu: Gpu) -> mig.Model:
    """The same, and NOT_SUPPORTED while MIG is off."""
    if not gpu.mig:
        raise Failure(Ret.NOT_SUPPORTED)
    return capable(gpu)


def set_mode(machine: Machine, gpu: Gpu, mode: int) -> Ret:
    """The wish is noted; the returned activation status says whether it came true now."""
    need_permission(machine)
    entry = capable(gpu)
    if mode not in (0, 1):
        raise Failure(Ret.INVALID_ARGUMENT)
    gpu.pending = bool(mode)
    if gpu.mig == gpu.pending:
        return Ret.SUCCESS
    if gpu.instances or children(machine, gpu):
        return Ret.IN_USE
    resets = entry.mode_change == "reset"
    if resets and gpu.passthrough:
        return Ret.RESET_REQUIRED
    gpu.mig = gpu.pending
    if resets:
        reset(gpu)
    return Ret.SUCCESS


def reset(gpu: Gpu) -> None:
    """What any reset does: handles are stale, instances gone, a wished mode and a remap of rows come true,
    counters that live as long as the loaded driver begin anew."""
    gpu.epoch += 1
    gpu.mig = gpu.pending
    gpu.instances = []
    gpu.remap_pending = False
    gpu.ecc_corrected = gpu.ecc_uncorrected = 0


def need_permission(machine: Machine) -> None:
    if not machine.permission:
        raise Failure(Ret.NO_PERMISSION)


def profile_by_number(machine: Machine, gpu: Gpu, number: int) -> mig.Profile:
    """NOT_SUPPORTED: skip this number; INVALID_ARGUMENT: there are no more."""
    if not 0 <= number < GPU_PROFILES:
        raise Failure(Ret.INVALID_ARGUMENT)
    _need_profiles(machine, gpu)
    for profile in capable(gpu).profiles:
        if profile.nvml_enum == number:
            return profile
    raise Failure(Ret.NOT_SUPPORTED)


def profile_by_id(gpu: Gpu, profile_id: int) -> mig.Profile:
    profile = capable(gpu).by_id(profile_id)
    if profile is None:
        raise Failure(Ret.INVALID_ARGUMENT)
    return profile


def starts(machine: Machine, gpu: Gpu, profile_id: int) -> tuple[mig.Profile, tuple[int, ...]]:
    """What the profile offers on an empty GPU."""
    _need_profiles(machine, gpu)
    profile = profile_by_id(gpu, profile_id)
    return profile, profile.starts


def _need_profiles(machine: Machine, gpu: Gpu) -> None:
    capable(gpu)
    if not gpu.mig and not machine.profiles_when_off:
        raise Failure(Ret.NOT_SUPPORTED)


def remaining(gpu: Gpu, profile_id: int) -> int:
    """How many more instances of the profile fit beside what is there."""
    partitioned(gpu)
    profile = profile_by_id(gpu, profile_id)
    taken, count = _layout(gpu), 0
    while room := mig.room(profile, taken):
        taken, count = [*taken, mig.Slice(profile, room[0])], count + 1
    return count


def create_instance(
    machine: Machine, gpu: Gpu, profile_id: int, place: tuple[int, int] | None
) -> GpuInstance:
    """At `place` (start, size), or where the driver likes."""
    need_permission(machine)
    partitioned(gpu)
    profile = profile_by_id(gpu, profile_id)
    if place is not None and (place[1] != profile.size or place[0] not in profile.starts):
        raise Failure(Ret.INVALID_ARGUMENT)
    room = mig.room(profile, _layout(gpu))
    start = _preferred(gpu, profile, room) if place is None else place[0]
    if start not in room:
        raise Failure(Ret.INSUFFICIENT_RESOURCES)
    instance = GpuInstance(
        id=_instance_id(capable(gpu).grid, start, profile.size),
        profile_id=profile_id,
        start=start,
        size=profile.size,
        serial=machine.draw(),
    )
    gpu.instances.append(instance)
    return instance


def _layout(gpu: Gpu) -> list[mig.Slice]:
    return [mig.Slice(profile_by_id(gpu, one.profile_id), one.start) for one in gpu.instances]


def _preferred(gpu: Gpu, profile: mig.Profile, room: tuple[int, ...]) -> int | None:
    order = _PREFERRED.get(profile.size, ()) if capable(gpu).grid == 8 else ()
    return next((start for start in (*order, *sorted(room)) if start in room), None)


def _instance_id(grid: int, start: int, size: int) -> int:
    """Numbered by levels, the whole GPU first, as observed; ids come back after a destroy."""
    return grid // size - 1 + start // size


def instance_by_id(gpu: Gpu, gi: int) -> GpuInstance:
    partitioned(gpu)
    for instance in gpu.instances:
        if instance.id == gi:
            return instance
    raise Failure(Ret.NOT_FOUND)


def destroy_instance(machine: Machine, gpu: Gpu, instance: GpuInstance) -> None:
    need_permission(machine)
    if instance.inner or children(machine, gpu, instance):
        raise Failure(Ret.IN_USE)
    gpu.instances.remove(instance)


def compute_profile(gpu: Gpu, instance: GpuInstance, number: int) -> int:
    """Compute slices of the profile with this number inside this GPU instance."""
    whole = profile_by_id(gpu, instance.profile_id).compute_slices
    if not 0 <= number <= max(COMPUTE_PROFILES.values()) + 4:
        raise Failure(Ret.INVALID_ARGUMENT)
    for slices, its_number in COMPUTE_PROFILES.items():
        if its_number == number and (slices == whole or (slices < whole and (slices != 3 or whole == 7))):
            return slices
    raise Failure(Ret.NOT_SUPPORTED)


def create_compute(machine: Machine, gpu: Gpu, instance: GpuInstance, profile: int) -> ComputeInstance:
    """At the first free compute slices of its GPU instance."""
    need_permission(machine)
    try:
        size = compute_profile(gpu, instance, profile)
    except Failure as failure:
        raise Failure(Ret.INVALID_ARGUMENT) from failure
    whole = profile_by_id(gpu, instance.profile_id).compute_slices
    taken = {at for one in instance.inner for at in range(one.start, one.start + one.size)}
    for start in range(0, whole - size + 1):
        if not taken & set(range(start, start + size)):
            free_id = min(set(range(whole)) - {one.id for one in instance.inner})
            made = ComputeInstance(id=free_id, profile=profile, start=start, size=size, serial=machine.draw())
            instance.inner.append(made)
            return made
    raise Failure(Ret.INSUFFICIENT_RESOURCES)


def destroy_compute(machine: Machine, gpu: Gpu, instance: GpuInstance, inner: ComputeInstance) -> None:
    need_permission(machine)
    if children(machine, gpu, instance, inner):
        raise Failure(Ret.IN_USE)
    instance.inner.remove(inner)


def mig_devices(gpu: Gpu) -> list[tuple[GpuInstance, ComputeInstance]]:
    """In the order of their indices."""
    pairs = [(instance, inner) for instance in gpu.instances for inner in instance.inner]
    return sorted(pairs, key=lambda pair: (pair[0].id, pair[1].id))


def mig_uuid(gpu: Gpu, instance: GpuInstance, inner: ComputeInstance) -> str:
    """Named by what and where it is: the same again after a destroy and a create."""
    where = (
        f"{instance.profile_id} {instance.start}:{instance.size} {inner.profile} {inner.start}:{inner.size}"
    )
    return _mig_uuid(gpu.uuid, where)


@lru_cache(maxsize=4096)
def _mig_uuid(gpu: str, where: str) -> str:
    return f"MIG-{uuid.uuid5(uuid.UUID(gpu.removeprefix('GPU-')), where)}"


def children(
    machine: Machine, gpu: Gpu, instance: GpuInstance | None = None, inner: ComputeInstance | None = None
) -> list[Child]:
    """Living processes on the GPU, or only on one of its instances."""
    return [
        child
        for child in machine.children
        if child.gpu == gpu.uuid
        and (instance is None or child.gi == instance.id)
        and (inner is None or child.ci == inner.id)
        and simulator_lives.lives(child.pid, child.started)
    ]


def clients(machine: Machine) -> dict[str, str]:
    """Living processes that have the driver open."""
    return {pid: began for pid, began in machine.clients.items() if simulator_lives.lives(int(pid), began)}


def load_pct(machine: Machine, gpu: Gpu) -> int:
    """How busy the whole GPU is; with MIG on the mean of its instances by size.

    As with real sensors, what power, clocks and temperatures are made of is looked at every few
    milliseconds only.
    """
    now = time.monotonic()
    seen, at, load = _loads.get(gpu.uuid, (None, 0.0, 0))
    if seen is not machine or now - at > SENSOR_S:
        load = _load_pct(machine, gpu)
        _loads[gpu.uuid] = (machine, now, load)
    return load


def _load_pct(machine: Machine, gpu: Gpu) -> int:
    if not gpu.mig:
        return _load(gpu.busy, children(machine, gpu))
    grid = capable(gpu).grid
    return sum(instance_pct(machine, gpu, *pair) * pair[0].size for pair in mig_devices(gpu)) // grid


def instance_pct(machine: Machine, gpu: Gpu, instance: GpuInstance, inner: ComputeInstance) -> int:
    said = machine.busy.get(mig_uuid(gpu, instance, inner)) if machine.busy else None
    return _load(said, children(machine, gpu, instance, inner))


def _load(said: int | None, working: list[Child]) -> int:
    if said is not None:
        return said
    return _WORKING_PCT if working else 0
