"""The simulated C functions for health and wiring: clocks, ECC, remapped rows, modes, NVLinks, NUMA.

Conventions as in simulator_calls.
"""

from __future__ import annotations

import time
from typing import Any

from agents import simulator_driver as driver
from agents import simulator_hardware as hardware
from agents.simulator_arguments import number, put, target
from agents.simulator_driver import Failure, Ret
from agents.simulator_handles import Session
from agents.simulator_state import Gpu, Machine

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_VOLATILE = 0
_UNCORRECTED = 1
_COMPUTE_MODES = 4
_MEMORY_TEMPERATURE = 82
_UNSIGNED_INT = 1
_LINK_TO_GPU, _LINK_TO_SWITCH, _LINK_TO_NOTHING = 0, 2, 255
_P2P_OK, _P2P_OTHER_GPU, _P2P_NOT_SUPPORTED = 0, 2, 5
_P2P_NVLINK = 2
#: Memory is some degrees warmer than the chip beside it.
_WARMER_C = 6
_SAMPLING_US = 166_667


def _loaded(session: Session, device: Any) -> tuple[Gpu, int]:
    machine = session.read()
    gpu = session.gpu(machine, device)
    return gpu, driver.load_pct(machine, gpu)


def nvmlDeviceGetClockInfo(session: Session, device: Any, kind: Any, mhz: Any) -> None:
    gpu, load = _loaded(session, device)
    put(mhz, hardware.memory_mhz() if number(kind) == _MEMORY_CLOCK else hardware.sm_mhz(gpu, load))


def nvmlDeviceGetCurrentClocksEventReasons(session: Session, device: Any, reasons: Any) -> None:
    put(reasons, hardware.throttle_bits(*_loaded(session, device)))


nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons


def nvmlDeviceGetEncoderUtilization(session: Session, device: Any, percent: Any, period: Any) -> None:
    """Nothing here encodes; while MIG is on, nobody measures it."""
    if session.gpu(session.read(), device).mig:
        raise Failure(Ret.NOT_SUPPORTED)
    put(percent, 0)
    put(period, _SAMPLING_US)


nvmlDeviceGetDecoderUtilization = nvmlDeviceGetEncoderUtilization


def nvmlDeviceGetTotalEnergyConsumption(session: Session, device: Any, millijoules: Any) -> None:
    """Added up from the power at each question of this process."""
    gpu, load = _loaded(session, device)
    now = time.monotonic()
    with session.guard:
        before, energy = session.energy.get(gpu.uuid, (now, 0.0))
        energy += (now - before) * hardware.milliwatts(load)
        session.energy[gpu.uuid] = (now, energy)
    put(millijoules, int(energy))


def nvmlDeviceGetPcieReplayCounter(session: Session, device: Any, count: Any) -> None:
    session.gpu(session.read(), device)
    put(count, 0)


def nvmlDeviceGetFieldValues(session: Session, device: Any, count: Any, values: Any) -> None:
    """Of all fields only the temperature of the memory; each field has its own return code."""
    gpu, load = _loaded(session, device)
    for field in list(target(values))[: number(count)]:
        known = field.fieldId == _MEMORY_TEMPERATURE and hardware.has_memory_sensor(gpu)
        field.nvmlReturn = Ret.SUCCESS if known else Ret.NOT_SUPPORTED
        if known:
            field.valueType, field.value.uiVal = _UNSIGNED_INT, hardware.degrees(load) + _WARMER_C


def nvmlDeviceGetEccMode(session: Session, device: Any, current: Any, pending: Any) -> None:
    session.gpu(session.read(), device)
    put(current, 1)
    put(pending, 1)


def nvmlDeviceGetTotalEccErrors(session: Session, device: Any, kind: Any, since: Any, count: Any) -> None:
    gpu = session.gpu(session.read(), device)
    if number(since) != _VOLATILE:
        raise Failure(Ret.NOT_SUPPORTED)
    put(count, gpu.ecc_uncorrected if number(kind) == _UNCORRECTED else gpu.ecc_corrected)


def nvmlDeviceGetRemappedRows(
    session: Session, device: Any, correctable: Any, uncorrectable: Any, pending: Any, failure: Any
) -> None:
    """Ampere and later."""
    gpu = session.gpu(session.read(), device)
    if hardware.model(gpu) is None:
        raise Failure(Ret.NOT_SUPPORTED)
    put(correctable, gpu.remapped_correctable)
    put(uncorrectable, gpu.remapped_uncorrectable)
    put(pending, int(gpu.remap_pending))
    put(failure, int(gpu.remap_failed))


def nvmlDeviceGetComputeMode(session: Session, device: Any, mode: Any) -> None:
    put(mode, session.gpu(session.read(), device).compute_mode)


def nvmlDeviceSetComputeMode(session: Session, device: Any, mode: Any) -> None:
    """Who already computes goes on."""
    with session.edit() as machine:
        driver.need_permission(machine)
        gpu = session.gpu(machine, device)
        if not 0 <= number(mode) < _COMPUTE_MODES:
            raise Failure(Ret.INVALID_ARGUMENT)
        gpu.compute_mode = number(mode)


def nvmlDeviceGetNvLinkState(session: Session, device: Any, link: Any, up: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    _need_link(gpu, number(link))
    leads_on = not hardware.bridged(gpu) or _partner(machine, gpu) is not None
    put(up, int(leads_on and number(link) >= gpu.links_down))


def nvmlDeviceGetNvLinkRemoteDeviceType(session: Session, device: Any, link: Any, kind: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    _need_link(gpu, number(link))
    if not hardware.bridged(gpu):
        return put(kind, _LINK_TO_SWITCH)
    return put(kind, _LINK_TO_NOTHING if _partner(machine, gpu) is None else _LINK_TO_GPU)


def nvmlDeviceGetNvLinkRemotePciInfo_v2(session: Session, device: Any, link: Any, info: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    _need_link(gpu, number(link))
    partner = _partner(machine, gpu) if hardware.bridged(gpu) else None
    if partner is None:
        raise Failure(Ret.NOT_SUPPORTED)
    target(info).busId = hardware.pci_bus_id(partner).encode()


def _need_link(gpu: Gpu, link: int) -> None:
    """A GPU in MIG mode has no NVLink."""
    if gpu.mig or not hardware.links(gpu):
        raise Failure(Ret.NOT_SUPPORTED)
    if not 0 <= link < hardware.links(gpu):
        raise Failure(Ret.INVALID_ARGUMENT)


def _partner(machine: Machine, gpu: Gpu) -> Gpu | None:
    """Bridges join neighbours of one model: 0 and 1, 2 and 3."""
    other = next((one for one in machine.gpus if one.index == gpu.index ^ 1), None)
    return other if other is not None and other.model == gpu.model else None


def nvmlDeviceGetP2PStatus(session: Session, one: Any, other: Any, what: Any, status: Any) -> None:
    machine = session.read()
    gpus = [session.gpu(machine, device) for device in (one, other)]
    put(status, _p2p(machine, gpus[0], gpus[1], number(what)))


def _p2p(machine: Machine, one: Gpu, other: Gpu, what: int) -> int:
    if one.mig or other.mig:
        return _P2P_NOT_SUPPORTED
    if one.model != other.model:
        return _P2P_OTHER_GPU
    if what == _P2P_NVLINK and not _joined(machine, one, other):
        return _P2P_NOT_SUPPORTED
    return _P2P_OK


def _joined(machine: Machine, one: Gpu, other: Gpu) -> bool:
    if hardware.bridged(one):
        return _partner(machine, one) is other
    return hardware.links(one) > 0


def nvmlDeviceGetMemoryAffinity(session: Session, device: Any, size: Any, words: Any, scope: Any) -> None:
    """The machine has two sockets, each with half of the GPUs."""
    machine = session.read()
    gpu = session.gpu(machine, device)
    target(words)[0] = 1 << (2 * gpu.index // len(machine.gpus))
