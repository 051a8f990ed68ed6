"""The largest of the same kind that fits where an ask does not: fewer pieces, a smaller slice or share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pool.core.asks import Ask, GpuAsk, MigAsk, ShareAsk
from pool.core.fleet import Fleet
from pool.core.mig import Media, Profile

GIB = 1024

#: How many pieces of an ask can be had together.
Free = Callable[[Ask], int]


def largest(fleet: Fleet, ask: Ask, free: Free) -> Ask | None:
    """What fits instead of `ask`; None when nothing of its kind does.

    Fewer pieces before smaller ones: a piece is what its work needs. Of MIG the largest smaller
    profile (with its own media share, without graphics), of shares as many GiB as there are.
    """
    fewer = _fewer(ask, free)
    if fewer is not None:
        return fewer
    return next((one for one in _smaller(fleet, ask, free) if free(one) >= one.count), None)


def _fewer(ask: Ask, free: Free) -> Ask | None:
    """Fewer pieces of the same; what fits one block may not cross, as the whole did: it is looked at anew."""
    left = min(free(ask), ask.count)
    while left:
        one = _of(ask, left)
        fits = free(one)
        if fits >= one.count:
            return one
        left = min(fits, one.count - 1)
    return None


def _of(ask: Ask, count: int) -> Ask:
    """A segment that is larger than the whole is the whole."""
    if isinstance(ask, GpuAsk) and ask.segment is not None and count % ask.segment:
        count = count // ask.segment * ask.segment or count
    return replace(ask, count=count)


def _smaller(fleet: Fleet, ask: Ask, free: Free) -> Iterator[Ask]:
    """Asks for one piece or as many as before, each smaller than those before it."""
    if isinstance(ask, MigAsk):
        plain = replace(ask, profile=None, profile_any=(), memory_mib=None, compute_slices=None)
        for profile in _profiles(fleet, ask):
            for count in dict.fromkeys((ask.count, 1)):
                yield replace(plain, profile=profile.name, count=count)
    elif isinstance(ask, ShareAsk) and ask.memory_mib is not None:
        low = _most_gib(ask, free)
        if low:
            yield replace(ask, memory_mib=low * GIB, count=1)


def _profiles(fleet: Fleet, ask: MigAsk) -> list[Profile]:
    """Plain profiles that are smaller than what is asked, the largest first, each name once."""
    known = {p.name: p for _, profiles in fleet.geometries for p in profiles}
    names = ask.profile_any or ((ask.profile,) if ask.profile else ())
    asked = [known[name] for name in names if name in known]
    most = min(((p.size, p.compute_slices) for p in asked), default=None)
    if most is None:
        enough = [p for p in known.values() if _is_enough(p, ask)]
        most = min(((p.size, p.compute_slices) for p in enough), default=(1 << 30, 0))
    plain = [p for p in known.values() if p.media is Media.DEFAULT and not p.gfx]
    less = [p for p in plain if (p.size, p.compute_slices) < most]
    return sorted(less, key=lambda p: (-p.size, -p.compute_slices, p.name))


def _is_enough(profile: Profile, ask: MigAsk) -> bool:
    memory = ask.memory_mib is None or (profile.memory_mib or 0) >= ask.memory_mib
    return memory and profile.compute_slices >= (ask.compute_slices or 0)


def _most_gib(ask: ShareAsk, free: Free) -> int:
    """The most whole GiB of one share that fits, below what was asked."""
    low, high = 0, -(-(ask.memory_mib or 0) // GIB)
    while high - low > 1:
        middle = (low + high) // 2
        fits = free(replace(ask, memory_mib=middle * GIB, count=1)) > 0
        low, high = (middle, high) if fits else (low, middle)
    return low
