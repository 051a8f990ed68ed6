"""Which bookings of a large pool are worth a look when it is defragmented: where most stays free beside them.

What stays free beside a small booking, on its GPU or (of whole GPUs) on its node, is what
moving it could make whole again. An estimate to look at the best first; what a move really wins is
weighed in defrag.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np

from pool.core.fleet import CLASSES, USES, Fleet, Ints, micros, whole_id
from pool.core.fragmentation import Floats
from pool.core.period import Period
from pool.core.placement_room import Use
from pool.core.shapes import Class

#: So many bookings are looked at.
LOOKS = 32
_ONLINE = CLASSES.index(Class.ONLINE)
_WHOLE = USES.index(Use.WHOLE)
_HOUR = 3600 * 10**6


def worth_a_look(fleet: Fleet, period: Period, *, most: int = LOOKS) -> list[UUID]:
    """Bookings yet to start within the period, none online; those first beside which most stays free.

    In GPU-hours, each while it is there. The same fleet gives the same bookings.
    """
    start, end = micros(period.start), micros(period.end)
    on = fleet.on
    near = np.flatnonzero((on.start < end) & (on.end > start))
    rows = on.records(near)
    at, begin, until = on.at[near], np.maximum(on.start[near], start), np.minimum(on.end[near], end)
    size = _sizes(fleet, at, rows["mask"], rows["memory"])
    mine = np.flatnonzero(rows["moved"] & (rows["klass"] != _ONLINE) & (rows["since"] > start))
    if not len(mine):
        return []
    whole = fleet.use[at] == _WHOLE
    on_gpu = _free_beside(at, begin, until, size, np.ones(len(fleet.id)), mine)
    gpus = np.bincount(fleet.node, minlength=len(fleet.nodes)).astype(np.float64)
    on_node = _free_beside(fleet.node[at], begin, until, size, gpus, mine)
    free = np.where(whole[mine], on_node, on_gpu)
    ids, which = np.unique(rows["reservation"][mine], axis=0, return_inverse=True)
    score = np.bincount(which.ravel(), free, len(ids))
    order = np.lexsort((ids[:, 1], ids[:, 0], -score))[:most]
    return [whole_id(ids[n]) for n in order.tolist() if score[n] > 0]


def _sizes(fleet: Fleet, at: Ints, masks: Ints, memory: Ints) -> Floats:
    """What of a GPU each takes, 0 to 1."""
    part = np.bitwise_count(masks.view(np.uint64)).astype(np.float64) / np.maximum(fleet.grid[at], 1)
    share = memory / np.maximum(fleet.memory[at], 1)
    return np.asarray(np.minimum(np.where(memory > 0, share, part), 1.0))


def _free_beside(group: Ints, begin: Ints, until: Ints, size: Floats, room: Floats, mine: Ints) -> Floats:
    """For each of `mine` what stays free in its group while it is there, in GPU-hours."""
    order = np.lexsort((np.concatenate((begin, until)), np.concatenate((group, group))))
    whose = np.concatenate((group, group))[order]
    when = np.concatenate((begin, until))[order]
    level = np.cumsum(np.concatenate((size, -size))[order])
    # Each group comes back to 0, so that the level is that of its own; its integral up to each instant:
    lasts = np.diff(when, append=when[-1:])
    lasts[np.append(whose[1:] != whose[:-1], True)] = 0
    total = np.concatenate(([0.0], np.cumsum(level * lasts / _HOUR)))
    base = int(when.min())
    span = int(when.max()) - base + 1
    key = whose * span + (when - base)
    taken = [
        total[np.searchsorted(key, group[mine] * span + (times[mine] - base))] for times in (begin, until)
    ]
    hours = (until[mine] - begin[mine]) / _HOUR
    return np.asarray(np.maximum(hours * room[group[mine]] - (taken[1] - taken[0]), 0.0))
