"""What one GPU has free for an ask over a period.

Spans are bit masks over the memory slices of the GPU's own grid. The same of all
GPUs at once is in placement_field; choosing among them is done in placement_search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from pool.core import shares
from pool.core.mig import Media, Profile, media_clash, smallest, takes_media
from pool.core.period import Period
from pool.core.quota import peak
from pool.core.shapes import Ask, GpuAsk, MigAsk, ShareAsk, Sharing
from pool.core.shares import Ledgers, Portion, There

#: (start, mask) of one possible placement.
Slot = tuple[int, int]


class Use(StrEnum):
    """What the operator gives a GPU for."""

    MIG = "mig"
    WHOLE = "whole"
    SHARE = "share"
    #: Whatever is asked, one mode at a time (placement_mode).
    AUTO = "auto"


#: `Busy.tenancy` of what is there without being booked.
BLOCKER = "blocker"

#: What an ask gets on one GPU: a profile, a portion, or (None) the whole of it.
Fit = Profile | Portion | None

_USE_FOR = {MigAsk: Use.MIG, GpuAsk: Use.WHOLE, ShareAsk: Use.SHARE}


@dataclass(frozen=True, slots=True)
class Busy:
    """A span that is taken over a period: an allocation, or (open-ended) a blocker.

    `media` None: takes part in no media rule. `profile_id` counts towards the
    most that the profile allows; None: not an instance, or not known. A share
    has its `portion`, and takes from the ledgers instead of the span. `cpu_milli` and
    `ram_mib` are what it takes of its node beside the GPU.
    """

    start: int
    size: int
    period: Period
    media: Media | None
    tenancy: str
    profile_id: int | None = None
    portion: Portion | None = None
    cpu_milli: int = 0
    ram_mib: int = 0


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as placement sees it. `why` says what makes it not `usable`
    (unknown, frozen, observe, lost, retired, ...). `memory_mib` None: not known.
    `sharing`, `most_shares` and `one_user` are of a GPU for shares: how they are kept
    apart, how many the pool allows, and whether all have to be one account's.

    Of its node: the `block` in which it stands, the NVLink `domain` ("": the node is
    one), the state of its `imex`, and what it has of cpu and memory (None: not known).
    `mig_now`: the mode it is in. `links`: (UUID of a GPU, "" a switch; NVLinks).
    """

    id: int
    uuid: str
    node_id: int
    node: str
    index: int
    model: str
    memory_mib: int | None
    use: Use
    grid: int
    profiles: tuple[Profile, ...]
    busy: tuple[Busy, ...]
    usable: bool = True
    why: str | None = None
    sharing: Sharing | None = None
    most_shares: int = 0
    one_user: bool = False
    block: str = ""
    domain: str = ""
    imex: str = ""
    cpu_milli: int | None = None
    ram_mib: int | None = None
    mig_now: bool | None = None
    mig_capable: bool | None = None
    numa: int | None = None
    links: tuple[tuple[str, int], ...] = ()

    @property
    def shareable_mib(self) -> int:
        return shares.shareable_mib(self.memory_mib or 0)

    @property
    def ledgers(self) -> Ledgers:
        most = shares.most_tenants(self.sharing, self.most_shares)
        return Ledgers(self.shareable_mib, most, self.one_user)


@lru_cache(maxsize=1024)
def slots(size: int, starts: tuple[int, ...], grid: int) -> tuple[Slot, ...]:
    """The placements of a profile that lie on the grid, in order of their start."""
    ones = (1 << size) - 1
    return tuple((s, ones << s) for s in sorted(starts) if s + size <= grid)


def packed(free_slots: Sequence[Slot], free: int) -> int:
    """How many of these slots, all of one size and in order, fit into `free` together."""
    count = 0
    for _, mask in free_slots:
        if mask & free == mask:
            count += 1
            free &= ~mask
    return count


@dataclass(frozen=True, eq=False)
class Room:
    """What is free on `gpu` over a whole period for instances of `profile`, for shares, or as a whole.

    `count` of them fit together; when it is 0 `why` is busy, media, limit, or
    which ledger of the shares is full.
    """

    gpu: GpuView
    profile: Profile | None
    free: int
    slots: tuple[Slot, ...]
    count: int
    why: str | None
    #: Some slots overlap one another, so that a careless choice would waste a place.
    crossing: bool = False
    portion: Portion | None = None


def chosen(gpu: GpuView, ask: Ask, account: str | None = None) -> Fit:
    """What this ask gets on this GPU: the named profile, else the smallest fitting one; a portion of it.

    `account` is whose MPS server a share would need. None: nothing fits, or the whole GPU is asked.
    """
    if isinstance(ask, GpuAsk):
        return None
    if isinstance(ask, ShareAsk):
        if gpu.one_user and account is None:
            raise ValueError("a share of this GPU belongs to an account")
        return shares.portion(ask, gpu.shareable_mib, account if gpu.one_user else None)
    if ask.profile is None:
        return smallest(gpu.profiles, ask.memory_mib, ask.compute_slices)
    named = next((p for p in gpu.profiles if p.name == ask.profile), None)
    return None if named is None or _lacks(named, ask) else named


def use_for(ask: Ask) -> Use:
    """The use that this ask needs."""
    return _USE_FOR[type(ask)]


def serves(gpu: GpuView, use: Use) -> bool:
    """Whether the GPU is given for this use, or can be at times."""
    if gpu.use is not Use.AUTO:
        return gpu.use is use
    if use is Use.MIG:
        return bool(gpu.mig_capable)
    return use is Use.WHOLE or gpu.sharing is not None


def mismatch(gpu: GpuView, ask: Ask, fit: Fit) -> str | None:
    """Why this GPU is out of the question at any time; None when it is not.

    `fit` is what `chosen` gave for it. Words: node, no_such_model, wrong_use,
    no_such_profile, no_such_sharing, not_enforced, too_small, memory_unknown.
    """
    if ask.node is not None and gpu.node != ask.node:
        return "node"
    return unfit(gpu, ask, fit)


def unfit(gpu: GpuView, ask: Ask, fit: Fit) -> str | None:
    """`mismatch` of GPUs on any node."""
    if ask.models and gpu.model not in ask.models:
        return "no_such_model"
    if not serves(gpu, use_for(ask)):
        return "wrong_use"
    if isinstance(ask, GpuAsk):
        return _below(gpu.memory_mib, ask.memory_mib)
    if isinstance(ask, ShareAsk):
        return _unsharable(gpu, ask, fit)
    if fit is not None:
        return None
    if ask.profile is None:
        lacking = [_lacks(p, ask) for p in gpu.profiles if p.media is Media.DEFAULT and not p.gfx]
    else:
        lacking = [_lacks(p, ask) for p in gpu.profiles if p.name == ask.profile]
    if "memory_unknown" in lacking:
        return "memory_unknown"
    return "too_small" if lacking else "no_such_profile"


def _unsharable(gpu: GpuView, ask: ShareAsk, fit: Fit) -> str | None:
    if ask.sharing not in (None, gpu.sharing):
        return "no_such_sharing"
    if gpu.sharing is Sharing.TIMESLICE and not ask.accept_not_enforced:
        return "not_enforced"
    if gpu.memory_mib is None:
        return "memory_unknown"
    return "too_small" if fit is None else None


def _lacks(profile: Profile, ask: MigAsk) -> str | None:
    if ask.compute_slices is not None and profile.compute_slices < ask.compute_slices:
        return "too_small"
    return _below(profile.memory_mib, ask.memory_mib)


def _below(memory_mib: int | None, least: int | None) -> str | None:
    if least is None:
        return None
    if memory_mib is None:
        return "memory_unknown"
    return "too_small" if memory_mib < least else None


def during(busy: Sequence[Busy], start: datetime, end: datetime | None) -> list[Busy]:
    """What is busy at some instant of [start, end); `Period.overlaps`, inlined for speed."""
    if end is None:
        return [b for b in busy if b.period.end is None or b.period.end > start]
    return [b for b in busy if b.period.start < end and (b.period.end is None or b.period.end > start)]


def room(gpu: GpuView, fit: Fit, period: Period) -> Room:
    """What is free of a matching GPU over all of `period`."""
    there = during(gpu.busy, period.start, period.end)
    if isinstance(fit, Portion):
        return _share_room(gpu, fit, there, period)
    full = (1 << gpu.grid) - 1
    if fit is None:
        return Room(gpu, None, full, ((0, full),), 0 if there else 1, "busy" if there else None)
    return _slice_room(gpu, fit, there, period)


def _slice_room(gpu: GpuView, profile: Profile, there: Sequence[Busy], period: Period) -> Room:
    free = (1 << gpu.grid) - 1
    for b in there:
        free &= ~(((1 << b.size) - 1) << b.start)
    possible = tuple(s for s in slots(profile.size, profile.starts, gpu.grid) if s[1] & free == s[1])
    fit = packed(possible, free)
    limit, why = _limit(profile, there, period, fit)
    count = min(limit, fit)
    return Room(
        gpu=gpu,
        profile=profile,
        free=free,
        slots=possible,
        count=count,
        why=None if count else why or "busy",
        crossing=fit != len(possible),
    )


def split(there: Sequence[Busy]) -> tuple[list[There], bool]:
    """The shares among what is there, and whether something else is, too."""
    found = [(b.period, b.portion) for b in there if b.portion is not None]
    return found, len(found) < len(there)


def _share_room(gpu: GpuView, portion: Portion, there: Sequence[Busy], period: Period) -> Room:
    full = (1 << gpu.grid) - 1
    beside, other = split(there)
    count, why = (0, "busy") if other else shares.room_for(portion, beside, period, gpu.ledgers)
    return Room(gpu, None, full, ((0, full),), count, why, portion=portion)


def _limit(profile: Profile, there: Sequence[Busy], period: Period, fit: int) -> tuple[int, str | None]:
    """How many more instances the rules allow beside what is there, wherever they lie."""
    if any(b.media is not None and media_clash(profile.media, b.media) for b in there):
        return 0, "media"
    limit = profile.max_instances
    same = [b for b in there if b.profile_id == profile.profile_id]
    if len(same) + fit > limit:
        limit -= peak(((b.period, 1) for b in same), period)
    if takes_media(profile):
        limit = min(limit, 1)
    return (limit, None) if limit > 0 else (0, "limit")
