"""Why an ask does not fit, in numbers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pool.core import fleet as fleets
from pool.core.asks import Ask, GpuAsk, alternatives
from pool.core.fleet import BLOCKER, Bools, Fleet, of_views
from pool.core.period import Period
from pool.core.placement_field import Field, field
from pool.core.placement_room import GpuView, room
from pool.core.topology import without_imex


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What an ask could have instead of `asked` pieces.

    `free`: how many could be had together over the whole period. `offered`: how
    many the usable GPUs hold when nothing is booked. With `same_node` both are
    those of the best node. `counts`: every GPU once, by the first that keeps it
    out: node, no_such_model, wrong_use, no_such_profile, no_such_sharing,
    not_enforced, too_small, memory_unknown; what makes it unusable (unknown,
    frozen, ...); blocked (only what is not booked is in the way), busy, media,
    limit, other_user, memory_full, compute_full, shares_full, other_mode,
    guaranteed_to_others (has room, but a guarantee of another team needs it);
    node_full (its node has too little cpu or memory left);
    imex_not_ready (has room, but its node reaches no other); same_node, other_domain, other_block
    (has room, but other places have more together); or room.
    """

    asked: int
    free: int
    offered: int
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


def shortfall(
    gpus: Fleet | Sequence[GpuView],
    ask: Ask,
    period: Period,
    *,
    account: str | None = None,
    now: datetime | None = None,
    without: UUID | None = None,
    barred: Bools | None = None,
) -> Shortfall:
    """Why `ask` does not fit; `free` >= `asked` exactly when it does. Of the alternatives the best one's.

    `barred`: see placement.candidates.
    """
    fleet = gpus if isinstance(gpus, Fleet) else of_views(gpus)
    fields = (
        field(fleet, one, period, now or period.start, account=account, without=without, barred=barred)
        for one in alternatives(ask)
    )
    return max((_short(one) for one in fields), key=lambda short: (short.free, short.offered))


def _short(here: Field) -> Shortfall:
    free = here.together
    best = int(free.argmax()) if len(free) else 0
    with_room = here.count > 0
    among = with_room & (here.reach.key == best)
    counts = Counter(here.words[code] for code in here.why[~with_room].tolist())
    for place in _only_blocked(here):
        counts[here.words[here.why[place]]] -= 1
        counts["blocked"] += 1
    counts["room"] = int(among.sum())
    elsewhere = with_room & ~among
    if isinstance(here.ask, GpuAsk) and here.ask.same_nvlink_domain:
        alone = elsewhere & without_imex(here.fleet)
        counts["imex_not_ready"] = int(alone.sum())
        elsewhere &= ~alone
    counts[_elsewhere(here.ask)] = int(elsewhere.sum())
    offered = here.reach_when_empty.together(here.offered)
    return Shortfall(
        here.ask.count,
        here.free,
        int(offered.max(initial=0)),
        {word: number for word, number in counts.items() if number},
    )


def _only_blocked(here: Field) -> Iterator[int]:
    """Places that would have room but for what is there without being booked."""
    rows = here.fleet.rows()
    for gpu_id in sorted(set(rows["gpu"][rows["blocker"]].tolist())):
        place = here.fleet.places[gpu_id]
        if here.count[place] or not here.offered[place]:
            continue
        gpu = here.fleet.view(gpu_id, fleets.instant(here.now) or here.period.start, here.period)
        booked = tuple(one for one in gpu.busy if one.tenancy != BLOCKER)
        if room(replace(gpu, busy=booked), here.sort_at(place).fit, here.period).why is None:
            yield place


def _elsewhere(ask: Ask) -> str:
    """What keeps a GPU out that has room, while others have more together."""
    if ask.same_node:
        return "same_node"
    linked = isinstance(ask, GpuAsk) and ask.same_nvlink_domain
    return "other_domain" if linked else "other_block"
