"""Where an ask goes: candidates for a whole period, and checks of what was chosen.

The public face of placement; what is free on a GPU is in placement_room, the
search in placement_search, refusals in placement_explain. It knows no quota.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pool.core import shares
from pool.core.mig import Profile, media_clash
from pool.core.period import Period
from pool.core.placement_explain import Shortfall, first_time, shortfall
from pool.core.placement_room import Busy, GpuView, Use, chosen, during, mismatch, room, split
from pool.core.placement_search import Candidate, Pick, search
from pool.core.quota import peak
from pool.core.shapes import Ask
from pool.core.shares import Portion

__all__ = [
    "Busy",
    "Candidate",
    "GpuView",
    "Pick",
    "Portion",
    "Shortfall",
    "Use",
    "candidates",
    "clash",
    "first_time",
    "shortfall",
]


def candidates(
    gpus: Sequence[GpuView], ask: Ask, period: Period, limit: int = 16, *, account: str | None = None
) -> list[Candidate]:
    """Up to `limit` placements of `ask`, best first; [] only when there is none.

    Every pick is free over the whole of `period` and all of one candidate fit
    together. Smallest charge first, then what spoils least for others; of one
    GPU model where possible. Independent of the order of `gpus`. `account`: whose
    MPS server a share would need, where a GPU has only one.
    """
    rooms = []
    for gpu in gpus:
        if not gpu.usable:
            continue
        fit = chosen(gpu, ask, account)
        if mismatch(gpu, ask, fit) is None:
            rooms.append(room(gpu, fit, period))
    return search(rooms, ask.count, ask.same_node, limit)


def clash(gpus: Iterable[GpuView], picks: Iterable[Pick], period: Period) -> str | None:
    """Why these picks cannot be held over all of `period`; None when they can.

    `gpus` must not carry the picks' own reservation as busy. Words: gone (no
    such GPU), what makes it unusable, wrong_use, no_such_placement, busy,
    media, limit, and of shares the ledger that is full (shares.room_for).
    """
    views = {gpu.id: gpu for gpu in gpus}
    by_gpu: dict[int, list[Pick]] = defaultdict(list)
    for pick in picks:
        by_gpu[pick.gpu_id].append(pick)
    for gpu_id, on_gpu in by_gpu.items():
        gpu = views.get(gpu_id)
        why = "gone" if gpu is None else _clash_on(gpu, on_gpu, period)
        if why is not None:
            return why
    return None


def _clash_on(gpu: GpuView, picks: Sequence[Pick], period: Period) -> str | None:
    if not gpu.usable:
        return gpu.why or "unusable"
    there = during(gpu.busy, period.start, period.end)
    portions = [pick.portion for pick in picks if pick.portion is not None]
    if gpu.use is Use.SHARE or portions:
        return _clash_of_shares(gpu, portions, there, period) if len(portions) == len(picks) else "wrong_use"
    taken = 0
    for b in there:
        taken |= ((1 << b.size) - 1) << b.start
    profiles = {p.profile_id: p for p in gpu.profiles}
    media = [b.media for b in there if b.media is not None]
    used: dict[int, int] = defaultdict(int)
    for pick in picks:
        if gpu.use is not (Use.WHOLE if pick.profile is None else Use.MIG):
            return "wrong_use"
        mask = ((1 << pick.size) - 1) << pick.start
        if mask & taken or (pick.profile is None and taken):
            return "busy"
        taken |= mask
        if pick.profile is None:
            continue
        profile = profiles.get(pick.profile.profile_id)
        if profile is None or pick.start not in profile.starts or pick.size != profile.size:
            return "no_such_placement"
        if any(media_clash(profile.media, other) for other in media):
            return "media"
        media.append(profile.media)
        used[profile.profile_id] += 1
    return _over_limit(profiles, used, there, period)


def _clash_of_shares(
    gpu: GpuView, portions: Sequence[Portion], there: Sequence[Busy], period: Period
) -> str | None:
    if gpu.use is not Use.SHARE:
        return "wrong_use"
    beside, other = split(there)
    return "busy" if other else shares.overflow(portions, beside, period, gpu.ledgers)


def _over_limit(
    profiles: dict[int, Profile], used: dict[int, int], there: Sequence[Busy], period: Period
) -> str | None:
    for profile_id, count in used.items():
        beside = peak(((b.period, 1) for b in there if b.profile_id == profile_id), period)
        if beside + count > profiles[profile_id].max_instances:
            return "limit"
    return None
