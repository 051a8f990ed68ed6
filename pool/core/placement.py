"""Where an ask goes: candidates for a whole period, and checks of what was chosen.

The public face of placement. What is free is in placement_room (of one GPU) and
placement_field (of all), what it costs in placement_rate, the search in placement_choice,
refusals in placement_explain. It knows no quota.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np

from pool.core import shares
from pool.core.asks import Ask, alternatives
from pool.core.fleet import Bools, Fleet, micros, of_views, span_of
from pool.core.fleet_window import Window
from pool.core.mig import Profile, media_clash
from pool.core.period import Period
from pool.core.placement_choice import choose
from pool.core.placement_explain import Shortfall, shortfall
from pool.core.placement_field import Field, field
from pool.core.placement_mode import SWITCH, other_mode
from pool.core.placement_policy import NO_COST, Policy, Why, prior
from pool.core.placement_rate import Own
from pool.core.placement_room import Busy, GpuView, Use, during, serves, split
from pool.core.placement_search import Candidate, Pick
from pool.core.quota import peak
from pool.core.shares import Portion

__all__ = [
    "NO_COST",
    "SWITCH",
    "Busy",
    "Candidate",
    "Field",
    "GpuView",
    "Own",
    "Pick",
    "Policy",
    "Portion",
    "Shortfall",
    "Use",
    "Why",
    "candidates",
    "clash",
    "field",
    "held_by",
    "node_clash",
    "prior",
    "shortfall",
]


def candidates(
    gpus: Fleet | Sequence[GpuView],
    ask: Ask,
    period: Period,
    limit: int = 16,
    *,
    account: str | None = None,
    now: datetime | None = None,
    policy: Policy | None = None,
    own: Own = (),
    without: UUID | None = None,
    clean: bool = False,
    window: Window | None = None,
    avoid: Collection[str] = (),
    barred: Bools | None = None,
) -> list[Candidate]:
    """Up to `limit` placements of `ask`, best first; [] only when there is none.

    Every pick is free over the whole of `period` and all of one candidate fit
    together. First where the owner is already (`own`), then the smallest charge, then
    what costs least by `policy` (None: of a pool of which nothing is known); of one
    GPU model where possible. Independent of the order of `gpus`. `account`: whose MPS
    server a share would need, where a GPU has only one. `without` and `clean`: see
    Fleet.window, whose answer `window` is where that is known. `avoid` are models that are
    not to be taken, `barred` [places] GPUs that are kept for guarantees. `now` None is the
    start of the period.
    """
    fleet, now = gpus if isinstance(gpus, Fleet) else of_views(gpus), now or period.start
    how: dict[str, Any] = {"account": account, "without": without, "clean": clean, "window": window}
    how |= {"barred": barred}
    asks = alternatives(ask)
    fields = (field(fleet, one, period, now, avoid=avoid, **how) for one in asks)
    found = [one for here in fields for one in choose(here, policy or prior(), limit, own)]
    if len(asks) > 1:
        found.sort(key=lambda candidate: (not candidate.why.stays, candidate.charge_milli, candidate.cost))
    return found[: max(1, limit)]


def held_by(fleet: Fleet, owner: int, team: int, period: Period) -> Own:
    """Where somebody is until the period begins, or from its end on: there it goes on without a break."""
    on, start, end = fleet.on, micros(period.start), micros(period.end)
    near = np.flatnonzero((on.end >= start) & (on.start <= end))
    near = near[(on.field("owner", near) == owner) & (on.field("team", near) == team)]
    rows = on.records(near)
    touching = rows[(rows["until"] == start) | (rows["since"] == end)]
    return [(int(row["gpu"]), *span_of(row["mask"])) for row in touching]


def clash(gpus: Iterable[GpuView], picks: Iterable[Pick], period: Period) -> str | None:
    """Why these picks cannot be held over all of `period`; None when they can.

    `gpus` must not carry the picks' own reservation as busy. Words: gone (no
    such GPU), what makes it unusable, wrong_use, other_mode, no_such_placement,
    busy, media, limit, and of shares the ledger that is full (shares.room_for).
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
    use = _use_of(picks[0])
    if not serves(gpu, use) or any(_use_of(pick) is not use for pick in picks):
        return "wrong_use"
    if other_mode(gpu, use, period):
        return "other_mode"
    if portions:
        return _clash_of_shares(gpu, portions, there, period)
    taken = 0
    for b in there:
        taken |= ((1 << b.size) - 1) << b.start
    profiles = {p.profile_id: p for p in gpu.profiles}
    media = [b.media for b in there if b.media is not None]
    used: dict[int, int] = defaultdict(int)
    for pick in picks:
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


def node_clash(
    fleet: Fleet, picks: Iterable[Pick], period: Period, now: datetime, *, without: UUID | None = None
) -> str | None:
    """node_full when a node has too little cpu or memory for these picks over the period, else None.

    The fleet has to have all GPUs of the nodes.
    """
    wanted: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for pick in picks:
        if pick.cpu_milli or pick.ram_mib:
            node = wanted[int(fleet.node[fleet.places[pick.gpu_id]])]
            node[0] += pick.cpu_milli
            node[1] += pick.ram_mib
    if not wanted:
        return None
    cpu, ram = fleet.window(period, now, without=without).node_free
    pairs = (
        (left[node], most)
        for node, taken in wanted.items()
        for left, most in zip((cpu, ram), taken, strict=True)
    )
    # What nothing is wanted of may have run out: a node can become smaller than what is booked there.
    return "node_full" if any(most and left < most for left, most in pairs) else None


def _use_of(pick: Pick) -> Use:
    if pick.portion is not None:
        return Use.SHARE
    return Use.WHOLE if pick.profile is None else Use.MIG


def _clash_of_shares(
    gpu: GpuView, portions: Sequence[Portion], there: Sequence[Busy], period: Period
) -> str | None:
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
