"""What counts in quota, in columns: one row an allocation that holds, in its reservation's own time."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pool.core.fleet import Fleet
from pool.core.fleet_rows import Bools, Ints
from pool.core.period import Period


@dataclass(frozen=True, eq=False, slots=True)
class Uses:
    """Rows that overlap a period. Times are microseconds since 1970, half-open (fleet_rows.micros).

    `model` is a number in the fleet's models, `klass` a code of fleet_rows.CLASSES, `milli`
    thousandths of a GPU, `memory` MiB. `firm`: cannot be taken back (online work never can).
    `reservation` is two halves of an id (fleet_rows.whole_id).
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

    @classmethod
    def of(cls, fleet: Fleet, within: Period, without: UUID | None = None) -> Uses:
        """Of what is on a whole pool; `without` leaves out one reservation."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.team)
