"""The default counters of dcgm-exporter (up to 4.8), with its names, labels, types and units.

Only what was measured: a counter that neither NVML nor GPM gives here has no
series. On a GPU in MIG mode memory and activity come for each instance and not
for the whole as well, so that sums count nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from agents.exporter_holders import NOBODY, Holders
from agents.exporter_text import Family
from agents.gpu import Gpu, Instance, InstanceReadings, Inventory, Readings

OfGpu = Callable[[Gpu, Readings], float | None]
OfInstance = Callable[[Instance, InstanceReadings], float | None]


@dataclass(frozen=True, slots=True)
class Counter:
    """One of dcgm-exporter's counters. With `of_instance` it belongs to the instances where there are any."""

    name: str
    kind: str
    help: str
    of_gpu: OfGpu
    of_instance: OfInstance | None = None


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)


def _rows(kind: str) -> OfGpu:
    return lambda gpu, _: getattr(gpu.health.remapped, kind, None)


def _used(one: Instance, seen: InstanceReadings) -> float | None:
    return seen.memory_used_mib if seen.memory_used_mib is not None else one.memory_used_mib


def _free(one: Instance, seen: InstanceReadings) -> float | None:
    if seen.memory_free_mib is not None:
        return seen.memory_free_mib
    used = _used(one, seen)
    return None if used is None or one.memory_total_mib is None else one.memory_total_mib - used


COUNTERS = (
    Counter("DCGM_FI_DEV_SM_CLOCK", "gauge", "Clock of the SMs in MHz.", lambda _, r: r.sm_clock_mhz),
    Counter("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Clock of the memory in MHz.", lambda _, r: r.memory_clock_mhz),
    Counter(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "gauge",
        "Temperature of the memory in degrees Celsius.",
        lambda _, r: r.memory_temperature_c,
    ),
    Counter(
        "DCGM_FI_DEV_GPU_TEMP",
        "gauge",
        "Temperature of the GPU in degrees Celsius.",
        lambda _, r: r.temperature_c,
    ),
    Counter("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power drawn in W.", lambda _, r: r.power_w),
    Counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy used since the driver came up, in mJ.",
        lambda _, r: r.energy_mj,
    ),
    Counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", lambda _, r: r.pcie_replays),
    Counter(
        "DCGM_FI_DEV_GPU_UTIL",
        "gauge",
        "Share of time in which a kernel ran, in percent.",
        lambda _, r: r.utilization_pct,
    ),
    Counter(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gauge",
        "Share of time in which memory was read or written, in percent.",
        lambda _, r: r.memory_utilization_pct,
    ),
    Counter(
        "DCGM_FI_DEV_ENC_UTIL", "gauge", "Use of the video encoder in percent.", lambda _, r: r.encoder_pct
    ),
    Counter(
        "DCGM_FI_DEV_DEC_UTIL", "gauge", "Use of the video decoder in percent.", lambda _, r: r.decoder_pct
    ),
    Counter(
        "DCGM_FI_DEV_FB_FREE",
        "gauge",
        "Free memory in MiB.",
        lambda _, r: r.memory_free_mib,
        of_instance=_free,
    ),
    Counter(
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Used memory in MiB.",
        lambda _, r: r.memory_used_mib,
        of_instance=_used,
    ),
    Counter(
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Memory that the driver keeps for itself, in MiB.",
        lambda _, r: r.memory_reserved_mib,
    ),
    Counter(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "gauge",
        "Traffic over all NVLinks in MB/s.",
        lambda _, r: r.nvlink_mb_s,
    ),
    Counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows of memory replaced after uncorrectable errors.",
        _rows("uncorrectable"),
    ),
    Counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows of memory replaced after correctable errors.",
        _rows("correctable"),
    ),
    Counter(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether replacing a row has failed.", _rows("failure")
    ),
    Counter(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Share of time in which the graphics or compute engine was active, 0 to 1.",
        lambda _, r: _ratio(r.activity_pct),
        of_instance=lambda _, r: _ratio(r.activity_pct),
    ),
    Counter(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Share of cycles in which the tensor pipe was active, 0 to 1.",
        lambda _, r: _ratio(r.tensor_pct),
        of_instance=lambda _, r: None,  # the whole card's figure would be no instance's
    ),
    Counter(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Share of cycles in which the memory's interface was active, 0 to 1.",
        lambda _, r: _ratio(r.memory_activity_pct),
        of_instance=lambda _, r: _ratio(r.memory_activity_pct),
    ),
    Counter(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        "Sent over PCIe, in bytes per second.",
        lambda _, r: r.pcie_tx_bytes_s,
    ),
    Counter(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "Received over PCIe, in bytes per second.",
        lambda _, r: r.pcie_rx_bytes_s,
    ),
)
XID = Counter(
    "DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the newest Xid error, 0 for none.", lambda *_: None
)


def families(
    inventory: Inventory,
    readings: Mapping[str, Readings],
    xids: Mapping[str, int],
    held: Mapping[str, Holders],
    hostname: str,
) -> Iterable[Family]:
    """All series. `xids` has the GPUs whose errors are watched."""
    found = {one.name: Family(one.name, one.kind, one.help) for one in (*COUNTERS, XID)}  # type: ignore[arg-type]
    for gpu in inventory.gpus:
        labels = identity(gpu) | _machine(inventory, hostname)
        here = held.get(gpu.uuid, NOBODY)
        whole = labels | (here.whole.labels if here.whole else {})
        found[XID.name].add(xids.get(gpu.uuid), whole)
        seen = readings.get(gpu.uuid)
        if seen is None or gpu.lost:
            continue
        parts = tuple(_parts(gpu, seen))
        for counter in COUNTERS:
            if counter.of_instance is None or not parts:
                found[counter.name].add(counter.of_gpu(gpu, seen), whole)
                continue
            for one, inner in parts:
                holder = here.instances.get(one.gi)
                found[counter.name].add(
                    counter.of_instance(one, inner),
                    instance_labels(gpu, one)
                    | _machine(inventory, hostname)
                    | (holder.labels if holder else {}),
                )
    return found.values()


def _parts(gpu: Gpu, seen: Readings) -> Iterator[tuple[Instance, InstanceReadings]]:
    """The instances in which something can run, with what was read of each."""
    for one in gpu.instances or ():
        if one.mig_uuid is not None:
            yield one, seen.instances.get(one.gi, InstanceReadings())


def identity(gpu: Gpu) -> dict[str, str]:
    """Labels of a GPU, in dcgm-exporter's order."""
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id or "",
        "device": f"nvidia{gpu.index}",
        "modelName": gpu.name,
    }


def instance_labels(gpu: Gpu, one: Instance) -> dict[str, str]:
    """The same of an instance."""
    return identity(gpu) | {"GPU_I_PROFILE": one.profile or str(one.profile_id), "GPU_I_ID": str(one.gi)}


def _machine(inventory: Inventory, hostname: str) -> dict[str, str]:
    """Older releases write `Hostname`, newer ones `hostname`; dashboards look for either."""
    return {
        "Hostname": hostname,
        "hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": inventory.driver or "",
    }
