"""What a holder sets to use its slice, what keeps it apart from others, and what it must not set.

One table for the page that shows it and for the node that hands it out, so that
both say the same. Not here: whether the node does it (agents.sharing, agents.access).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from pool.core.wire import Access, Share, Sharing

#: Where the node keeps what holders need, unless its agent was told another place and reports it.
RUN = "/run/gpupool"
#: The kind of the CDI devices; a device's name is its allocation.
KIND = "gpupool.io/slice"
#: The library as every holder of its share sees it, in a container too.
LIBRARY = "hami/libvgpu.so"
PRELOAD = "hami/ld.so.preload"
#: HAMi-core's processes take turns by this file, on every machine.
LOCKS = "/tmp/vgpulock"  # noqa: S108
#: Where the files of IMEX channels are (NVIDIA IMEX guide).
CHANNELS = "/dev/nvidia-caps-imex-channels"

#: Setting one of these gets at a GPU, or at memory on another node, that was not handed out.
_AIMS = ("NVIDIA_IMEX_CHANNELS", "NVIDIA_VISIBLE_DEVICES")
#: Setting one of these undoes a share's limits; `*` ends a prefix.
_UNDO: dict[Sharing, tuple[str, ...]] = {
    "mps": ("CUDA_MPS_*",),
    "hami": (
        "CUDA_DISABLE_CONTROL",
        "LD_PRELOAD",
        "CUDA_DEVICE_*",
        "CUDA_OVERSUBSCRIBE",
        "CUDA_TASK_PRIORITY",
        "GPU_CORE_UTILIZATION_POLICY",
    ),
    "timeslice": (),
}


class Isolation(StrEnum):
    """What keeps a holder apart from the others on the GPU."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    DRIVER_SHARED_USER = "driver_shared_user"  # one MPS server serves several accounts
    LIBRARY = "library"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Part:
    """One allocation on one GPU: the whole GPU, an instance (`mig_uuid`), or a `share` kept by `sharing`.

    `imex`: the channel by which the booking's GPUs on several nodes share memory.
    """

    allocation: str
    reservation: str
    gpu: str
    mig_uuid: str | None = None
    share: Share | None = None
    sharing: Sharing | None = None
    multi_user: bool = False
    imex: int | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """How to use some allocations of one node together.

    `environment` are the lines for a program on the node itself, `docker` is the
    command for a container, `devices` are the CDI devices in it. `enforced`: others
    cannot get at the slice by ignoring this; `limited`: nor can the holder get more.
    `channel` is the file of its IMEX channel, the same on each of its nodes; "" without one.
    """

    allocations: tuple[str, ...]
    isolation: Isolation
    access: Access
    enforced: bool
    limited: bool
    environment: tuple[tuple[str, str], ...]
    docker: str
    devices: tuple[str, ...]
    denied: tuple[str, ...]
    channel: str = ""


def isolation(part: Part) -> Isolation:
    if part.share is None:
        return Isolation.HARDWARE
    if part.sharing == "mps":
        return Isolation.DRIVER_SHARED_USER if part.multi_user else Isolation.DRIVER
    return Isolation.LIBRARY if part.sharing == "hami" else Isolation.NONE


def limits(part: Part, run: str = RUN) -> dict[str, str]:
    """What the holder of a share sets, so that its limits are kept; {} for anything else.

    NVIDIA's MPS guide and HAMi-core's README name the variables. A batch share
    yields: its kernels come after those of the others.
    """
    share = part.share
    if share is None or part.sharing in (None, "timeslice"):
        return {}
    if part.sharing == "mps":
        found = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe(part.gpu, run),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.memory_mib}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share.limit_pct),
        }
        return found | ({"CUDA_MPS_CLIENT_PRIORITY": "1"} if share.batch else {})
    return {
        "LD_PRELOAD": f"{run}/{LIBRARY}",
        # The one of a device wins over the general one, so both are set.
        **dict.fromkeys(("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"), f"{share.memory_mib}m"),
        **dict.fromkeys(("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0"), str(share.limit_pct)),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{cache(part.allocation, run)}/{share.memory_mib}.cache",
        "CUDA_TASK_PRIORITY": "1" if share.batch else "0",
        # Without it the limit counts only while somebody else is busy, so a guarantee would come late.
        "GPU_CORE_UTILIZATION_POLICY": "default" if share.batch else "force",
    }


def pipe(gpu: str, run: str = RUN) -> str:
    """The folder in which the MPS daemon of a GPU listens."""
    return f"{run}/mps/{gpu}/pipe"


def cache(allocation: str, run: str = RUN) -> str:
    """The folder in which the processes of one share count their memory together."""
    return f"{run}/hami/{allocation}"


def channel(part: Part) -> dict[str, str]:
    """By what NVIDIA's container toolkit hands in the IMEX channel; a CDI device has it already."""
    return {} if part.imex is None else {"NVIDIA_IMEX_CHANNELS": str(part.imex)}


def marks(part: Part) -> dict[str, str]:
    """What says for whom a process runs."""
    return {"GPUPOOL_RESERVATION": part.reservation, "GPUPOOL_ALLOCATION": part.allocation}


def denied(parts: Sequence[Part]) -> tuple[str, ...]:
    """Variables that a holder must not set itself, sorted; `*` ends a prefix."""
    undo = {name for part in parts if part.share and part.sharing for name in _UNDO[part.sharing]}
    return tuple(sorted({*_AIMS, *undo}))


def undoes(name: str, sharing: Sharing) -> bool:
    """Whether this variable could undo a limit of a share that is kept this way."""
    return any(fnmatchcase(name, pattern) for pattern in _UNDO[sharing])


def connect(parts: Sequence[Part], access: Access, run: str = RUN) -> tuple[Connect, ...]:
    """How to use what one reservation holds on one node.

    Whole GPUs are used together. An instance or a share stands alone: a process
    sees only one instance, and has one set of limits.
    """
    whole = [part for part in parts if part.mig_uuid is None and part.share is None]
    groups = [[part] for part in parts if part not in whole]
    return tuple(_connect(group, access, run) for group in ([whole] if whole else []) + groups)


def _connect(parts: Sequence[Part], access: Access, run: str) -> Connect:
    first = parts[0]
    kept = limits(first, run)
    visible = ",".join(part.mig_uuid or part.gpu for part in parts)
    devices = tuple(f"{KIND}={part.allocation}" for part in parts)
    return Connect(
        allocations=tuple(part.allocation for part in parts),
        isolation=isolation(first),
        access=access,
        enforced=access != "advisory",
        limited=first.sharing != "timeslice" or first.share is None,
        environment=(
            ("CUDA_VISIBLE_DEVICES", visible),
            *kept.items(),
            *channel(first).items(),
            *marks(first).items(),
        ),
        docker=_docker(parts, access, kept, run),
        devices=devices if access == "cdi" else (),
        denied=denied(parts),
        channel="" if first.imex is None else f"{CHANNELS}/channel{first.imex}",
    )


def _docker(parts: Sequence[Part], access: Access, kept: dict[str, str], run: str) -> str:
    """The command that runs a container; the rest of it is the holder's."""
    if access == "cdi":
        words = [word for part in parts for word in ("--device", f"{KIND}={part.allocation}")]
        return shlex.join(["docker", "run", *words, "IMAGE"])
    visible = ",".join(part.mig_uuid or part.gpu for part in parts)
    words = ["--gpus", f'"device={visible}"']
    for option in _mounted(parts[0], run):
        words += ["-v", option]
    if parts[0].sharing == "mps":
        words.append("--ipc=host")  # clients and server meet in shared memory
    for name, value in {**kept, **channel(parts[0]), **marks(parts[0])}.items():
        words += ["-e", f"{name}={value}"]
    return shlex.join(["docker", "run", *words, "IMAGE"])


def _mounted(part: Part, run: str) -> tuple[str, ...]:
    if part.share is None:
        return ()
    if part.sharing == "mps":
        return (f"{pipe(part.gpu, run)}:{pipe(part.gpu, run)}",)
    if part.sharing == "hami":
        own = cache(part.allocation, run)
        return (
            f"{run}/{LIBRARY}:{run}/{LIBRARY}:ro",
            f"{run}/{PRELOAD}:/etc/ld.so.preload:ro",
            f"{own}:{own}",
            f"{LOCKS}:{LOCKS}",
        )
    return ()
