"""What agents and portal say to each other, and its version.

Commands carry desired state ("GPU X shall look like this, generation 7"),
reports carry the truth. Both sides import this file; it needs only msgspec.
Decoders ignore unknown fields, so that N and N-1 understand one another.
A measured value is `Any` here: one that makes no sense must not lose its
report, so `pool.core.health` looks at each alone. Units are in the names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

#: Version spoken by this code; the portal accepts WIRE and WIRE - 1.
WIRE = 1
ACCEPTED = (WIRE - 1, WIRE)

#: A node's name; anything wider (`*`, `:`) would widen its Redis ACL.
NODE_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

#: Name of the one Celery task a node knows; its only argument is a Command (builtins).
APPLY_TASK = "gpupool.apply"

Phase = Literal["run", "checkpoint", "end"]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One slice, or the whole GPU, that somebody holds now.

    `owner` names the chain of one owner and team (DESIGN 4): an instance is
    kept when the next holder's `owner` is the same, and made anew otherwise.
    `profile_id` is None for the whole GPU; then start 0 and size = grid.
    """

    allocation: str
    owner: str
    profile: str | None
    profile_id: int | None
    start: int
    size: int
    phase: Phase = "run"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All that one GPU shall hold. `mig` is the mode it shall be in."""

    mig: bool
    held: tuple[Held, ...] = ()


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """GPU `gpu` shall look like `layout`; an older generation is refused."""

    wire: int = WIRE
    id: str
    node: str
    gpu: str  # GPU UUID
    generation: int
    layout: Layout


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile that the driver offers on this GPU now."""

    profile_id: int
    name: str | None
    compute_slices: Any
    size: Any  # memory slices
    memory_mib: Any
    sm: Any
    max_instances: Any
    starts: tuple[int, ...]


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU. `computes` False: it only draws, as a display server does."""

    pid: int
    uid: int | None = None
    user: str | None = None
    name: str | None = None
    memory_mib: Any = None
    computes: bool = True


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as it is. `owned`: this agent made it and has it on record.

    `processes` None means that they could not be read, () that there are none.
    """

    gi: int
    ci: int | None
    mig_uuid: str | None
    profile_id: int
    profile: str | None
    start: int
    size: int
    owned: bool
    allocation: str | None = None
    memory_used_mib: Any = None
    memory_total_mib: Any = None
    processes: tuple[Process, ...] | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One reading folded over a report period; `source` is nvml, gpm or dcgm."""

    min: Any
    mean: Any
    max: Any
    last: Any
    source: str = "nvml"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a generation could not be applied.

    `code`: in_use, reset_required, no_permission, insufficient_resources,
    not_supported, gpu_is_lost, foreign (an instance that is not ours stands
    in the way), frozen, observe, driver (anything else; `nvml` has its number).
    """

    generation: int
    code: str
    nvml: int | None = None
    detail: str = ""
    holders: tuple[Process, ...] = ()


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `lost` says that its handle answers nothing any more; then the
    other fields are what was last read, or None.

    `generation` is the newest one applied and read back (0: none yet).
    `mig` None: this GPU cannot do MIG, or it could not be read (`mig_capable`).
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    pci_device_id: int | None = None
    memory_total_mib: Any = None
    mig_capable: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    grid: int | None = None
    offers: tuple[Offer, ...] = ()
    instances: tuple[Instance, ...] | None = None
    processes: tuple[Process, ...] | None = None
    generation: int = 0
    held: tuple[str, ...] = ()  # allocations in force on this GPU, also whole-GPU ones
    trouble: Trouble | None = None
    lost: bool = False
    fabric_cluster: str | None = None
    fabric_clique: int | None = None
    utilization_pct: Any = None  # Window
    memory_used_mib: Any = None  # Window
    power_w: Any = None  # Window
    temperature_c: Any = None  # Window


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A node's state. `(boot_id, seq)` orders reports; `sampled_at` only tells."""

    wire: int = WIRE
    agent: str
    node: str
    machine_id: str
    boot_id: str
    seq: int
    sampled_at: datetime
    driver: str | None = None
    frozen: bool = False
    broker: bool = False  # the node's Celery worker is connected
    gpus: tuple[GpuReport, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`manage` names the GPU UUIDs whose commands may be carried out; the rest is
    only looked at. `frozen` stops all commands on this node."""

    wire: int = WIRE
    accepted_seq: int
    commands: tuple[Command, ...] = ()
    next_report_s: float = 15.0
    manage: tuple[str, ...] = ()
    frozen: bool = False


class JoinAsk(msgspec.Struct, frozen=True, kw_only=True):
    wire: int = WIRE
    code: str
    node: str
    machine_id: str
    agent: str


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`broker_url` None: commands travel by report only."""

    wire: int = WIRE
    node: str
    token: str
    broker_url: str | None = None
    report_s: float = 15.0
