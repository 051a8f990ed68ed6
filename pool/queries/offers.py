"""What offers are found in: a pool as it is over a whole window, and what its team may book of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pool.core import openings, placement
from pool.core.closing import closed
from pool.core.offers import Place, Search
from pool.core.period import Period
from pool.core.placement import Pick
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
    team: int
    firm: bool


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
        if placement.clash(views, picks, period) is not None:
            return False
        return placement.node_clash(snap.fleet, picks, period, snap.now) is None

    shut: tuple[Period, ...] = ()
    if found.charges:
        # Even of the model that counts least.
        milli = sought.ask.count * min(found.charges.values())
        firm = sought.firm or sought.klass is Class.ONLINE
        shut = closed(snap.standing, sought.team, found.charges, milli, sought.window, firm=firm)
    return Search(found, sought.window, length, place, free, shut)
