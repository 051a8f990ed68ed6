"""What a report says about GPUs, without its nonsense, and how it compares with what was wanted.

A value that makes no sense is dropped alone and counted. What could not be read
stays None; nothing is concluded from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from pool.core import mig, reported, wire
from pool.core.health import Reading, clean_int
from pool.core.reported import MOST_ROWS, MOST_TEXT, Count, text

__all__ = ["MOST_ROWS", "MOST_TEXT", "Seen", "clean", "plain", "text"]

#: Beyond these a report is not read further: no real node comes near.
MOST_GPUS = 64
#: A bigint, with room above for generations of our own.
MOST_GENERATION = 2**53

#: Kinds of blockers, as the table has them.
OVERRUN, FOREIGN, UNKNOWN = "overrun", "foreign", "unknown"

#: (first memory slice, memory slices, kind) -> what it is, for the operator.
Blockers = Mapping[tuple[int, int, str], str]


@dataclass(frozen=True, slots=True)
class Seen:
    """One GPU of a report; None is not measured. Texts that nobody compares are as they came.

    `unsure`: some instance made no sense, so what is where is not known.
    `generation` 0 also stands for one that made no sense. `health` and `links`
    are as rows keep them (GpuState, Gpu).
    """

    uuid: str
    index: int
    name: str
    model: str
    pci_bus_id: str
    memory_mib: int | None
    grid: int
    mig_capable: bool | None
    mig: bool | None
    mig_pending: bool | None
    offers: Sequence[wire.Offer]
    instances: tuple[wire.Instance, ...] | None
    unsure: bool
    processes: Sequence[wire.Process] | None
    generation: int
    held: frozenset[str]
    trouble: wire.Trouble | None
    lost: bool
    fabric_cluster: str
    fabric_clique: int | None
    readings: Mapping[str, Reading] = field(default_factory=dict)
    shares: Sequence[wire.ShareSeen] = ()
    health: Mapping[str, Any] = field(default_factory=dict)
    numa: int | None = None
    links: Sequence[Mapping[str, Any]] | None = None
    reset: int = 0


def clean(gpus: Iterable[wire.GpuReport]) -> tuple[tuple[Seen, ...], int]:
    """The GPUs of a report, each UUID once, and how many values were dropped."""
    found: dict[str, Seen] = {}
    dropped = 0
    for position, gpu in enumerate(gpus):
        if position >= MOST_GPUS or not reported.is_gpu(gpu.uuid) or gpu.uuid in found:
            dropped += 1
            continue
        found[gpu.uuid], lost_values = _clean(gpu, position)
        dropped += lost_values
    return tuple(found.values()), dropped


def _clean(gpu: wire.GpuReport, position: int) -> tuple[Seen, int]:
    count = Count()
    memory = count(clean_int(gpu.memory_total_mib, 1, mig.MAX_MEMORY_MIB))
    model = _identify(gpu.name, gpu.pci_device_id, memory)
    grid = _grid(gpu, model, count)
    instances, unsure = reported.instances(gpu.instances, grid, count)
    index = count(clean_int(gpu.index, 0, 1023))
    seen = Seen(
        uuid=gpu.uuid,
        index=position if index is None else index,
        name=text(gpu.name, 96),
        model=model.name if model else text(gpu.name, 64).removeprefix("NVIDIA ").strip() or "unknown",
        pci_bus_id=text(gpu.pci_bus_id or "", 32),
        memory_mib=memory,
        grid=grid,
        mig_capable=gpu.mig_capable,
        mig=gpu.mig,
        mig_pending=gpu.mig_pending,
        offers=gpu.offers[:MOST_ROWS],
        instances=instances,
        unsure=unsure,
        processes=reported.processes(gpu.processes, count),
        generation=count(clean_int(gpu.generation, 0, MOST_GENERATION)) or 0,
        held=frozenset(filter(reported.is_allocation, gpu.held)),
        trouble=gpu.trouble,
        lost=gpu.lost,
        fabric_cluster=text(gpu.fabric_cluster or "", 64),
        fabric_clique=count(clean_int(gpu.fabric_clique, 0, 2**31 - 1)),
        readings=reported.readings(gpu, memory, count),
        shares=reported.shares(gpu.shares, count),
        health=reported.health(gpu, count),
        numa=count(clean_int(gpu.numa, 0, 1023)),
        links=reported.links(gpu.links, count),
        reset=reported.reset(gpu, Count()),
    )
    return seen, count.dropped


#: A fleet has few kinds of cards, and each is seen every 15 seconds.
_identify = lru_cache(maxsize=1024)(mig.identify)


def _grid(gpu: wire.GpuReport, model: mig.Model | None, count: Count) -> int:
    told: int | None = count(clean_int(gpu.grid, 1, mig.MAX_GRID))
    known = told or (model.grid if model else None)
    return known or mig.grid_of(mig.merged(model, gpu.offers)) or 1


def plain(value: Any) -> Any:
    """JSON values fit for the database: no NUL, no infinity, nothing longer than is ever needed."""
    return _plain(msgspec.to_builtins(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value[:MOST_ROWS]]
    return value


# --- Against what was wanted -------------------------------------------------


def newest(seen: Seen) -> int:
    """The newest generation that the agent was told, whether it could do it or not."""
    told = 0 if seen.trouble is None else seen.trouble.generation
    return max(seen.generation, told if told <= MOST_GENERATION else 0)


def contradicts(layout: wire.Layout, generation: int, seen: Seen) -> bool:
    """Whether the agent has done something else under this number, and is content.

    A number is given twice when the database was restored from before the first time.
    """
    content = seen.trouble is None or seen.trouble.generation < generation
    return content and seen.generation >= generation and seen.held != _ids(layout)


def unheard_of(layout: wire.Layout, generation: int, seen: Seen) -> frozenset[str]:
    """Allocations in force by this very generation, though it has none of them."""
    return seen.held - _ids(layout) if newest(seen) == generation else frozenset()


def _ids(layout: wire.Layout) -> set[str]:
    return {one.allocation for one in layout.held}


def readable(layout: wire.Layout, seen: Seen) -> bool:
    """Whether the report says enough to compare this GPU with `layout`."""
    if seen.lost or seen.unsure:
        return False
    return not layout.mig or (seen.mig is not None and (not seen.mig or seen.instances is not None))


def settled(layout: wire.Layout, generation: int, seen: Seen, *, resets: bool = True) -> bool:
    """Whether the GPU looks like `layout` of `generation`: mode, allocations in force, own instances, resets.

    A reset waits until the GPU is empty, and while it is not, it is not missed; nor is it of an
    agent that knows of none (`resets`).
    """
    if not readable(layout, seen) or seen.generation < generation:
        return False
    if seen.held != _ids(layout):
        return False
    if resets and layout.reset > seen.reset and not layout.held:
        return False
    if not layout.mig:
        return not seen.mig
    own = sorted((i.start, i.size) for i in seen.instances or () if i.owned)
    return seen.mig is True and own == sorted((h.start, h.size) for h in layout.held)


def in_force(layout: wire.Layout, seen: Seen) -> dict[str, str]:
    """Allocations of `layout` that their holders can use now, with the MIG UUID ("" for a whole GPU)."""
    if not readable(layout, seen):
        return {}
    uuids = {(i.start, i.size): i.mig_uuid for i in seen.instances or () if i.owned}
    found = {}
    for one in layout.held:
        uuid = uuids.get((one.start, one.size)) if layout.mig else ""
        if one.allocation in seen.held and uuid is not None:
            found[one.allocation] = text(uuid, 96)
    return found


def gone(allocations: Collection[str], generation: int, seen: Seen) -> set[str]:
    """Those of `allocations` (none of them wanted) of which nothing is left on the GPU.

    Only once the agent has dealt with the newest generation: before, an older
    command may still be on its way. A whole GPU or a share leaves nothing but
    processes: its own, and those of nobody known as long as nobody else holds the GPU.
    """
    dealt_with = seen.generation >= generation or (
        seen.trouble is not None and seen.trouble.generation >= generation
    )
    if not dealt_with or seen.lost or seen.unsure or _unread(seen) or (not seen.held and _computing(seen)):
        return set()
    left = {i.allocation for i in seen.instances or () if i.owned}
    left |= {process.allocation for process in _computing(seen)}
    return {one for one in allocations if one not in seen.held and one not in left}


def _unread(seen: Seen) -> bool:
    """Whether it is not known which instances there are."""
    return seen.instances is None and seen.mig is not False


def _computing(seen: Seen) -> list[wire.Process]:
    """What runs on a GPU without MIG, but for the machine's own.

    Nothing is concluded from a driver that does not list processes.
    """
    return [] if seen.mig else [one for one in seen.processes or () if _counts(one)]


def _counts(process: wire.Process) -> bool:
    return process.computes and not process.system


def blockers(layout: wire.Layout | None, seen: Seen, *, ending: bool = False) -> Blockers | None:
    """What occupies the GPU without being an allocation; None when that could not be read.

    An instance that the agent did not make is foreign. An own one that is not
    wanted any more and that the driver does not give up is an overrun; so is
    the whole GPU when it is in use and no such instance explains it, or when
    something runs on it that is not for slices and that nobody is to have now.
    Whatever runs there and was never anybody's is foreign use; with `ending`,
    when a stay there is not over yet, it is held to be of that stay.
    """
    if seen.lost or _unread(seen):
        return None
    found: dict[tuple[int, int, str], str] = {}
    if seen.unsure:
        found[0, seen.grid, UNKNOWN] = "an instance that makes no sense was reported"
    for one in seen.instances or ():
        if not one.owned:
            found[one.start, one.size, FOREIGN] = text(one.profile or f"profile {one.profile_id}")
    if seen.trouble is not None and seen.trouble.code == "in_use":
        spans = [(i.start, i.size) for i in _leftover(layout, seen)] or [(0, seen.grid)]
        for start, size in spans:
            found[start, size, OVERRUN] = _named(seen.trouble.holders) or text(
                seen.trouble.detail or "in_use"
            )
    elif left := _nobodys(layout, seen):
        known = ending or any(process.allocation for process in left)
        found[0, seen.grid, OVERRUN if known else FOREIGN] = _named(left)
    return found


def _nobodys(layout: wire.Layout | None, seen: Seen) -> list[wire.Process]:
    """What runs on a GPU that is not for slices, and that nobody is to have now.

    Beside shares that are held only what was another's share counts: who else
    runs there cannot be told from their holders.
    """
    if layout is None or layout.mig:
        return []
    if not layout.held:
        return _computing(seen)
    wanted = _ids(layout)
    shared = layout.sharing is not None
    return [one for one in _computing(seen) if shared and one.allocation and one.allocation not in wanted]


def overruns(layout: wire.Layout | None, seen: Seen) -> list[tuple[int, int]]:
    """The spans (start, size) that are in use though a stay there is ending, and nobody is to have them."""
    found = blockers(layout, seen, ending=True) or {}
    return [(start, size) for start, size, kind in found if kind == OVERRUN]


def users(
    allocation: str,
    *,
    kind: str,
    instances: Iterable[wire.Instance] | None,
    processes: Iterable[wire.Process] | None,
) -> tuple[wire.Process, ...] | None:
    """What runs on this allocation: on its own instance ("mig"), on the whole GPU ("gpu"), or on its "share".

    The machine's own is left out. None: not known.
    """
    if kind == "mig":
        processes = next((one.processes for one in instances or () if one.allocation == allocation), None)
        return None if processes is None else tuple(one for one in processes if not one.system)
    if processes is None:
        return None
    whole = kind == "gpu"
    return tuple(one for one in processes if _counts(one) and (whole or one.allocation == allocation))


def held_up(users: Collection[wire.Process] | None, trouble: wire.Trouble | None, generation: int) -> bool:
    """Whether a span that is an overrun is one for this allocation, which is to go.

    Without a process of its own only the newest command says so: one before it was about another slice.
    """
    in_use = trouble is not None and trouble.code == "in_use" and trouble.generation >= generation
    return bool(users) or in_use


def nobody_left(layout: wire.Layout | None, seen: Seen) -> bool:
    """Whether own instances that are not wanted are still there, and known to have no process."""
    left = _leftover(layout, seen)
    return bool(left) and all(
        one.processes is not None and all(process.system for process in one.processes) for one in left
    )


def _leftover(layout: wire.Layout | None, seen: Seen) -> list[wire.Instance]:
    wanted = _ids(layout) if layout else set()
    kept = {(one.start, one.size) for one in layout.held if one.allocation in seen.held} if layout else set()
    return [
        i
        for i in seen.instances or ()
        if i.owned and i.allocation not in wanted and (i.start, i.size) not in kept
    ]


def _named(processes: Iterable[wire.Process]) -> str:
    return text(
        ", ".join(f"{p.name or 'process'} {p.pid}" + (f" of {p.user}" if p.user else "") for p in processes)
    )
