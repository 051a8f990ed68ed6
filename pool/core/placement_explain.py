"""Why an ask does not fit, in numbers, and when it would."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from uuid import UUID

from pool.core import fleet as fleets
from pool.core.asks import Ask, GpuAsk, alternatives
from pool.core.fleet import BLOCKER, Bools, Fleet, of_views
from pool.core.period import Period
from pool.core.placement_field import Field, field
from pool.core.placement_mode import SWITCH
from pool.core.placement_room import Fit, GpuView, Use, chosen, mismatch, room
from pool.core.topology import without_imex

#: Changes of the calendar that `first_time` looks at before it gives up.
_MAX_CHANGES = 20_000
_TICK = timedelta(microseconds=1)

#: (start, index of the GPU).
_Change = tuple[datetime, int]


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


def first_time(
    gpus: Sequence[GpuView], ask: Ask, period: Period, horizon: datetime, *, account: str | None = None
) -> datetime | None:
    """The earliest start from `period.start` to `horizon` at which `ask` fits for the same duration.

    An ask without end stays without end. None when there is no such start, or
    none within the first 20,000 changes of the calendar.
    """
    return min(
        (
            at
            for one in alternatives(ask)
            if (at := _first_time(gpus, one, period, horizon, account)) is not None
        ),
        default=None,
    )


def _first_time(
    gpus: Sequence[GpuView], ask: Ask, period: Period, horizon: datetime, account: str | None
) -> datetime | None:
    usable = [(gpu, chosen(gpu, ask, account)) for gpu in gpus if gpu.usable]
    fitting = [(gpu, fit) for gpu, fit in usable if mismatch(gpu, ask, fit) is None]
    fleet = of_views([gpu for gpu, _ in fitting])
    if special(ask, fleet):
        return _first_of_fields(fleet, ask, period, horizon, account, fitting)
    total: dict[int, int] = defaultdict(int)
    count = [0] * len(fitting)

    def look(i: int, start: datetime) -> None:
        gpu, fit = fitting[i]
        key = gpu.node_id if ask.same_node else 0
        total[key] -= count[i]
        count[i] = room(gpu, fit, _moved(period, start)).count
        total[key] += count[i]

    for i in range(len(fitting)):
        look(i, period.start)
    if max(total.values(), default=0) >= ask.count:
        return period.start
    by_instant: Callable[[_Change], datetime] = itemgetter(0)
    for instant, changed in groupby(_changes(fitting, period, horizon), key=by_instant):
        for _, i in changed:
            look(i, instant)
        if max(total.values(), default=0) >= ask.count:
            return instant
    return None


def _first_of_fields(
    fleet: Fleet,
    ask: Ask,
    period: Period,
    horizon: datetime,
    account: str | None,
    fitting: Sequence[tuple[GpuView, Fit]],
) -> datetime | None:
    """For asks that look at more than each GPU by itself: the whole pool at each change."""
    instants = [period.start, *dict.fromkeys(at for at, _ in _changes(fitting, period, horizon))]
    for at in instants:
        if field(fleet, ask, _moved(period, at), period.start, account=account).free >= ask.count:
            return at
    return None


def special(ask: Ask, fleet: Fleet) -> bool:
    """Whether it looks at more than what is on each GPU: nodes' resources, the tree, modes."""
    wide = isinstance(ask, GpuAsk) and (ask.same_nvlink_domain or ask.segment or any(fleet.blocks))
    on_nodes = bool(ask.spread or ask.node_cpu_milli or ask.node_memory_mib)
    return bool(wide) or on_nodes or any(card.use is Use.AUTO for card in fleet.cards)


def _moved(period: Period, start: datetime) -> Period:
    return Period(start, None if period.end is None else start + (period.end - period.start))


def _changes(fitting: Sequence[tuple[GpuView, Fit]], period: Period, horizon: datetime) -> list[_Change]:
    """The starts at which what is free of a GPU changes: where one of its bookings
    leaves the moving window, and where (one tick past touching) one enters it."""
    length = period.duration
    found = set()
    for i, (gpu, _) in enumerate(fitting):
        for b in gpu.busy:
            # A GPU of any use looks a little further than the booking itself.
            for margin in (timedelta(0), SWITCH) if gpu.use is Use.AUTO else (timedelta(0),):
                if b.period.end is not None:
                    found.add((b.period.end + margin, i))
                if length is not None:
                    found.add((b.period.start - length - margin + _TICK, i))
    return sorted(c for c in found if period.start < c[0] <= horizon)[:_MAX_CHANGES]
