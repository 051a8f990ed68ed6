"""Whether an ask has room when some reservations have gone: many such questions about one pool, fast.

Looks again only at the GPUs on which one of those who may go is. Who goes is decided in reclaim.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import numpy as np

from pool.core.asks import Ask, alternatives
from pool.core.fleet import USES, Bools, Fleet, Ints, micros
from pool.core.fleet_window import Window
from pool.core.period import Period
from pool.core.placement_field import Field, field, free_again
from pool.core.placement_mode import wide
from pool.core.placement_room import Use

_AUTO = USES.index(Use.AUTO)


def without(fleet: Fleet, gone: Collection[UUID], at: datetime) -> Fleet:
    """The fleet in which these reservations end at that instant, or never begin."""
    if not gone:
        return fleet
    rows = fleet.on.field("reservation", slice(None)).astype(np.int64).reshape(-1, 2)
    return replace(fleet, on=fleet.on.ended(_numbers(rows, list(gone)) >= 0, micros(at)))


def _numbers(rows: Ints, reservations: Sequence[UUID]) -> Ints:
    """Which of these each row (two halves of an id) is of; -1: of none."""
    if not reservations or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    known = np.frombuffer(b"".join(one.bytes for one in reservations), dtype=">i8").astype(np.int64)
    known = known.reshape(-1, 2)
    # The second half is random enough to find by; the first is compared.
    order = np.argsort(known[:, 1])
    at = np.minimum(np.searchsorted(known[order, 1], rows[:, 1]), len(known) - 1)
    found = order[at]
    return np.where((known[found] == rows).all(axis=1), found, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """One alternative of the ask: its field with everybody there, and what of that is looked at again.

    `whose` are the numbers of the stays, -1 of all others.
    """

    here: Field
    window: Window
    whose: Ints
    places: Bools
    near: Window | None
    near_whose: Ints


class Room:
    """The room for an ask over a period without some of these stays, each of one or more reservations.

    They leave at `at`, no later than the period begins. `near`: which of them are where the
    ask could be; the others make no difference.
    """

    def __init__(
        self,
        fleet: Fleet,
        ask: Ask,
        period: Period,
        now: datetime,
        at: datetime,
        stays: Sequence[Collection[UUID]],
        account: str | None = None,
    ) -> None:
        self._account = account
        self._count = ask.count
        self._links = [link for links in stays for link in links]
        self._stay_of = np.array([n for n, links in enumerate(stays) for _ in links], dtype=np.int64)
        window = fleet.window(period, now)
        whose = self._whose(window)
        fields = (field(fleet, one, period, now, account=account, window=window) for one in alternatives(ask))
        self._looks = [self._look(one, whose, at) for one in fields]
        self.near = np.zeros(len(stays), dtype=np.bool_)
        for look in self._looks:
            for those in (look.whose, look.near_whose):
                self.near[those[those >= 0]] = True

    def _look(self, here: Field, whose: Ints, at: datetime) -> _Look:
        window, fleet = here.window, here.fleet
        if not here.ask.node_cpu_milli and not here.ask.node_memory_mib:
            whose = np.where(here.offered[window.at] > 0, whose, -1)
        places = np.zeros(len(fleet.id), dtype=np.bool_)
        places[window.at[whose >= 0]] = True
        near, near_whose = None, np.zeros(0, dtype=np.int64)
        if (fleet.use == _AUTO).any():
            near = fleet.window(wide(here.period), at)
            near_whose = self._whose(near)
            # Until they leave they are in the way of a change of the mode.
            near_whose[(near.starts < micros(at)) & (near.start < micros(at))] = -1
            places[near.at[near_whose >= 0]] = True
        if here.ask.node_cpu_milli or here.ask.node_memory_mib:
            places[:] = True
        some = places[window.at]
        return _Look(here, window.part(some), whose[some], places, near, near_whose)

    def _whose(self, window: Window) -> Ints:
        """The number of the stay of each row, -1 of all others."""
        rows = window.fleet.on.field("reservation", window.which).astype(np.int64).reshape(-1, 2)
        found = _numbers(rows, self._links)
        return np.where(found >= 0, self._stay_of[found], -1) if self._links else found

    def fits(self, gone: Ints) -> bool:
        """Whether the ask has room without these stays, given by their numbers."""
        # One place more, for the rows of others: they stay.
        left = np.zeros(len(self.near) + 1, dtype=np.bool_)
        left[gone] = True
        return any(self._free(look, left) >= self._count for look in self._looks)

    def _free(self, look: _Look, left: Bools) -> int:
        near = None if look.near is None else look.near.part(~left[look.near_whose])
        window = look.window.part(~left[look.whose])
        return free_again(look.here, window, look.places, near=near, account=self._account)
