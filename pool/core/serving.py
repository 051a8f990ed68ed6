"""Which GPU models could serve an ask, whatever is on them, and what one piece of it counts there."""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.core.asks import Ask, alternatives
from pool.core.fleet import Fleet
from pool.core.fleet_window import Window
from pool.core.openings import charge_of
from pool.core.period import Period
from pool.core.placement_field import field

_SOON = timedelta(minutes=1)


def serving(
    fleet: Fleet, ask: Ask, now: datetime, *, account: str | None = None, window: Window | None = None
) -> dict[str, int]:
    """GPU model -> the least that a piece counts there, in milli. {}: nothing in the pool could.

    `window`: of the fleet, any, where one is at hand; it spares a look at what is on the GPUs.
    """
    found: dict[str, int] = {}
    soon = Period(now, now + _SOON)
    for one in alternatives(ask):
        for sort in field(fleet, one, soon, now, account=account, window=window).sorts:
            if sort.why is None:
                charge = charge_of(sort)
                found[sort.gpu.model] = min(found.get(sort.gpu.model, charge), charge)
    return found
