"""Instant values of a GPU and of its MIG devices by pynvml: cheap, meant for every two seconds.

Conventions as in nvml. Not here: activity of engines (nvml_gpm, dcgm).
"""

from __future__ import annotations

from typing import Any

import pynvml as n

from agents import nvml, nvml_mig
from agents.gpu import InstanceReadings, Readings


def readings(device: Any) -> Readings:
    """Whole-GPU values; what a GPU in MIG mode does not measure (its utilisation, say) is None."""
    rates = nvml.optional(n.nvmlDeviceGetUtilizationRates, device)
    used = nvml.memory(device)
    milliwatts = nvml.optional(n.nvmlDeviceGetPowerUsage, device)
    encoder = nvml.optional(n.nvmlDeviceGetEncoderUtilization, device)
    decoder = nvml.optional(n.nvmlDeviceGetDecoderUtilization, device)
    return Readings(
        utilization_pct=rates.gpu if rates else None,
        memory_utilization_pct=rates.memory if rates else None,
        memory_used_mib=used.used if used else None,
        memory_free_mib=used.free if used else None,
        memory_reserved_mib=used.reserved if used else None,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=_temperature(device),
        memory_temperature_c=_memory_temperature(device),
        encoder_pct=encoder[0] if encoder else None,
        decoder_pct=decoder[0] if decoder else None,
        energy_mj=nvml.optional(n.nvmlDeviceGetTotalEnergyConsumption, device),
        pcie_replays=nvml.optional(n.nvmlDeviceGetPcieReplayCounter, device),
        sm_clock_mhz=nvml.optional(n.nvmlDeviceGetClockInfo, device, n.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.optional(n.nvmlDeviceGetClockInfo, device, n.NVML_CLOCK_MEM),
    )


def instances(device: Any) -> dict[int, InstanceReadings]:
    """By GPU instance id; {} without MIG, and while instances come and go under the question."""
    migs = nvml.optional(nvml_mig.one_of_each, device) or {}
    return {gi: _instance(mig) for gi, mig in migs.items()}


def _instance(mig: Any) -> InstanceReadings:
    used = nvml.memory(mig)
    return InstanceReadings(
        memory_used_mib=used.used if used else None, memory_free_mib=used.free if used else None
    )


def _temperature(device: Any) -> int | None:
    degrees = nvml.optional(n.nvmlDeviceGetTemperatureV, device, n.NVML_TEMPERATURE_GPU)
    if degrees is None:
        degrees = nvml.optional(n.nvmlDeviceGetTemperature, device, n.NVML_TEMPERATURE_GPU)
    return None if degrees is None else int(degrees)


def _memory_temperature(device: Any) -> int | None:
    """A field has its own return code beside that of the call."""
    fields = nvml.optional(n.nvmlDeviceGetFieldValues, device, [n.NVML_FI_DEV_MEMORY_TEMP])
    if fields is None or fields[0].nvmlReturn != n.NVML_SUCCESS:
        return None
    return int(fields[0].value.uiVal) or None  # 0: this board has no sensor there
