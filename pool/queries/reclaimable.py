"""What of one reservation may be taken back, and when: what its team borrows for it, as things stand."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from pool.core.admission import Loan
from pool.core.borrowing import borrowed_spans
from pool.core.fleet_rows import halves, instant, micros
from pool.core.period import Period
from pool.core.states import HOLDING
from pool.models import Reservation
from pool.queries import fleets, standing


def of(row: Reservation, now: datetime) -> tuple[Loan, ...]:
    """From now to its end, in order of time; () for what is firm, over, or within its guarantee.

    It changes when others of the team come and go: this is as it is now.
    """
    end = row.recall_at or row.period.upper
    if not row.preemptible or row.state not in HOLDING or (end is not None and end <= now):
        return ()
    within = Period(max(now, row.period.lower), end)
    where = standing.of(row.pool_id, fleets.current(row.pool_id), within)
    spans = borrowed_spans(where, micros(within.start), micros(within.end))
    mine = (where.uses.reservation[spans.which] == halves(row.pk)).all(axis=1) & (spans.milli > 0)
    edges = np.unique(np.concatenate((spans.since[mine], spans.until[mine])))
    found: list[Loan] = []
    for start, until in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        there = mine & (spans.since <= start) & (spans.until >= until)
        milli = int(spans.milli[there].sum())
        if milli:
            found.append(Loan(_period(start, until), milli, "others"))
    return tuple(found)


def _period(since: int, until: int) -> Period:
    start = instant(since)
    assert start is not None
    return Period(start, instant(until))
