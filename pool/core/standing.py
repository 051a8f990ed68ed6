"""Where the teams of a pool stand: whether a booking is within quota (admission), and what is borrowed.

Amounts are thousandths of a GPU (milli), memory MiB; everything is counted from rows. How guarantees
are filled, and what is beyond them, is told in borrowing; what others lend, in lending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

import numpy as np

from pool.core import borrowing, lending, stairs
from pool.core.admission import Booking, Borrowed, Loan, Source, check
from pool.core.charter import Charter, charter
from pool.core.fleet_rows import Bools, Ints, micros
from pool.core.lowering import Promised, above
from pool.core.period import Period
from pool.core.quota_lines import Grant, Line, Unit
from pool.core.quota_uses import Uses

__all__ = [
    "Booking",
    "Borrowed",
    "Loan",
    "Promised",
    "Share",
    "Source",
    "Standing",
    "Unused",
    "UnusedSteps",
    "Uses",
    "above",
    "borrowed_now",
    "check",
    "lent",
    "shares",
    "unused",
    "unused_steps",
]

#: Up to this id the rows of teams are looked up in a table.
_SMALL = 1 << 20
#: What the numbers in `UnusedSteps.unit` mean.
UNITS: tuple[str, ...] = tuple(Unit)


@dataclass(frozen=True, eq=False)
class Standing:
    """All that quota decisions need of one pool. `models` are the names of the numbers in `uses.model`.

    `capacity` is what the pool has of each model, in milli: its GPUs that are not retired.
    `kept`: the charter of the same lines, grants, parents and models, where it is at hand.
    """

    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    parents: Mapping[int, int | None]
    uses: Uses
    models: tuple[str, ...]
    capacity: Mapping[str, int]
    kept: Charter | None = None

    @cached_property
    def charter(self) -> Charter:
        return self.kept or charter(self.lines, self.grants, self.parents, self.models)

    @cached_property
    def capacities(self) -> Ints:
        """Of the charter's models."""
        return np.array([self.capacity.get(model, 0) for model in self.charter.models], dtype=np.int64)

    @cached_property
    def nodes(self) -> Ints:
        """[use]: the row in the charter's tables of its team or the next above it with lines; else -1."""
        return self._of_team(self.charter.node)

    @cached_property
    def direct(self) -> Bools:
        """[use]: whether its own team has lines."""
        row = self.charter.row
        return self._of_team(lambda team: int(team in row)).astype(np.bool_)

    def _of_team(self, found: Callable[[int], int]) -> Ints:
        """What `found` says of the team of each use."""
        teams = self.uses.team
        most = int(teams.max(initial=0))
        if most < _SMALL:
            there = np.flatnonzero(np.bincount(teams)) if len(teams) else teams
            table = np.full(most + 1, -1, dtype=np.int64)
            table[there] = [found(team) for team in there.tolist()]
            return table[teams]
        there, which = np.unique(teams, return_inverse=True)
        return np.array([found(team) for team in there.tolist()], dtype=np.int64)[which]


class Unused(NamedTuple):
    """What a team is guaranteed for itself and does not use: at most so much at any instant of a period."""

    line: Line
    milli: int


@dataclass(frozen=True, eq=False, slots=True)
class UnusedSteps:
    """The same over time, in columns: `milli` is not used from `since` until before `until`.

    `model` is a number in the standing's models, -1: any; `unit` a number in UNITS, `size` the
    GPUs of a group; `line` a number in `lines`.
    """

    lines: tuple[Line, ...]
    line: Ints
    team: Ints
    model: Ints
    unit: Ints
    size: Ints
    milli: Ints
    since: Ints
    until: Ints


class Share(NamedTuple):
    """A team at an instant: `used` by its own work, `inside` its own guarantee; the rest is borrowed.

    `guaranteed` is what is guaranteed to its own work: less what the teams below it are.
    """

    used: int
    inside: int
    guaranteed: int
    weight: int

    @property
    def borrowed(self) -> int:
        return self.used - self.inside


def borrowed_now(standing: Standing, at: datetime, against: int | None = None) -> dict[UUID, int]:
    """How much of each reservation is borrowed at an instant, in milli; only of those with some.

    `against`: only what that team may take back: not what is within the guarantee of a team that it
    does not belong to.
    """
    milli = borrowing.borrowed_rows(standing, micros(at), against)
    some = np.flatnonzero(milli)
    found: dict[bytes, int] = {}
    raw = standing.uses.reservation[some].astype(">i8").tobytes()
    for place, amount in enumerate(milli[some].tolist()):
        key = raw[16 * place : 16 * place + 16]
        found[key] = found.get(key, 0) + amount
    return {UUID(bytes=key): amount for key, amount in found.items()}


def shares(standing: Standing, at: datetime) -> dict[int, Share]:
    """Every team that has a line or a use at an instant; the weight is the largest of its lines."""
    moment = micros(at)
    uses, charter = standing.uses, standing.charter
    milli = borrowing.borrowed_rows(standing, moment)
    own = charter.terms(moment).own.sum(axis=1)
    found = {team: Share(0, 0, int(own[row]), int(charter.weights[row])) for team, row in charter.row.items()}
    there = uses.within(moment, moment + 1)
    for team in dict.fromkeys(uses.team[there].tolist()):
        mine = there[uses.team[there] == team]
        used = int(uses.milli[mine].sum())
        known = found.get(team, Share(0, 0, 0, 1))
        found[team] = known._replace(used=used, inside=used - int(milli[mine].sum()))
    return found


def unused(standing: Standing, period: Period) -> tuple[Unused, ...]:
    """The lines of which something is not used at some instant of the period, in the order of the lines.

    What teams below a team are guaranteed is theirs, not the team's: nothing counts twice.
    """
    steps = unused_steps(standing, period)
    most: dict[int, int] = {}
    for line, milli in zip(steps.line.tolist(), steps.milli.tolist(), strict=True):
        most[line] = max(milli, most.get(line, 0))
    return tuple(Unused(steps.lines[line], milli) for line, milli in sorted(most.items()))


def unused_steps(standing: Standing, period: Period) -> UnusedSteps:
    """What teams are guaranteed for their own work and do not use, at every instant of the period.

    Their work fills the line of its model first, then that for any. A line for a model of which
    the pool has no GPU is left out.
    """
    start, end = micros(period.start), micros(period.end)
    charter, uses = standing.charter, standing.uses
    number, teams = len(charter.models), len(charter.teams)
    which = uses.within(start, end)
    which = which[standing.direct[which]]
    times = uses.since[which], uses.until[which]
    found = stairs.stairs(
        stairs.events(
            standing.nodes[which], uses.model[which], uses.milli[which], *times, (start, end), (teams, number)
        ),
        start,
        charter.edges_in(start, end),
    )
    own = charter.own_of(found.group, found.time)
    left = np.maximum(0, own[:, :number] - found.level)
    over = np.maximum(0, found.level - own[:, :number]).sum(axis=1)
    left = np.column_stack((left, np.maximum(0, own[:, number] - over)))
    return _steps(standing, found, left, end)


def _steps(standing: Standing, found: stairs.Stairs, left: Ints, end: int) -> UnusedSteps:
    charter = standing.charter
    lines = tuple(charter.all_lines.values())
    numbers = np.zeros((len(charter.teams), len(charter.models) + 1), dtype=np.int64)
    for number, line in enumerate(lines):
        numbers[charter.row[line.team], charter.columns[line.model]] = number
    parts: list[tuple[Ints, ...]] = []
    for model in (*standing.models, None):
        column = charter.columns[model]
        amounts = left[:, column]
        at = np.flatnonzero(
            np.append(True, (np.diff(found.group) != 0) | (np.diff(amounts) != 0))[: len(amounts)]
        )
        until = np.append(found.time[at[1:]], end)[: len(at)]
        until[np.append(np.diff(found.group[at]) != 0, True)[: len(at)]] = end
        at, until = at[amounts[at] > 0], until[amounts[at] > 0]
        its = np.full(len(at), -1 if model is None else column, dtype=np.int64)
        parts.append((numbers[found.group[at], column], its, amounts[at], found.time[at], until))
    its, model_of, milli, since, until = (np.concatenate(one) for one in zip(*parts, strict=True))
    known = [(line.team, UNITS.index(line.unit), line.unit_size) for line in lines]
    team, unit, size = np.array(known, dtype=np.int64).reshape(-1, 3)[its].T
    return UnusedSteps(lines, its, team, model_of, unit, size, milli, since, until)


def lent(standing: Standing, team: int, period: Period) -> dict[str, int]:
    """What the team may still borrow of each model at every instant of the period, in milli.

    What is free, less what other teams are guaranteed, do not lend and do not use.
    """
    room = lending.room(standing, team, micros(period.start), micros(period.end))
    left, _ = np.hsplit(room.level, 2)
    least = np.maximum(0, left.min(axis=0)).tolist()
    return {model: min(milli, least[-1]) for model, milli in zip(standing.models, least, strict=False)}
