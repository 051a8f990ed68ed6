"""Where the teams of a pool stand: whether a booking is within quota, and what of it is borrowed.

Amounts are thousandths of a GPU (milli), memory MiB. Everything is counted from rows.
The rules: a booking has to pass every line of its team and of every team above it that
has lines; a team without a line (or grant) of its own for a model has a cap of 0. At each instant a
team's own work fills its own guarantee, less what teams below it are guaranteed: first what
cannot be taken back, then online, interactive, batch, then the oldest; on the line of its
model first, then on that for any. The rest is borrowed: first within what the teams above it
are guaranteed and their other teams leave unused, then from others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from pool.core.period import Period
from pool.core.quota_lines import Grant, Line
from pool.core.quota_uses import Uses
from pool.core.shapes import Class

__all__ = ["Booking", "Borrowed", "Loan", "Share", "Standing", "Unused", "Uses", "above", "borrowed_now"]

Source = Literal["siblings", "others"]


@dataclass(frozen=True, eq=False)
class Standing:
    """All that quota decisions need of one pool. `models` are the names of the numbers in `uses.model`.

    `capacity` is what the pool has of each model, in milli: its GPUs that are not retired.
    """

    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    parents: Mapping[int, int | None]
    uses: Uses
    models: tuple[str, ...]
    capacity: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Booking:
    """What is to be booked, changed or extended; hand over a standing without its own rows.

    `charges` (milli) and `memory` (MiB) are by GPU model, of all pieces together. `firm`: not
    preemptible; online never is. `kind` and `largest_milli` (of one piece) are for the limits on one booking.
    """

    team: int
    charges: Mapping[str, int]
    klass: Class
    period: Period
    created: datetime
    firm: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    kind: str = ""
    largest_milli: int = 0
    now: datetime | None = None


class Loan(NamedTuple):
    """So much of a booking is borrowed over this period: within the teams above, or from others."""

    period: Period
    milli: int
    source: Source


Borrowed = tuple[Loan, ...]


class Unused(NamedTuple):
    """What a team is guaranteed for itself and does not use: at most so much at any instant of a period."""

    line: Line
    milli: int


class Share(NamedTuple):
    """A team at an instant: `used` by its own work, `inside` its own guarantee; the rest is borrowed."""

    used: int
    inside: int
    guaranteed: int
    weight: int

    @property
    def borrowed(self) -> int:
        return self.used - self.inside


class Promised(NamedTuple):
    """Over this period more is promised than a limit: `what` is cap, guaranteed (of firm work) or memory.

    `reservations` are those that lie above it, wholly or in part.
    """

    what: Literal["cap", "guaranteed", "memory"]
    period: Period
    used: int
    limit: int
    reservations: tuple[UUID, ...]


def check(standing: Standing, booking: Booking) -> Borrowed:
    """What of the booking is borrowed, in order of time; () when it is within its guarantee at every instant.

    Refuses with QUOTA_EXCEEDED. Data: reason (no_line, over_cap, over_memory, firm_over_guaranteed,
    online_over_guaranteed, not_lent, or one of limits), line (id or None), team (of the line),
    model (None: any), cap, used, asked (milli; MiB for memory), at (ISO, the first such instant).
    not_lent has `within_guaranteed`: it is other work of the team that would become borrowed.
    """
    raise NotImplementedError


def borrowed_now(standing: Standing, instant: datetime, against: int | None = None) -> dict[UUID, int]:
    """How much of each reservation is borrowed at `instant`, in milli; only of those with some.

    `against`: only what that team may take back: not what is within the guarantee of a team that it
    does not belong to.
    """
    raise NotImplementedError


def shares(standing: Standing, instant: datetime) -> dict[int, Share]:
    """Every team that has a line or a use at `instant`; the weight is the largest of its lines."""
    raise NotImplementedError


def unused(standing: Standing, period: Period) -> tuple[Unused, ...]:
    """The lines (as they are then) of which something is not used at some instant of the period.

    What teams below a team are guaranteed is theirs, not the team's: nothing counts twice.
    What a use fills it fills in every unit.
    """
    raise NotImplementedError


def lent(standing: Standing, team: int, period: Period) -> dict[str, int]:
    """What the team may still borrow of each model at every instant of the period, in milli.

    What is free, less what other teams are guaranteed, do not lend and do not use.
    """
    raise NotImplementedError


def above(standing: Standing, line: Line) -> tuple[Promised, ...]:
    """What is promised already above this line, as it would be; for a look before it is lowered.

    Over all of the time that the standing's uses tell. What is there is kept, what is new refused.
    """
    raise NotImplementedError
