"""What `agents.driver` says about GPUs: plain values, no driver behind them.

Processes and offers are the wire's own structs, since they travel unchanged.
Everywhere None means "not measured" or "could not be read", never 0 or free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pool.core.wire import Link, Offer, Process, Remapped


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
    sm: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How a card is; every value may be absent. Clocks in MHz, ECC counts since the driver came up.

    `throttle` holds words: idle, sw_power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake,
    applications_clocks, sync_boost, display_clocks; None: not known. `fabric_state` and
    `fabric_health` are words, too. `links` holds NVLinks (kind nvlink with the neighbour's UUID,
    nvswitch without; `count` are up) and the GPUs whose memory it reads directly by whatever way
    (kind p2p, no count); () means that it has neither, None that it was not asked.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped: Remapped | None = None
    fabric_state: str | None = None
    fabric_health: str | None = None
    numa: int | None = None
    links: tuple[Link, ...] | None = None
    compute_mode: str | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """An error event of the driver. `gi` and `ci` only where it can be laid to one instance."""

    gpu: str
    number: int
    gi: int | None = None
    ci: int | None = None


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
    minor: int | None = None
    health: Health = Health()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node by index. `unidentified` holds the indices of GPUs that
    answered nothing and whose identity was never read by this process. `imex` is the
    state of the IMEX domain in NVIDIA's word (READY, ...), None: no IMEX here."""

    driver: str | None
    gpus: tuple[Gpu, ...]
    unidentified: tuple[int, ...] = ()
    imex: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceReadings:
    """Instant values of one GPU instance, by its id; activity in percent of its own engines and memory."""

    activity_pct: float | None = None
    memory_activity_pct: float | None = None
    source: str = "nvml"
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """Instant values of a whole GPU; None where the driver has none.

    `source` is where the activities come from: gpm or dcgm. Energy is a
    counter in mJ since the driver came up, PCIe replays a counter. Traffic is of
    the time since the sample before, in bytes/s and in 10^6 bytes/s.
    """

    utilization_pct: int | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    memory_utilization_pct: int | None = None
    memory_free_mib: int | None = None
    memory_reserved_mib: int | None = None
    memory_temperature_c: int | None = None
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    energy_mj: int | None = None
    pcie_replays: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    activity_pct: float | None = None
    tensor_pct: float | None = None
    memory_activity_pct: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None
    nvlink_mb_s: float | None = None
    source: str = "nvml"
    instances: Mapping[int, InstanceReadings] = field(default_factory=lambda: MappingProxyType({}))


class DriverRefusal(Exception):
    """The driver did not do what it was asked.

    `code` is one of `pool.core.wire.Trouble.code`: in_use, reset_required,
    no_permission, insufficient_resources, not_supported, gpu_is_lost, driver, sharing, access.
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
