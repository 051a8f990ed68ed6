"""A fleet on which something is that nobody has booked yet: what was just given, or is kept for somebody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np

from pool.core.fleet import CLASSES, MEDIA, ROW, Fleet, halves, masks, micros
from pool.core.period import Period
from pool.core.placement_mode import SWITCH
from pool.core.placement_search import Pick


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose it would be, as quota and priority look at it (fleet_rows.ROW)."""

    reservation: UUID
    team: int
    created: datetime
    owner: int = 0
    klass: str = "batch"
    firm: bool = False
    priority: int = 50


def supposing(fleet: Fleet, picks: Sequence[Pick], period: Period, whose: Owner) -> Fleet:
    """The fleet with these picks on it; a GPU that has to change its mode is blocked for that, too."""
    known = _with_accounts(fleet, picks)
    numbers = {name: number for number, name in known.accounts.items()}
    rows = np.zeros(len(picks), dtype=ROW)
    for row, pick in zip(rows, picks, strict=True):
        _fill(row, pick, numbers)
    start, end = micros(period.start), micros(period.end)
    switch = np.array([pick.switch for pick in picks], dtype=np.bool_)
    rows["since"], rows["until"], rows["end"] = start, end, end
    rows["start"] = np.where(switch, micros(period.start - SWITCH), start)
    rows["reservation"] = halves(whose.reservation)
    rows["team"], rows["owner"], rows["created"] = whose.team, whose.owner, micros(whose.created)
    rows["klass"], rows["firm"], rows["priority"] = CLASSES.index(whose.klass), whose.firm, whose.priority
    rows["moved"] = True
    places = np.unique([known.places[pick.gpu_id] for pick in picks])
    there = known.rows(places)
    return known.updated([known.cards[place] for place in places.tolist()], np.concatenate((there, rows)))


def _fill(row: Any, pick: Pick, accounts: dict[str, int]) -> None:
    row["gpu"], row["charge"] = pick.gpu_id, pick.charge_milli
    row["mask"] = masks(np.array([pick.start]), np.array([pick.size]))[0]
    row["cpu"], row["ram"] = pick.cpu_milli, pick.ram_mib
    row["profile"] = -1 if pick.profile is None else pick.profile.profile_id
    row["media"] = 0 if pick.profile is None else MEDIA.index(pick.profile.media)
    if pick.portion is not None:
        portion = pick.portion
        row["memory"], row["compute"], row["limit"] = (
            portion.memory_mib,
            portion.compute_pct,
            portion.limit_pct,
        )
        row["account"] = accounts[portion.user] if portion.user else 0


def _with_accounts(fleet: Fleet, picks: Sequence[Pick]) -> Fleet:
    """Who has nothing on the fleet yet has no number either."""
    users = {pick.portion.user for pick in picks if pick.portion is not None and pick.portion.user}
    fresh = sorted(users - set(fleet.accounts.values()))
    if not fresh:
        return fleet
    first = max(fleet.accounts, default=0) + 1
    return replace(fleet, accounts={**fleet.accounts, **dict(enumerate(fresh, first))})
