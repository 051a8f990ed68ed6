"""From where teams stand to what their guarantees need on the GPUs, over one period.

What a guarantee leaves unused has to keep its place (guarantees); what is borrowed, and may be
taken back, does not stand in its way.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np

from pool.core.borrowing import borrowed_spans
from pool.core.fleet import Fleet
from pool.core.fleet_rows import micros
from pool.core.guarantees import UNITS, Claims, Guarantees, Takeable
from pool.core.period import Period
from pool.core.standing import UNITS as NAMES
from pool.core.standing import Standing, unused_steps

#: The numbers of units there, as they are counted here.
_UNIT = np.array([UNITS.index(str(name)) for name in NAMES], dtype=np.int64)


def to_others(
    fleet: Fleet,
    standing: Standing,
    team: int,
    period: Period,
    now: datetime,
    *,
    first_come: bool = True,
) -> Guarantees | None:
    """What has to keep its place beside a booking of `team` over `period`; None when nothing has to.

    `fleet` and `standing` are of the whole pool. Where more is promised than there is, who books
    gets what is left; not `first_come`: then it leaves that to the others.
    """
    claims = unused(standing, period)
    others = claims.but(team)
    if not len(others.milli):
        return None
    own = claims.of_team(team) if first_come else None
    return Guarantees(fleet, period, now, others, takeable(standing, period), own)


def unused(standing: Standing, period: Period) -> Claims:
    """What all teams are guaranteed and do not use, over the period."""
    steps = unused_steps(standing, period)
    return Claims(
        steps.team, steps.model, _UNIT[steps.unit], steps.size, steps.milli, steps.since, steps.until
    )


def takeable(standing: Standing, period: Period) -> Takeable:
    """What may be taken back over the period, and when: of what is borrowed all that is not firm."""
    spans = borrowed_spans(standing, micros(period.start), micros(period.end))
    soft = (spans.milli > 0) & ~standing.uses.firm[spans.which]
    return Takeable(standing.uses.row[spans.which[soft]], spans.since[soft], spans.until[soft])
