"""What offers are found in: a pool as it is over a whole window, and what its team may book of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pool.core import openings, placement, quota
from pool.core.offers import Place, Search
from pool.core.period import Period
from pool.core.placement import Pick
from pool.core.quota import Line
from pool.core.shapes import Ask, Class
from pool.queries.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Sought:
    """`period` is the first for which a GPU would be blocked, `window` what all of them have to lie in."""

    ask: Ask
    period: Period
    window: Period
    klass: Class
    account: str | None


def search(snap: Snapshot, sought: Sought, place: Place) -> Search:
    """What core.offers looks through; `snap` is of the whole window, and `place` decides on it."""
    length = sought.period.duration
    assert length is not None
    found = openings.openings(
        snap.fleet, sought.ask, sought.period.start, length, now=snap.now, account=sought.account
    )

    def free(picks: Sequence[Pick], period: Period) -> bool:
        there = {pick.gpu_id for pick in picks}
        views = [snap.fleet.view(gpu_id, snap.now, period) for gpu_id in sorted(there)]
        return placement.clash(views, picks, period) is None

    return Search(found, sought.window, length, place, free, closed(snap, sought, found.charges))


def closed(snap: Snapshot, sought: Sought, charges: dict[str, int]) -> tuple[Period, ...]:
    """When the team's lines leave too little even for the GPU model that counts least.

    `charges`: of one piece by model. What this leaves open may still be above a line.
    """
    if not charges:
        return ()
    milli = sought.ask.count * min(charges.values())
    lines = [line for line in snap.lines if line.model is None or set(charges) == {line.model}]
    shut = [one for line in lines for one in quota.closed(line, _uses(snap, line), milli, sought.window)]
    if sought.klass is Class.ONLINE:
        firm = [Line(line.id, line.model, line.guaranteed_milli, line.guaranteed_milli) for line in lines]
        online = ((line, _uses(snap, line, Class.ONLINE)) for line in firm)
        shut += [one for line, uses in online for one in quota.closed(line, uses, milli, sought.window)]
    return tuple(sorted(shut, key=lambda period: period.start))


def _uses(snap: Snapshot, line: Line, klass: Class | None = None) -> list[tuple[Period, int]]:
    return [
        (use.period, use.milli)
        for use in snap.uses
        if line.model in (None, use.model) and klass in (None, use.klass)
    ]
