"""All of a pool at once: its GPUs in columns, and what is on them as rectangles in time.

A `Fleet` never changes: `updated` gives the next one, which shares what stayed as
it was. What is free over a period is in fleet_window; which GPU is taken is
decided in placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from pool.core.fleet_cards import (
    SHARINGS,
    USES,
    Bools,
    Card,
    Geometry,
    Ints,
    Inventory,
    NodeCard,
    inventory,
    with_cards,
)
from pool.core.fleet_rows import (
    ALWAYS,
    CLASSES,
    MEDIA,
    NEVER,
    ROW,
    Records,
    Rows,
    as_mask,
    halves,
    instant,
    masks,
    micros,
    span_of,
    whole_id,
)
from pool.core.fleet_views import BLOCKER, BOOKED, busy_of, card_of, node_domain, record_of, view_of
from pool.core.fleet_window import Window
from pool.core.period import Period
from pool.core.placement_room import Busy, GpuView

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "ALWAYS",
    "BLOCKER",
    "BOOKED",
    "CLASSES",
    "MEDIA",
    "NEVER",
    "NOBODY",
    "ROW",
    "SHARINGS",
    "USES",
    "Bools",
    "Card",
    "Fleet",
    "Geometry",
    "Ints",
    "NodeCard",
    "Records",
    "as_mask",
    "fleet",
    "halves",
    "instant",
    "masks",
    "micros",
    "node_domain",
    "of_views",
    "span_of",
    "whole_id",
]

#: The number of an account that has nothing in the fleet.
NOBODY = -2


@dataclass(frozen=True, eq=False)
class Fleet(Inventory):
    """The GPUs of a pool by their places (see Inventory), and what is on them.

    `change` is the pool's number at which it was read. `stale` are the ids of nodes that have not
    reported for too long: their GPUs are unknown. `usable`: `ready`, and not of such a node.
    `accounts` are the names of the numbers in ROW's `account`; `most_shares` and `one_user` are
    the pool's rules for shares (`one_user`: of MPS), `block_sizes` the levels of its tree of blocks.
    """

    change: int
    accounts: Mapping[int, str]
    most_shares: int
    one_user: bool
    block_sizes: tuple[int, ...]
    stale: frozenset[int]
    usable: Bools
    on: Rows

    def window(
        self, period: Period, now: datetime, *, without: UUID | None = None, clean: bool = False
    ) -> Window:
        """What is free over all of `period`, on every GPU at once.

        `without` leaves out one reservation. `clean`: what is over at `now` but still
        holds is in the way for all of the period, too.
        """
        start, end = micros(period.start), micros(period.end)
        which, over = self._in_the_way(slice(None), start, end, micros(now), without, clean)
        starts, ends = self.on.start[which], self.on.end[which]
        starts[over], ends[over] = start, end
        return Window(
            fleet=self,
            start=start,
            end=end,
            which=which,
            at=self.on.at[which],
            mask=self.on.mask[which],
            starts=starts,
            ends=ends,
        )

    def _in_the_way(
        self, part: slice, start: int, end: int, now: int, without: UUID | None, clean: bool
    ) -> tuple[Ints, Bools]:
        """The rows of this part that count in a window, and which of them only because they are not clean."""
        starts, ends = self.on.start[part], self.on.end[part]
        there = (starts < end) & (ends > start)
        if clean:
            there |= ends <= min(now, start)
        which = np.flatnonzero(there)
        over = ends[which] <= min(now, start)
        which += part.start or 0
        if without is not None:
            other = (self.on.field("reservation", which) != halves(without)).any(axis=1)
            which, over = which[other], over[other]
        return which, over

    def rows(self, places: Ints | None = None) -> Records:
        """What is on these GPUs (None: all), as ROW in the order of their places, then of their starts."""
        if places is None:
            return self.on.records(slice(None))
        first = np.searchsorted(self.on.at, places)
        last = np.searchsorted(self.on.at, places, side="right")
        number = last - first
        within = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        return self.on.records(np.repeat(first, number) + within)

    def view(
        self,
        gpu_id: int,
        now: datetime,
        period: Period | None = None,
        *,
        without: UUID | None = None,
        clean: bool = False,
    ) -> GpuView:
        """One GPU for exact checks, busy with what overlaps `period` (None: with everything).

        Raises KeyError when it is not in the pool.
        """
        place = self.places[gpu_id]
        part, at = self.on.on(place), micros(now)
        start, end = (ALWAYS, NEVER) if period is None else (micros(period.start), micros(period.end))
        which, over = self._in_the_way(part, start, end, at, without, clean and period is not None)
        busy = [busy_of(row, self.accounts, now) for row in self.on.records(which)]
        if period is not None:
            busy = [
                replace(one, period=period) if late else one for one, late in zip(busy, over, strict=True)
            ]
        return self._view(place, tuple(busy))

    def why(self, place: int) -> str | None:
        """What makes the GPU at this place unusable; None: nothing."""
        card = self.cards[place]
        return card.why or ("unknown" if card.node.id in self.stale else None)

    def bare(self, place: int) -> GpuView:
        """The GPU at this place as if nothing were on it."""
        return self._view(place, ())

    def _view(self, place: int, busy: tuple[Busy, ...]) -> GpuView:
        card = self.cards[place]
        late = card.node.id in self.stale
        return view_of(card, busy, late=late, most_shares=self.most_shares, one_user=self.one_user)

    def account_number(self, name: str) -> int:
        """The number of this account in ROW's `account`; NOBODY when nothing of it is here."""
        return next((number for number, known in self.accounts.items() if known == name), NOBODY)

    def updated(self, cards: Sequence[Card], rows: Records, gone: Collection[int] = ()) -> Fleet:
        """The fleet in which the GPUs of `cards` are as they say, with these rows on them and no others.

        `gone` are no longer in the pool. Rows of other GPUs are not looked at.
        """
        new = with_cards(self, cards, gone)
        on = self.on
        if not np.array_equal(new.id, self.id):
            on = on.moved(np.array([new.places.get(pk, -1) for pk in self.id.tolist()], dtype=np.int64))
        touched = np.array([new.places[card.id] for card in cards], dtype=np.int64)
        on = on.replaced(touched, *_placed(new, rows))
        if new is self:
            return replace(self, on=on)
        parts = {name: getattr(new, name) for name in Inventory.__dataclass_fields__}
        return replace(self, **parts, on=on, usable=_usable(new, self.stale))

    def now(
        self,
        change: int,
        stale: Iterable[int],
        most_shares: int,
        one_user: bool,
        block_sizes: tuple[int, ...],
        accounts: Mapping[int, str],
    ) -> Fleet:
        """The same GPUs as the pool and the freshness of its nodes are at this number."""
        late = frozenset(stale)
        return replace(
            self,
            change=change,
            stale=late,
            most_shares=most_shares,
            one_user=one_user,
            block_sizes=block_sizes,
            accounts=accounts,
            usable=self.usable if late == self.stale else _usable(self, late),
        )


def fleet(
    cards: Iterable[Card],
    rows: Records,
    *,
    change: int = 0,
    accounts: Mapping[int, str] | None = None,
    most_shares: int = 0,
    one_user: bool = False,
    block_sizes: tuple[int, ...] = (),
    stale: Iterable[int] = (),
) -> Fleet:
    """These GPUs with these rows on them; rows of GPUs without a card are left out."""
    known = inventory(cards)
    late = frozenset(stale)
    return Fleet(
        **vars(known),
        change=change,
        accounts=accounts or {},
        most_shares=most_shares,
        one_user=one_user,
        block_sizes=block_sizes,
        stale=late,
        usable=_usable(known, late),
        on=Rows.of(*_placed(known, rows)),
    )


def _usable(known: Inventory, stale: frozenset[int]) -> Bools:
    if not stale:
        return known.ready
    late = np.array([node.id in stale for node in known.nodes], dtype=np.bool_)
    return known.ready & ~late[known.node] if len(known.node) else known.ready


def _placed(known: Inventory, rows: Records) -> tuple[Ints, Records]:
    """The place of each row's GPU, and the rows that have one."""
    ids, which = np.unique(rows["gpu"], return_inverse=True)
    at = np.array([known.places.get(pk, -1) for pk in ids.tolist()], dtype=np.int64)[which]
    here = at >= 0
    return (at, rows) if here.all() else (at[here], rows[here])


def of_views(views: Iterable[GpuView]) -> Fleet:
    """The fleet of these views; whose reservations are on them is not known.

    What a pool allows in shares is taken from the first view that has shares.
    """
    seen = list(views)
    names = sorted({b.portion.user for v in seen for b in v.busy if b.portion and b.portion.user})
    numbers: dict[str | None, int] = {None: 0} | {name: n for n, name in enumerate(names, 1)}
    sharing = next((v for v in seen if v.sharing is not None), None)
    rows = np.zeros(sum(len(v.busy) for v in seen), dtype=ROW)
    at = 0
    for view in seen:
        for busy in view.busy:
            rows[at] = record_of(view.id, busy, numbers)
            at += 1
    return fleet(
        [card_of(view) for view in seen],
        rows,
        accounts={n: name for name, n in numbers.items() if name is not None},
        most_shares=sharing.most_shares if sharing else 0,
        one_user=any(v.one_user for v in seen),
    )
