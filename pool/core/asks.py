"""What can be asked for: MIG slices, whole GPUs, shares. Data only; how an ask is read is in shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: All of a GPU's memory or compute, in percent.
ALL_PCT = 100


class Class(StrEnum):
    """How work behaves when capacity is short (decided with the quota)."""

    ONLINE = "online"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class Sharing(StrEnum):
    """How the shares of a GPU are kept apart (wire.Sharing): by the driver, by a library, or not at all."""

    MPS = "mps"
    HAMI = "hami"
    TIMESLICE = "timeslice"


class Spread(StrEnum):
    """Over what the pieces of an ask are spread, so that no two of them fail together."""

    NODE = "node"


@dataclass(frozen=True, slots=True)
class MigAsk:
    """`count` MIG slices: a profile by name, or the smallest that has the minimum.

    `memory_mib` and `compute_slices` are minimums, and hold for a named profile
    too. `models` () means any model; `node` pins one node; `same_node` wants
    all slices on one, `spread` each on another. `profile_any` names several
    profiles: all slices are of one of them. `node_cpu_milli` and `node_memory_mib`
    are what each slice takes of its node beside the GPU.
    """

    profile: str | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None
    count: int = 1
    models: tuple[str, ...] = ()
    same_node: bool = False
    node: str | None = None
    profile_any: tuple[str, ...] = ()
    spread: Spread | None = None
    node_cpu_milli: int = 0
    node_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """`count` whole GPUs of these models (() any) with at least `memory_mib` each.

    `same_nvlink_domain` wants all of them where each reaches each over NVLink.
    `segment` cuts the ask into segments of so many GPUs (of so many nodes where
    `spread` puts each on another), none of which straddles a block of the pool's
    tree. The rest is as with `MigAsk`.
    """

    models: tuple[str, ...] = ()
    memory_mib: int | None = None
    count: int = 1
    same_node: bool = False
    node: str | None = None
    same_nvlink_domain: bool = False
    segment: int | None = None
    spread: Spread | None = None
    node_cpu_milli: int = 0
    node_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class ShareAsk:
    """`count` shares, each with memory and compute of its own choice.

    Exactly one of `memory_mib` and `memory_pct` is set; the percentage is of what
    can be shared of the GPU that it gets. `guaranteed` percent of the compute
    are always there, `limit` is the most. `sharing` None is any kind, but one that
    enforces neither (time slicing) only where `accept_not_enforced` says so. The
    rest is as with `MigAsk`.
    """

    memory_mib: int | None = None
    memory_pct: int | None = None
    guaranteed: int = 0
    limit: int = ALL_PCT
    count: int = 1
    models: tuple[str, ...] = ()
    same_node: bool = False
    node: str | None = None
    sharing: Sharing | None = None
    accept_not_enforced: bool = False
    spread: Spread | None = None
    node_cpu_milli: int = 0
    node_memory_mib: int = 0


Ask = MigAsk | GpuAsk | ShareAsk


def alternatives(ask: Ask) -> tuple[Ask, ...]:
    """The asks of which one is to be served: one for each profile of `profile_any`, else the ask itself."""
    if isinstance(ask, MigAsk) and ask.profile_any:
        return tuple(replace(ask, profile=name, profile_any=()) for name in ask.profile_any)
    return (ask,)
