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
#: 2 added shares, stays, policies, what happened, health, and more about processes.
WIRE = 2
ACCEPTED = (WIRE - 1, WIRE)
#: The first version whose agents know shares.
SHARES_SINCE = 2

#: A node's name; anything wider (`*`, `:`) would widen its Redis ACL.
NODE_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

#: Name of the one Celery task a node knows; its only argument is a Command (builtins).
APPLY_TASK = "gpupool.apply"

Phase = Literal["run", "checkpoint", "end"]
#: What a holder may ask for as the word that its slice is taken back.
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM")
#: How shares of a GPU are kept apart: by the driver, by a library, or not at all.
Sharing = Literal["mps", "hami", "timeslice"]
#: How a holder gets a slice, and nobody else.
Access = Literal["advisory", "cdi", "unix"]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU: at most `memory_mib`; `compute_pct` is guaranteed, `limit_pct` the most.

    `batch` yields to the others on the GPU.
    """

    memory_mib: int
    compute_pct: int
    limit_pct: int
    batch: bool = False


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One slice, one share, or the whole GPU, that somebody holds now.

    `owner` names the chain of one owner and team (DESIGN 4): an instance is
    kept when the next holder's `owner` is the same, and made anew otherwise.
    `profile_id` is None for the whole GPU and for a `share` of it; then start 0
    and size = grid. `users` are the accounts on the node whose processes are
    this holder's. `adopt`: an instance that is there already becomes ours.
    `phase` checkpoint: it is to be taken back soon, and its processes get `signal`, once.
    `imex` is the channel by which its GPUs share memory with its GPUs on other nodes.
    """

    allocation: str
    owner: str
    profile: str | None
    profile_id: int | None
    start: int
    size: int
    phase: Phase = "run"
    share: Share | None = None
    reservation: str = ""
    team: str = ""
    users: tuple[str, ...] = ()
    adopt: bool = False
    signal: str = ""
    imex: int | None = None


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All that one GPU shall hold. `mig` is the mode it shall be in.

    `sharing` is set on a GPU that is given in shares; `multi_user` lets one MPS
    server serve several accounts. `reset` counts the resets that were wanted
    so far: a higher number than was carried out means one more, once the GPU is
    empty. `prohibited`: while nothing is held, the GPU takes no process.
    """

    mig: bool
    held: tuple[Held, ...] = ()
    sharing: Sharing | None = None
    multi_user: bool = False
    access: Access = "advisory"
    prohibited: bool = False
    reset: int = 0


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
    """A process on a GPU. `computes` False: it only draws, as a display server does.

    (boot id, `pid`, `started`) is the process; `started` is the kernel's word.
    `command` is shortened and without values that look secret. `session` is
    "terminal" or "notebook". `system`: the machine's own, as an MPS server.
    `allocation` and `by` (cdi, label, environment, user, adopted) say whose it is; None: unattributed.
    None everywhere: could not be read.
    """

    pid: int
    uid: int | None = None
    user: str | None = None
    name: str | None = None
    memory_mib: Any = None
    computes: bool = True
    started: str | None = None
    started_at: datetime | None = None
    command: str | None = None
    container: str | None = None
    cpu_s: Any = None
    read_bytes: Any = None
    written_bytes: Any = None
    session: str | None = None
    first_busy_at: datetime | None = None
    system: bool = False
    allocation: str | None = None
    by: str | None = None


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as it is. `owned`: this agent made it and has it on record.

    `processes` None means that they could not be read, () that there are none.
    `activity_pct` and `memory_activity_pct` are Windows of how busy its own
    engines and its own memory are.
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
    sm: Any = None
    activity_pct: Any = None  # Window
    memory_activity_pct: Any = None  # Window


class ShareSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A share as it is: `state` ok, degraded (its MPS server is dead, say) or over (too much memory).

    `memory_used_mib` is the sum over the processes of its holder.
    """

    allocation: str
    state: str
    memory_used_mib: Any = None
    detail: str = ""


class Remapped(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of memory that were replaced, and whether a reset has to finish it or it failed."""

    correctable: Any = None
    uncorrectable: Any = None
    pending: bool | None = None
    failure: bool | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """NVLinks to one neighbour: `peer` is its GPU UUID, or None for a switch. `count` are up."""

    peer: str | None
    kind: str
    count: Any


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
    in the way), frozen, observe, sharing (MPS or the library did not do it),
    access (it could not be handed to its holder), driver (anything else; `nvml`
    has its number).
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
    activity_pct: Any = None  # Window
    memory_activity_pct: Any = None  # Window
    shares: tuple[ShareSeen, ...] = ()
    sm_clock_mhz: Any = None
    memory_clock_mhz: Any = None
    #: Reasons of the moment why clocks are held down; None: not known.
    throttle: tuple[str, ...] | None = None
    ecc_corrected: Any = None
    ecc_uncorrected: Any = None
    remapped: Remapped | None = None
    fabric_state: str | None = None
    fabric_health: str | None = None
    numa: int | None = None
    links: tuple[Link, ...] | None = None
    compute_mode: str | None = None
    #: The number of the newest reset that was carried out.
    reset: int = 0


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once on the node, told until a report with it is accepted.

    `n` rises, over restarts too, so that none is taken twice. `kind`: xid (data
    xid, gi, ci), hook (data hook, rc), signal (data pid, signal), line, reset,
    pause (units that were stopped or started), over_memory, degraded, unattributed.
    """

    n: int
    kind: str
    at: datetime
    text: str = ""
    gpu: str | None = None
    allocation: str | None = None
    data: dict[str, Any] = {}


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
    happened: tuple[Happened, ...] = ()
    #: Others that give out this node's GPUs: device-plugin, mig-manager, slurmd.
    managed_by: tuple[str, ...] = ()
    #: What can be had here: ways to share, ways to hand out.
    sharing: tuple[str, ...] = ()
    access: tuple[str, ...] = ()
    imex: str | None = None
    exporter: int | None = None  # its port
    run: str | None = None  # the folder for holders, where an operator moved it
    dropped: int = 0  # reports that could not be delivered since the agent started


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has to know of a reservation on it, beside the layouts; comes with every answer.

    `notice_until` is when it may be taken back, with `why` in a word; `url` is
    the page where it can be extended. `ending`: it is over, and what still runs
    for it may be told to go.
    """

    allocation: str
    reservation: str
    gpu: str
    team: str
    owner: str
    users: tuple[str, ...] = ()
    start: datetime
    end: datetime | None = None
    notice_until: datetime | None = None
    why: str = ""
    url: str = ""
    ending: bool = False


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool allows on its nodes. `kill`: SIGKILL after SIGTERM and `grace_s`.

    `over_memory` and `foreign` say what is done about a share that takes too much
    memory and about processes on a GPU that nobody booked.
    """

    kill: bool = False
    grace_s: float = 60.0
    over_memory: Literal["warn", "end"] = "warn"
    over_grace_s: float = 300.0
    foreign: Literal["look", "line", "kill"] = "line"
    lines: bool = True


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`manage` names the GPU UUIDs whose commands may be carried out; the rest is
    only looked at. `frozen` stops all commands on this node."""

    wire: int = WIRE
    accepted_seq: int
    commands: tuple[Command, ...] = ()
    next_report_s: float = 15.0
    manage: tuple[str, ...] = ()
    frozen: bool = False
    stays: tuple[Stay, ...] = ()
    policy: Policy = Policy()


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
