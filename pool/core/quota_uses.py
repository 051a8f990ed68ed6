"""What counts in quota, in columns: one row an allocation that holds, in its reservation's own time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TypeVar
from uuid import UUID

import numpy as np

from pool.core.fleet import Fleet
from pool.core.fleet_rows import CLASSES, NEVER, Bools, Ints, halves, micros, whole_id
from pool.core.period import Period

N = TypeVar("N", int, Ints)

#: The code of online work, which nobody can take back.
ONLINE = CLASSES.index("online")
#: Of the times since the oldest: 70 years.
_TIME_BITS = 51


@dataclass(frozen=True, eq=False, slots=True)
class Uses:
    """Rows that overlap a period. Times are microseconds since 1970, half-open (fleet_rows.micros).

    `model` is a number in the fleet's models, `klass` a code of fleet_rows.CLASSES, `milli`
    thousandths of a GPU, `memory` MiB (0 where it is not known). `firm`: cannot be taken back
    (online work never can). `reservation` is two halves of an id (fleet_rows.whole_id), `row`
    the number of the row in `fleet.on`.
    """

    team: Ints
    model: Ints
    klass: Ints
    milli: Ints
    memory: Ints
    since: Ints
    until: Ints
    created: Ints
    firm: Bools
    reservation: Ints
    row: Ints

    @classmethod
    def of(cls, fleet: Fleet, within: Period, without: UUID | None = None) -> Uses:
        """Of what is on a whole pool; `without` leaves out one reservation.

        What stands in the way without being booked counts in no quota.
        """
        on, start, end = fleet.on, micros(within.start), micros(within.end)
        since, until = (
            on.field(name, slice(None)).astype(np.int64, copy=False) for name in ("since", "until")
        )
        blocker = on.field("blocker", slice(None)).astype(np.bool_, copy=False)
        which = np.flatnonzero((since < end) & (until > start) & ~blocker)
        if without is not None:
            which = which[(on.field("reservation", which) != halves(without)).any(axis=1)]
        place = on.at[which]

        def ints(name: str) -> Ints:
            return on.field(name, which).astype(np.int64, copy=False)

        klass, share = ints("klass"), ints("memory")
        # A share says what it takes; all else has its part of the card's memory.
        size = np.bitwise_count(on.mask[which].view(np.uint64)).astype(np.int64)
        part = memory_mib(fleet.memory[place], size, fleet.grid[place])
        return cls(
            team=ints("team"),
            model=fleet.model[place],
            klass=klass,
            milli=ints("charge"),
            memory=np.where(share > 0, share, part),
            since=ints("since"),
            until=ints("until"),
            created=ints("created"),
            firm=on.field("firm", which).astype(np.bool_) | (klass == ONLINE),
            reservation=ints("reservation"),
            row=which,
        )

    def __len__(self) -> int:
        return len(self.team)

    def part(self, which: Ints | Bools) -> Uses:
        """Some of the rows."""
        return Uses(**{one.name: getattr(self, one.name)[which] for one in fields(self)})

    def but(self, gone: Collection[UUID]) -> Uses:
        """Without these reservations."""
        if not gone:
            return self
        known = np.array([halves(one) for one in gone], dtype=np.int64)
        # Most often the second half alone tells them apart.
        maybe = np.flatnonzero(np.isin(self.reservation[:, 1], known[:, 1]))
        pairs = {(first, second) for first, second in known.tolist()}
        left = np.ones(len(self), dtype=np.bool_)
        left[maybe] = [(first, second) not in pairs for first, second in self.reservation[maybe].tolist()]
        return self.part(left)

    def within(self, start: int, end: int) -> Ints:
        """The numbers of those that are there at some instant from `start` until before `end`."""
        return np.flatnonzero((self.since < end) & (self.until > start))

    @property
    def kind(self) -> Ints:
        """What goes first in a guarantee: what cannot be taken back, then online, interactive, batch."""
        return self.klass + len(CLASSES) * ~self.firm

    def order(self, which: Ints) -> Ints:
        """These rows in the order in which they fill a guarantee: by kind, the oldest first.

        Ids settle ties; they are looked at only where there are some.
        """
        created = self.created[which]
        key = (self.kind[which] << _TIME_BITS) + (created - created.min(initial=NEVER))
        at = np.argsort(key)
        if (np.diff(key[at]) == 0).any():
            first, second = self.reservation[which, 0], self.reservation[which, 1]
            at = np.lexsort((second, first, key))
        return which[at]

    def ids(self, which: Ints) -> list[UUID]:
        """The reservations of these rows, each once, in the order of the rows."""
        return list(dict.fromkeys(whole_id(two) for two in self.reservation[which]))


def memory_mib(total: N, size: N, grid: N) -> N:
    """What `size` memory slices of `grid` have of a card's memory, rounded down."""
    return total * size // grid
