"""The simulated C functions for the driver, its devices and its events, under their C names.

They take a `Session` first, then C's arguments; they raise `Failure` instead of
returning an error. MIG is in simulator_mig_calls.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from agents import simulator_driver as driver
from agents import simulator_hardware as hardware
from agents.simulator_arguments import (
    number,
    put,
    put_handle,
    put_pointer,
    put_text,
    target,
    versioned,
)
from agents.simulator_driver import Failure, Ret
from agents.simulator_handles import Session
from agents.simulator_state import Child, Gpu, Xid

_MIB = 1024 * 1024
#: What the driver keeps for itself; version 1 of the memory question counts it as used.
_RESERVED_MIB = 512
_NO_INSTANCE = 0xFFFFFFFF
_XID_EVENT = 8
_POLL_S = 0.02
_MEMORY_V2 = 0x2000028
_TEMPERATURE_V1 = 0x100000C
_FABRIC_V2, _FABRIC_V3 = 0x2000024, 0x3000028
_WORDS = {
    Ret.NOT_SUPPORTED: "Not Supported",
    Ret.GPU_IS_LOST: "GPU is lost",
    Ret.IN_USE: "In use by another client",
    Ret.INSUFFICIENT_RESOURCES: "Insufficient Resources",
    Ret.ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
}


def nvmlInitWithFlags(session: Session, flags: Any) -> None:
    session.read()
    with session.guard:
        if not session.opened:
            session.come()
        session.opened += 1


def nvmlShutdown(session: Session) -> None:
    with session.guard:
        session.opened -= 1
        if not session.opened:
            session.go()


def nvmlErrorString(session: Session, code: Any) -> bytes:
    return _WORDS.get(number(code), "Unknown Error").encode()  # type: ignore[call-overload, no-any-return]


def nvmlSystemGetDriverVersion(session: Session, buffer: Any, length: Any) -> None:
    put_text(buffer, length, session.read().driver)


def nvmlDeviceGetCount_v2(session: Session, count: Any) -> None:
    put(count, len(session.read().gpus))


def nvmlDeviceGetHandleByIndex_v2(session: Session, index: Any, device: Any) -> None:
    gpus = session.read().gpus
    if number(index) >= len(gpus):
        raise Failure(Ret.INVALID_ARGUMENT)
    _hand_out(session, gpus[number(index)], device)


def nvmlDeviceGetHandleByUUID(session: Session, uuid: Any, device: Any) -> None:
    """As documented, one lost GPU fails this for all of them."""
    gpus = session.read().gpus
    if any(gpu.lost for gpu in gpus):
        raise Failure(Ret.GPU_IS_LOST)
    for gpu in gpus:
        if gpu.uuid == uuid.value.decode():
            return _hand_out(session, gpu, device)
        for instance, inner in driver.mig_devices(gpu):
            if driver.mig_uuid(gpu, instance, inner) == uuid.value.decode():
                return put_handle(device, session.inner_handle("mig", gpu, inner))
    raise Failure(Ret.NOT_FOUND)


def nvmlDeviceGetHandleByPciBusId_v2(session: Session, bus_id: Any, device: Any) -> None:
    for gpu in session.read().gpus:
        if hardware.pci_bus_id(gpu).upper() == bus_id.value.decode().upper():
            return _hand_out(session, gpu, device)
    raise Failure(Ret.NOT_FOUND)


def _hand_out(session: Session, gpu: Gpu, device: Any) -> None:
    if gpu.lost:
        raise Failure(Ret.GPU_IS_LOST)
    put_handle(device, session.gpu_handle(gpu))


def nvmlDeviceGetName(session: Session, device: Any, buffer: Any, length: Any) -> None:
    gpu, instance, _ = session.device(session.read(), device)
    name = hardware.nvml_name(gpu)
    if instance is not None:
        name = f"{name} MIG {driver.profile_by_id(gpu, instance.profile_id).name}"
    put_text(buffer, length, name)


def nvmlDeviceGetUUID(session: Session, device: Any, buffer: Any, length: Any) -> None:
    gpu, instance, inner = session.device(session.read(), device)
    named = gpu.uuid if instance is None or inner is None else driver.mig_uuid(gpu, instance, inner)
    put_text(buffer, length, named)


def nvmlDeviceGetIndex(session: Session, device: Any, index: Any) -> None:
    gpu, instance, inner = session.device(session.read(), device)
    migs = [one.serial for _, one in driver.mig_devices(gpu)]
    put(index, gpu.index if instance is None or inner is None else migs.index(inner.serial))


def nvmlDeviceGetMinorNumber(session: Session, device: Any, minor: Any) -> None:
    put(minor, session.gpu(session.read(), device).index)


def nvmlDeviceGetPciInfo_v3(session: Session, device: Any, info: Any) -> None:
    gpu = session.gpu(session.read(), device)
    struct = target(info)
    struct.bus = hardware.bus_number(gpu)
    struct.pciDeviceId = hardware.pci_device_id(gpu)
    struct.busId = hardware.pci_bus_id(gpu).encode()
    struct.busIdLegacy = hardware.pci_bus_id(gpu)[4:].encode()


def nvmlDeviceGetMemoryInfo(session: Session, device: Any, info: Any) -> None:
    struct = target(info)
    struct.total, used, reserved = _memory(session, device)
    struct.used = used + reserved
    struct.free = struct.total - struct.used


def nvmlDeviceGetMemoryInfo_v2(session: Session, device: Any, info: Any) -> None:
    struct = versioned(info, _MEMORY_V2)
    struct.total, struct.used, struct.reserved = _memory(session, device)
    struct.free = struct.total - struct.used - struct.reserved


def _memory(session: Session, device: Any) -> tuple[int, int, int]:
    """Total, used and reserved bytes; a MIG device has the memory of its GPU instance."""
    machine = session.read()
    gpu, instance, _ = session.device(machine, device)
    used = sum(child.memory_mib for child in driver.children(machine, gpu, instance))
    if instance is None:
        return hardware.total_mib(gpu) * _MIB, used * _MIB, _RESERVED_MIB * _MIB
    profile = driver.profile_by_id(gpu, instance.profile_id)
    return hardware.profile_mib(gpu, profile) * _MIB, used * _MIB, 0


def nvmlDeviceGetUtilizationRates(session: Session, device: Any, rates: Any) -> None:
    machine = session.read()
    gpu, instance, _ = session.device(machine, device)
    if instance is not None or gpu.mig:
        raise Failure(Ret.NOT_SUPPORTED)
    target(rates).gpu = driver.load_pct(machine, gpu)
    target(rates).memory = driver.load_pct(machine, gpu) // 2


def nvmlDeviceGetPowerUsage(session: Session, device: Any, milliwatts: Any) -> None:
    put(milliwatts, hardware.milliwatts(_whole_load(session, device)))


def nvmlDeviceGetTemperature(session: Session, device: Any, sensor: Any, degrees: Any) -> None:
    put(degrees, hardware.degrees(_whole_load(session, device)))


def nvmlDeviceGetTemperatureV(session: Session, device: Any, reading: Any) -> None:
    versioned(reading, _TEMPERATURE_V1).temperature = hardware.degrees(_whole_load(session, device))


def _whole_load(session: Session, device: Any) -> int:
    """Power and temperature are the whole GPU's."""
    machine = session.read()
    gpu, instance, _ = session.device(machine, device)
    if instance is not None:
        raise Failure(Ret.NOT_SUPPORTED)
    return driver.load_pct(machine, gpu)


def nvmlDeviceGetComputeRunningProcesses_v3(session: Session, device: Any, count: Any, rows: Any) -> Ret:
    machine = session.read()
    running = driver.children(machine, *session.device(machine, device))
    return _put_processes([child for child in running if not child.mps], count, rows)


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3


def nvmlDeviceGetMPSComputeRunningProcesses_v3(session: Session, device: Any, count: Any, rows: Any) -> Ret:
    machine = session.read()
    running = driver.children(machine, *session.device(machine, device))
    return _put_processes([child for child in running if child.mps], count, rows)


nvmlDeviceGetMPSComputeRunningProcesses_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v3


def nvmlDeviceGetGraphicsRunningProcesses_v3(session: Session, device: Any, count: Any, rows: Any) -> Ret:
    session.device(session.read(), device)
    return _put_processes([], count, rows)


nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3


def _put_processes(running: list[Child], count: Any, rows: Any) -> Ret:
    room = target(count).value if rows is not None else 0
    put(count, len(running))
    if len(running) > room:
        return Ret.INSUFFICIENT_SIZE
    for place, child in enumerate(running):
        row = rows[place]
        row.pid = child.pid
        row.usedGpuMemory = child.memory_mib * _MIB
        row.gpuInstanceId = _NO_INSTANCE if child.gi is None else child.gi
        row.computeInstanceId = _NO_INSTANCE if child.ci is None else child.ci
    return Ret.SUCCESS


def nvmlDeviceGetGpuFabricInfoV(session: Session, device: Any, info: Any) -> None:
    gpu = session.gpu(session.read(), device)
    if not hardware.has_fabric(gpu):
        raise Failure(Ret.NOT_SUPPORTED)
    struct = versioned(info, _FABRIC_V2, _FABRIC_V3)
    cluster = uuid.UUID(gpu.cluster).bytes if gpu.cluster else bytes(16)
    struct.clusterUuid[:] = list(cluster)
    struct.status, struct.state = gpu.fabric_error, gpu.fabric
    struct.cliqueId = gpu.clique
    if struct.version == _FABRIC_V3:
        struct.healthSummary = gpu.health


def nvmlDeviceGetSupportedEventTypes(session: Session, device: Any, types: Any) -> None:
    session.gpu(session.read(), device)
    put(types, _XID_EVENT)


def nvmlEventSetCreate(session: Session, event_set: Any) -> None:
    with session.guard:
        handle = session.handle("events", session.draw())
        session.wanted[handle] = {}
    put_handle(event_set, handle)


def nvmlDeviceRegisterEvents(session: Session, device: Any, types: Any, event_set: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    if number(types) & ~_XID_EVENT:
        raise Failure(Ret.NOT_SUPPORTED)
    _wanted(session, event_set)[gpu.uuid] = (gpu.epoch, machine.serial)


def nvmlEventSetWait_v2(session: Session, event_set: Any, data: Any, timeout_ms: Any) -> None:
    """Polls the state, since another process may put an event into it."""
    session.wait()
    deadline = time.monotonic() + number(timeout_ms) / 1000
    while (event := _next_event(session, event_set)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failure(Ret.TIMEOUT)
        time.sleep(min(_POLL_S, left))
    gpu = session.read().gpu(event.gpu)
    struct = target(data)
    if gpu is not None:
        put_pointer(struct, "device", session.gpu_handle(gpu))
    struct.eventType = _XID_EVENT
    struct.eventData = event.number
    struct.gpuInstanceId = _NO_INSTANCE if event.gi is None else event.gi
    struct.computeInstanceId = _NO_INSTANCE if event.ci is None else event.ci


def nvmlEventSetFree(session: Session, event_set: Any) -> None:
    handle = session.handle(*session.meaning(event_set, "events"))
    with session.guard:
        del session.wanted[handle]
        session.drop(handle)


def _next_event(session: Session, event_set: Any) -> Xid | None:
    """A registration ends with a reset of its GPU."""
    wanted = _wanted(session, event_set)
    with session.guard:
        machine = session.read()
        epochs = {gpu.uuid: gpu.epoch for gpu in machine.gpus}
        for event in machine.xids:
            epoch, since = wanted.get(event.gpu, (None, event.seq))
            if event.seq > since and epoch == epochs[event.gpu]:
                wanted[event.gpu] = (epochs[event.gpu], event.seq)
                return event
    return None


def _wanted(session: Session, event_set: Any) -> dict[str, tuple[int, int]]:
    return session.wanted[session.handle(*session.meaning(event_set, "events"))]
