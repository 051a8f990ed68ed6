"""What the simulated GPUs are made of: names, sizes and readings.

The catalogue's unknown figures are filled in here, and nowhere else.
"""

from __future__ import annotations

import re

from agents.simulator_state import PLAIN, Gpu
from pool.core import mig

_NAMED_GB = re.compile(r"(\d+)gb", re.IGNORECASE)
#: NVML's bits by the names they are known by.
THROTTLE = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}
_IDLE_W, _BUSY_W = 70, 600
_IDLE_C, _BUSY_C = 31, 72
_IDLE_MHZ, _BUSY_MHZ, _SLOWED_MHZ = 345, 1980, 1200
_MEMORY_MHZ = 2619
#: Cards without NVLink; they and everything before Hopper know no fabric.
_NO_FABRIC = ("RTX-PRO-6000-96GB", "H100-94GB")
#: Links of those that are bridged in pairs; all other cards with NVLink are wired to switches.
_BRIDGED = {"A30-24GB": 4, "H100-94GB": 12}
_SWITCHED = {"ampere": 12, "hopper": 18, "blackwell": 18}


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


def links(gpu: Gpu) -> int:
    """NVLinks that the card has."""
    entry = model(gpu)
    if entry is None or entry.name.startswith("RTX"):
        return 0
    return _BRIDGED.get(entry.name, _SWITCHED[entry.arch])


def bridged(gpu: Gpu) -> bool:
    """Whether its links lead to one other card instead of to switches."""
    return gpu.model in _BRIDGED


def has_gpm(gpu: Gpu) -> bool:
    """Hopper and later."""
    entry = model(gpu)
    return entry is not None and entry.arch != "ampere"


def has_memory_sensor(gpu: Gpu) -> bool:
    """Those with HBM."""
    entry = model(gpu)
    return entry is not None and not entry.name.startswith("RTX")


def throttle_bits(gpu: Gpu, load_pct: int) -> int:
    if gpu.throttle is not None:
        return gpu.throttle
    return 0 if load_pct else THROTTLE["idle"]


def sm_mhz(gpu: Gpu, load_pct: int) -> int:
    if not load_pct:
        return _IDLE_MHZ
    return _SLOWED_MHZ if throttle_bits(gpu, load_pct) & ~THROTTLE["idle"] else _BUSY_MHZ


def memory_mhz() -> int:
    return _MEMORY_MHZ


def milliwatts(load_pct: int) -> int:
    return (_IDLE_W * 100 + (_BUSY_W - _IDLE_W) * load_pct) * 10


def degrees(load_pct: int) -> int:
    return _IDLE_C + (_BUSY_C - _IDLE_C) * load_pct // 100
