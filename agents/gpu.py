"""What `agents.driver` says about GPUs: plain values, no driver behind them.

Processes and offers are the wire's own structs, since they travel unchanged.
Everywhere None means "not measured" or "could not be read", never 0 or free.
"""

from __future__ import annotations

from dataclasses import dataclass

from pool.core.wire import Offer, Process


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance as the driver shows it, whoever made it.

    `start` and `size` are memory slices. `ci` and `mig_uuid` are None for a GPU
    instance without a compute instance; one with several shows the lowest.
    `profile` is the name the driver gives now, without "MIG " ("1g.10gb").
    """

    gi: int
    ci: int | None
    mig_uuid: str | None
    profile_id: int
    profile: str | None
    start: int
    size: int
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    processes: tuple[Process, ...] | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. With `lost` only its identity is true.

    `mig` and `mig_pending` are None when it cannot do MIG or could not be asked
    (`mig_capable` False or None). `instances` None: could not be read; (): none.
    `grid` is max(start + size) over the offers, None without offers.
    `fabric_cluster` is 32 hex digits, None when the driver says all zeros.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    pci_device_id: int | None = None
    memory_total_mib: int | None = None
    mig_capable: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    grid: int | None = None
    offers: tuple[Offer, ...] = ()
    instances: tuple[Instance, ...] | None = None
    processes: tuple[Process, ...] | None = None
    fabric_cluster: str | None = None
    fabric_clique: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node by index. `unidentified` holds the indices of GPUs that
    answered nothing and whose identity was never read by this process."""

    driver: str | None
    gpus: tuple[Gpu, ...]
    unidentified: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """Instant values of a whole GPU; None where the driver has none."""

    utilization_pct: int | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None


class DriverRefusal(Exception):
    """The driver did not do what it was asked.

    `code` is one of `pool.core.wire.Trouble.code`: in_use, reset_required,
    no_permission, insufficient_resources, not_supported, gpu_is_lost, driver.
    `nvml` is the driver's number, None where the driver raised none; `holders`
    are the processes in the way, as far as they could be read.
    """

    def __init__(
        self, code: str, nvml: int | None = None, detail: str = "", holders: tuple[Process, ...] = ()
    ) -> None:
        super().__init__(code, nvml, detail)
        self.code = code
        self.nvml = nvml
        self.detail = detail
        self.holders = holders

    def __str__(self) -> str:
        number = "" if self.nvml is None else f" (NVML {self.nvml})"
        return f"{self.code}{number}: {self.detail}" if self.detail else f"{self.code}{number}"
