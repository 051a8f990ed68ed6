"""What others keep, against a booking that is within its own guarantee: borrowed is never more than lent.

Where some borrow what a team lends, and that team asks for it, the free part may be what a third team
keeps for itself. Who lends waits for a recall then; who keeps does not. Amounts in milli.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pool.core.borrowing import borrowed_spans
from pool.core.fleet_rows import micros
from pool.core.lending import keeps, room
from pool.core.period import Period

if TYPE_CHECKING:
    from pool.core.standing import Standing


def takes_kept(standing: Standing, team: int, charges: Mapping[str, int], period: Period) -> bool:
    """Whether these would take what others keep for themselves at a time at which some still borrow there.

    Of a booking within its own guarantee: it lends, and so it may have to wait for a recall; who keeps
    what is guaranteed to it does not. Only work that the team may take back counts as borrowed.
    """
    start, end = micros(period.start), micros(period.end)
    if not keeps(standing, team, start, end):
        return False
    found = room(standing, team, start, end)
    wanted = np.array([charges.get(model, 0) for model in standing.charter.models], dtype=np.int64)
    wanted = np.append(wanted, wanted.sum())
    left, claimed = np.hsplit(found.level, 2)
    short = (left < wanted) & (wanted > 0) & (claimed > 0)
    if not short.any():
        return False
    until = np.append(found.time[1:], end)
    spans = borrowed_spans(standing, start, end, team)
    some = (spans.milli > 0) & ~standing.uses.firm[spans.which]
    since, ends, model = spans.since[some], spans.until[some], standing.uses.model[spans.which[some]]
    for at in np.flatnonzero(short.any(axis=1)).tolist():
        there = (since < until[at]) & (ends > found.time[at])
        if (short[at, -1] and there.any()) or short[at, model[there]].any():
            return True
    return False
