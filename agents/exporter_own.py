"""gpupool's own series: base units, `reservation` and `team` where they are known, only measured values.

They carry `gpu`, `UUID` and `GPU_I_ID` as dcgm-exporter does, so that `gpupool_held`
can be joined to anybody's series of the same GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agents.exporter_dcgm import instance_labels
from agents.exporter_holders import NOBODY, Holder, Holders
from agents.exporter_text import Family
from agents.gpu import Gpu, Instance, InstanceReadings, Inventory, Readings
from agents.record import Record
from pool.core.wire import Process, Stay

_MIB = 1024 * 1024

_GAUGES = {
    "gpupool_agent_info": "The agent on this node: its version and the node's name.",
    "gpupool_portal_up": "Whether the portal takes this node's reports.",
    "gpupool_gpu_info": "A GPU of this node: its model and whether it is in MIG mode.",
    "gpupool_gpu_lost": "Whether the GPU answers nothing any more.",
    "gpupool_gpu_managed": "Whether the portal may change the GPU.",
    "gpupool_gpu_generation": "The newest wanted layout that was applied and read back.",
    "gpupool_held": "Who holds what now: kind is whole, mig or share.",
    "gpupool_reservation_end_timestamp_seconds": "When a reservation on this node ends.",
    "gpupool_utilization_ratio": "Share of time in which a kernel ran.",
    "gpupool_activity_ratio": "Share of time in which the compute engines were active.",
    "gpupool_memory_activity_ratio": "Share of cycles in which the memory was active.",
    "gpupool_memory_used_bytes": "Memory in use.",
    "gpupool_memory_free_bytes": "Memory that is free.",
    "gpupool_power_watts": "Power drawn.",
    "gpupool_temperature_celsius": "Temperature of the GPU.",
    "gpupool_processes": "Processes on the GPU: whose is holder, system or unattributed.",
    "gpupool_share_memory_used_bytes": "Memory that the processes of a share's holder use together.",
    "gpupool_share_memory_limit_bytes": "Memory that a share's holder may use.",
    "gpupool_share_compute_guaranteed_ratio": "Compute that a share is guaranteed.",
    "gpupool_share_compute_limit_ratio": "Compute that a share gets at most.",
    "gpupool_remapped_rows": "Rows of memory that were replaced after errors.",
    "gpupool_remap_pending": "Whether a reset has to finish the replacing of rows.",
    "gpupool_clock_held_down": "Whether clocks are held down for this reason.",
}
_COUNTERS = {
    "gpupool_reports_dropped_total": "Reports that could not be delivered since the agent started.",
    "gpupool_energy_joules_total": "Energy used since the driver came up.",
    "gpupool_ecc_errors_total": "Memory errors since the driver came up.",
}


@dataclass(frozen=True, slots=True)
class Node:
    """What is told of the node and its agent; None before the first sample."""

    name: str
    version: str
    up: bool | None
    dropped: int | None


class _Own:
    def __init__(self) -> None:
        gauges = [Family(name, "gauge", text) for name, text in _GAUGES.items()]
        counters = [Family(name, "counter", text) for name, text in _COUNTERS.items()]
        self.found = {f"{one.name}": one for one in (*gauges, *counters)}

    def add(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        self.found[f"gpupool_{name}"].add(value, labels)


def families(
    node: Node,
    inventory: Inventory,
    readings: Mapping[str, Readings],
    record: Record,
    held: Mapping[str, Holders],
    stays: Iterable[Stay],
) -> Iterable[Family]:
    """All series of the node."""
    own = _Own()
    own.add("agent_info", 1, {"node": node.name, "version": node.version, "driver": inventory.driver or ""})
    own.add("portal_up", node.up, {})
    own.add("reports_dropped_total", node.dropped, {})
    for stay in {one.reservation: one for one in stays}.values():
        end = stay.end.timestamp() if stay.end else None
        labels = {"reservation": stay.reservation, "team": stay.team}
        own.add("reservation_end_timestamp_seconds", end, labels)
    for gpu in inventory.gpus:
        here = held.get(gpu.uuid, NOBODY)
        _state(own, gpu, record)
        _held(own, gpu, here)
        if not gpu.lost:
            _processes(own, gpu)
            _health(own, gpu)
            _measured(own, gpu, readings.get(gpu.uuid, Readings()), here)
    return own.found.values()


def _gpu(gpu: Gpu) -> dict[str, str]:
    return {"gpu": str(gpu.index), "UUID": gpu.uuid}


def _instance(gpu: Gpu, one: Instance) -> dict[str, str]:
    names = instance_labels(gpu, one)
    return _gpu(gpu) | {name: names[name] for name in ("GPU_I_PROFILE", "GPU_I_ID")}


def _state(own: _Own, gpu: Gpu, record: Record) -> None:
    mig = "" if gpu.mig is None else str(gpu.mig).lower()
    own.add("gpu_info", 1, _gpu(gpu) | {"model": gpu.name, "mig": mig})
    own.add("gpu_lost", gpu.lost, _gpu(gpu))
    own.add("gpu_managed", gpu.uuid in record.manage, _gpu(gpu))
    known = record.gpus.get(gpu.uuid)
    own.add("gpu_generation", known.applied if known else 0, _gpu(gpu))


def _held(own: _Own, gpu: Gpu, here: Holders) -> None:
    for one in gpu.instances or ():
        if holder := here.instances.get(one.gi):
            own.add("held", 1, _instance(gpu, one) | _holder(holder, "mig"))
    if here.whole:
        own.add("held", 1, _gpu(gpu) | _holder(here.whole, "whole"))
    for holder in here.shares:
        assert holder.share is not None
        labels = _gpu(gpu) | {"allocation": holder.allocation, **holder.labels}
        own.add("held", 1, _gpu(gpu) | _holder(holder, "share"))
        own.add("share_memory_used_bytes", _used_by(gpu, holder.allocation), labels)
        own.add("share_memory_limit_bytes", holder.share.memory_mib * _MIB, labels)
        own.add("share_compute_guaranteed_ratio", holder.share.compute_pct / 100, labels)
        own.add("share_compute_limit_ratio", holder.share.limit_pct / 100, labels)


def _holder(holder: Holder, kind: str) -> dict[str, str]:
    return {"kind": kind, "allocation": holder.allocation, **holder.labels}


def _used_by(gpu: Gpu, allocation: str) -> float | None:
    """The sum over the holder's processes; one whose memory is not known makes it unknown."""
    if gpu.processes is None:
        return None
    used = [one.memory_mib for one in gpu.processes if one.allocation == allocation]
    return None if None in used else sum(used) * _MIB


def _processes(own: _Own, gpu: Gpu) -> None:
    """Those of instances count with their GPU; absent where the driver does not tell."""
    seen = [gpu.processes, *(one.processes for one in gpu.instances or ())]
    if None in seen:
        return
    known = {one.pid: one for some in seen for one in some or ()}
    count = Counter(_whose(one) for one in known.values())
    for whose in ("holder", "system", "unattributed"):
        own.add("processes", count[whose], _gpu(gpu) | {"whose": whose})


def _whose(process: Process) -> str:
    if process.system:
        return "system"
    return "holder" if process.allocation else "unattributed"


def _health(own: _Own, gpu: Gpu) -> None:
    health, rows = gpu.health, gpu.health.remapped
    own.add("ecc_errors_total", health.ecc_corrected, _gpu(gpu) | {"type": "corrected"})
    own.add("ecc_errors_total", health.ecc_uncorrected, _gpu(gpu) | {"type": "uncorrected"})
    for kind in ("correctable", "uncorrectable"):
        own.add("remapped_rows", getattr(rows, kind, None), _gpu(gpu) | {"type": kind})
    own.add("remap_pending", rows.pending if rows else None, _gpu(gpu))
    for reason in health.throttle or ():
        own.add("clock_held_down", 1, _gpu(gpu) | {"reason": reason})


def _measured(own: _Own, gpu: Gpu, seen: Readings, here: Holders) -> None:
    whole = _gpu(gpu) | (here.whole.labels if here.whole else {})
    energy = None if seen.energy_mj is None else seen.energy_mj / 1000
    own.add("power_watts", seen.power_w, whole)
    own.add("energy_joules_total", energy, whole)
    own.add("temperature_celsius", seen.temperature_c, whole)
    own.add("utilization_ratio", _ratio(seen.utilization_pct), whole)
    parts = [one for one in gpu.instances or () if one.mig_uuid is not None]
    for one in parts:
        inner = seen.instances.get(one.gi, InstanceReadings(source=""))
        holder = here.instances.get(one.gi)
        labels = _instance(gpu, one) | (holder.labels if holder else {})
        _activity(own, inner, labels)
        used = one.memory_used_mib if inner.memory_used_mib is None else inner.memory_used_mib
        free = inner.memory_free_mib
        if free is None and used is not None and one.memory_total_mib is not None:
            free = one.memory_total_mib - used
        own.add("memory_used_bytes", _bytes(used), labels)
        own.add("memory_free_bytes", _bytes(free), labels)
    if not parts:
        _activity(own, seen, whole)
        own.add("memory_used_bytes", _bytes(seen.memory_used_mib), whole)
        own.add("memory_free_bytes", _bytes(seen.memory_free_mib), whole)


def _activity(own: _Own, seen: Readings | InstanceReadings, labels: Mapping[str, str]) -> None:
    """With where it was measured: gpm or dcgm."""
    labels = dict(labels) | {"source": seen.source}
    own.add("activity_ratio", _ratio(seen.activity_pct), labels)
    own.add("memory_activity_ratio", _ratio(seen.memory_activity_pct), labels)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)


def _bytes(mib: float | None) -> float | None:
    return None if mib is None else mib * _MIB
