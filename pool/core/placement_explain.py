"""Why an ask does not fit, in numbers, and when it would."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter

from pool.core import shares
from pool.core.mig import most
from pool.core.period import Period
from pool.core.placement_room import BLOCKER, Fit, GpuView, chosen, mismatch, packed, room, slots
from pool.core.shapes import Ask
from pool.core.shares import Portion

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
    limit, other_user, memory_full, compute_full, shares_full; same_node (has
    room, but another node has more); or room.
    """

    asked: int
    free: int
    offered: int
    counts: dict[str, int] = field(default_factory=dict)


def shortfall(gpus: Sequence[GpuView], ask: Ask, period: Period, *, account: str | None = None) -> Shortfall:
    """Why `ask` does not fit; `free` >= `asked` exactly when it does."""
    counts: Counter[str] = Counter()
    free: Counter[int] = Counter()
    offered: Counter[int] = Counter()
    with_room: Counter[int] = Counter()
    for gpu in gpus:
        fit = chosen(gpu, ask, account)
        why = mismatch(gpu, ask, fit) or _unusable(gpu)
        if why is not None:
            counts[why] += 1
            continue
        key = gpu.node_id if ask.same_node else 0
        offered[key] += _when_empty(gpu, fit)
        now = room(gpu, fit, period)
        if now.why is not None:
            counts["blocked" if _only_blocked(gpu, fit, period) else now.why] += 1
        else:
            free[key] += now.count
            with_room[key] += 1
    best = max(free, key=lambda key: (free[key], -key), default=0)
    counts["room"] = with_room[best]
    counts["same_node"] = sum(with_room.values()) - with_room[best]
    return Shortfall(
        ask.count, free[best], max(offered.values(), default=0), {k: n for k, n in counts.items() if n}
    )


def _unusable(gpu: GpuView) -> str | None:
    return None if gpu.usable else gpu.why or "unusable"


def _only_blocked(gpu: GpuView, fit: Fit, period: Period) -> bool:
    """Whether there would be room but for what is there without being booked."""
    booked = tuple(b for b in gpu.busy if b.tenancy != BLOCKER)
    return len(booked) < len(gpu.busy) and room(replace(gpu, busy=booked), fit, period).why is None


def _when_empty(gpu: GpuView, fit: Fit) -> int:
    if fit is None:
        return 1
    if isinstance(fit, Portion):
        return shares.room_for(fit, (), shares.ALWAYS, gpu.ledgers)[0]
    places = slots(fit.size, fit.starts, gpu.grid)
    return min(packed(places, (1 << gpu.grid) - 1), most(fit))


def first_time(
    gpus: Sequence[GpuView], ask: Ask, period: Period, horizon: datetime, *, account: str | None = None
) -> datetime | None:
    """The earliest start from `period.start` to `horizon` at which `ask` fits for the same duration.

    An ask without end stays without end. None when there is no such start, or
    none within the first 20,000 changes of the calendar.
    """
    usable = [(gpu, chosen(gpu, ask, account)) for gpu in gpus if gpu.usable]
    fitting = [(gpu, fit) for gpu, fit in usable if mismatch(gpu, ask, fit) is None]
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


def _moved(period: Period, start: datetime) -> Period:
    return Period(start, None if period.end is None else start + (period.end - period.start))


def _changes(fitting: Sequence[tuple[GpuView, Fit]], period: Period, horizon: datetime) -> list[_Change]:
    """The starts at which what is free of a GPU changes: where one of its bookings
    leaves the moving window, and where (one tick past touching) one enters it."""
    length = period.duration
    found = set()
    for i, (gpu, _) in enumerate(fitting):
        for b in gpu.busy:
            if b.period.end is not None:
                found.add((b.period.end, i))
            if length is not None:
                found.add((b.period.start - length + _TICK, i))
    return sorted(c for c in found if period.start < c[0] <= horizon)[:_MAX_CHANGES]
