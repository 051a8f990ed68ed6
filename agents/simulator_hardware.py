"""What the simulated GPUs are made of: names, sizes and readings.

The catalogue's unknown figures are filled in here, and nowhere else.
"""

from __future__ import annotations

import re

from agents.simulator_state import PLAIN, Gpu
from pool.core import mig

_NAMED_GB = re.compile(r"(\d+)gb", re.IGNORECASE)
_IDLE_W, _BUSY_W = 70, 600
_IDLE_C, _BUSY_C = 31, 72
#: Cards without NVLink; they and everything before Hopper know no fabric.
_NO_FABRIC = ("RTX-PRO-6000-96GB", "H100-94GB")


def model(gpu: Gpu) -> mig.Model | None:
    """The GPU's entry in the catalogue; None for one that cannot do MIG."""
    return mig.models().get(gpu.model)


def nvml_name(gpu: Gpu) -> str:
    entry = model(gpu)
    return entry.nvml_names[0] if entry else PLAIN[gpu.model].nvml_name


def pci_device_id(gpu: Gpu) -> int:
    """Vendor 10DE below, as the driver gives it; 0 where no source has it."""
    entry = model(gpu)
    if entry is None:
        return PLAIN[gpu.model].pci_device_id
    return entry.pci_device_ids[0] if entry.pci_device_ids else 0


def pci_bus_id(gpu: Gpu) -> str:
    return f"00000000:{bus_number(gpu):02X}:00.0"


def bus_number(gpu: Gpu) -> int:
    return 4 + 3 * gpu.index


def total_mib(gpu: Gpu) -> int:
    """Where no source has it: the number in the model's name x 1024."""
    entry = model(gpu)
    if entry is None:
        return PLAIN[gpu.model].memory_mib
    return entry.total_memory_mib or _named_mib(entry.name)


def profile_mib(gpu: Gpu, profile: mig.Profile) -> int:
    """Where no source has it: the span's share of the GPU, or the number in the profile's name x 1024."""
    if profile.memory_mib is not None:
        return profile.memory_mib
    entry = model(gpu)
    if entry is None or entry.total_memory_mib is None:
        return _named_mib(profile.name)
    return entry.total_memory_mib * profile.size // entry.grid


def profile_sm(profile: mig.Profile) -> int:
    """Where no source has it: one SM per compute slice."""
    return profile.compute_slices if profile.sm is None else profile.sm


def _named_mib(name: str) -> int:
    match = _NAMED_GB.search(name)
    assert match is not None, name
    return int(match[1]) * 1024


def has_fabric(gpu: Gpu) -> bool:
    entry = model(gpu)
    return entry is not None and entry.arch != "ampere" and entry.name not in _NO_FABRIC


def milliwatts(load_pct: int) -> int:
    return (_IDLE_W * 100 + (_BUSY_W - _IDLE_W) * load_pct) * 10


def degrees(load_pct: int) -> int:
    return _IDLE_C + (_BUSY_C - _IDLE_C) * load_pct // 100
