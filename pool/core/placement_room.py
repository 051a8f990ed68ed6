"""What one GPU has free for an ask over a period, and what taking it would spoil.

Spans are bit masks over the memory slices of the GPU's own grid. Choosing
among GPUs is done in placement_search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property, lru_cache

from pool.core import shares
from pool.core.mig import Media, Profile, media_clash, smallest, takes_media
from pool.core.period import Period
from pool.core.quota import WHOLE, peak
from pool.core.shapes import Ask, GpuAsk, MigAsk, ShareAsk, Sharing
from pool.core.shares import Ledgers, Portion, There

#: (start, mask) of one possible placement.
Slot = tuple[int, int]


class Use(StrEnum):
    """What the operator gives a GPU for."""

    MIG = "mig"
    WHOLE = "whole"
    SHARE = "share"


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
    has its `portion`, and takes from the ledgers instead of the span.
    """

    start: int
    size: int
    period: Period
    media: Media | None
    tenancy: str
    profile_id: int | None = None
    portion: Portion | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as placement sees it. `why` says what makes it not `usable`
    (unknown, frozen, observe, lost, retired, ...). `memory_mib` None: not known.
    The last three are of a GPU for shares: how they are kept apart, how many
    the pool allows, and whether all have to be one account's.
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

    @property
    def shareable_mib(self) -> int:
        return shares.shareable_mib(self.memory_mib or 0)

    @property
    def ledgers(self) -> Ledgers:
        most = shares.most_tenants(self.sharing, self.most_shares)
        return Ledgers(self.shareable_mib, most, self.one_user)


class Geometry:
    """The plain placements of a grid, and what they are worth together.

    The worth of a set of free slices is the sum over the placements in it of
    their share of the GPU, so that every profile size weighs about the same:
    the prior that all are asked equally often. What a placement spoils is the
    worth that goes with it.
    """

    def __init__(self, grid: int, shapes: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
        self.weighed = [
            (mask, WHOLE * size // grid) for size, starts in shapes for _, mask in slots(size, starts, grid)
        ]
        self._worth: dict[int, int] = {}

    def worth(self, free: int) -> int:
        known = self._worth.get(free)
        if known is None:
            if len(self._worth) > 1 << 13:  # only reached by grids beyond 12
                self._worth.clear()
            known = sum(weight for mask, weight in self.weighed if mask & free == mask)
            self._worth[free] = known
        return known


_geometry = lru_cache(maxsize=256)(Geometry)


def geometry(gpu: GpuView) -> Geometry:
    """The geometry of the GPU's plain profiles (own media share, no graphics)."""
    shapes = tuple((p.size, p.starts) for p in gpu.profiles if p.media is Media.DEFAULT and not p.gfx)
    return _geometry(gpu.grid, shapes)


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
    #: A `+me.all` instance is there: only `-me` profiles can follow, so nothing else is spoilt.
    media_gone: bool = False
    portion: Portion | None = None
    #: Of a GPU for shares, what is left when one more is there: memory and compute, in thousandths.
    spare: int = 0

    @property
    def order(self) -> tuple[str, int, int]:
        return (self.gpu.node, self.gpu.index, self.gpu.id)

    @cached_property
    def geometry(self) -> Geometry:
        return geometry(self.gpu)

    def spoilt(self, free: int, mask: int) -> int:
        """What taking `mask` out of `free` takes from others, in thousandths of GPUs of placements."""
        if self.media_gone:
            return 0
        rest = 0
        if self.profile is not None and self.profile.media is not Media.ALL:
            rest = self.geometry.worth(free & ~mask)
        return self.geometry.worth(free) - rest


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


def mismatch(gpu: GpuView, ask: Ask, fit: Fit) -> str | None:
    """Why this GPU is out of the question at any time; None when it is not.

    `fit` is what `chosen` gave for it. Words: node, no_such_model, wrong_use,
    no_such_profile, no_such_sharing, not_enforced, too_small, memory_unknown.
    """
    if ask.node is not None and gpu.node != ask.node:
        return "node"
    if ask.models and gpu.model not in ask.models:
        return "no_such_model"
    if gpu.use is not _USE_FOR[type(ask)]:
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
        media_gone=any(b.media is Media.ALL for b in there),
    )


def split(there: Sequence[Busy]) -> tuple[list[There], bool]:
    """The shares among what is there, and whether something else is, too."""
    found = [(b.period, b.portion) for b in there if b.portion is not None]
    return found, len(found) < len(there)


def _share_room(gpu: GpuView, portion: Portion, there: Sequence[Busy], period: Period) -> Room:
    full, ledgers = (1 << gpu.grid) - 1, gpu.ledgers
    beside, other = split(there)
    used = shares.peaks(beside, period)
    count, why = (0, "busy") if other else shares.room_for(portion, beside, period, ledgers, used)
    memory = ledgers.memory_mib - used.memory_mib - portion.memory_mib
    compute = ledgers.compute_pct - used.compute_pct - portion.compute_pct
    spare = WHOLE * memory // ledgers.memory_mib + WHOLE * compute // ledgers.compute_pct
    return Room(gpu, None, full, ((0, full),), count, why, portion=portion, spare=spare)


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
