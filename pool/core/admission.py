"""Whether one booking passes the lines of its team and of those above it, and what of it is borrowed.

It has to pass every line of its team and of every team above it that has lines. A team without a
line (or grant) of its own for a model has a cap of 0. What is beyond the guarantee is borrowed: first
within what the teams above are guaranteed, then from others who lend it. What nobody can take back may
not be borrowed at all. Amounts in milli and MiB, times in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pool.core import lending, limits, stairs
from pool.core.errors import Code, Refusal
from pool.core.fleet_rows import CLASSES, Bools, Ints, instant, micros
from pool.core.period import Period
from pool.core.quota_lines import Line, effective
from pool.core.shapes import Class
from pool.core.stairs import Stairs

if TYPE_CHECKING:
    from pool.core.standing import Standing

Source = Literal["siblings", "others"]


@dataclass(frozen=True, slots=True)
class Booking:
    """What is to be booked, changed or extended; hand over a standing without its own rows.

    `charges` (milli) and `memory` (MiB, as quota_uses counts it) are by GPU model, of all pieces
    together. `firm`: not preemptible; online never is. With a `kind` the limits on one booking
    are looked at, too: `largest_milli` is of one piece, `now` when it is asked.
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

    @property
    def stays(self) -> bool:
        """Whether nobody can take it back."""
        return self.firm or self.klass is Class.ONLINE


class Loan(NamedTuple):
    """So much of a booking is borrowed over this period: within the teams above, or from others."""

    period: Period
    milli: int
    source: Source


Borrowed = tuple[Loan, ...]


def check(standing: Standing, booking: Booking) -> Borrowed:
    """What of the booking is borrowed, in order of time; () when it is within its guarantee at every instant.

    Refuses with QUOTA_EXCEEDED. Data: reason (no_line, over_cap, over_memory, firm_over_guaranteed,
    online_over_guaranteed, not_lent, or one of limits), line (id; 0: grants alone; None: none or several),
    team (whose line), model (None: any), cap, used, asked (milli; MiB for memory), at (ISO: an instant
    at which it is worst). cap is what the line allows, or guarantees, or what is lent beside what
    is in use; not_lent has `within_guaranteed`: it is other work of the team that would become borrowed.
    """
    passing = _Passing(standing, booking)
    passing.check_lines()
    passing.check_limits()
    passing.check_caps()
    own = _Own(passing)
    if booking.stays:
        own.check_firm()
    if own.grows.any():
        own.check_lent()
    return own.loans() if own.borrowed.any() else ()


class _Passing:
    """One booking at the lines that it has to pass."""

    def __init__(self, standing: Standing, booking: Booking) -> None:
        self.standing, self.booking = standing, booking
        self.charter, self.uses = standing.charter, standing.uses
        self.start, self.end = micros(booking.period.start), micros(booking.period.end)
        self.path = [one for one in self.charter.tree.path(booking.team) if one in self.charter.row]
        self.asked = {model: milli for model, milli in sorted(booking.charges.items()) if milli}
        self._under: dict[int, Ints] = {}

    @cached_property
    def there(self) -> Ints:
        """The uses that overlap its period."""
        return self.uses.within(self.start, self.end)

    @property
    def models(self) -> tuple[str, ...]:
        return self.charter.models

    def lines(self) -> list[Line]:
        """Of the team and of those above it, the team's own first; those on which the booking counts."""
        every = self.charter.all_lines
        keys = [(team, model) for team in self.path for model in (*self.asked, None)]
        return [every[key] for key in keys if key in every]

    def check_lines(self) -> None:
        """Every model needs a line of the team itself, or for any."""
        team = self.booking.team
        for model, milli in self.asked.items():
            if (team, model) not in self.charter.all_lines and (team, None) not in self.charter.all_lines:
                data = {"line": None, "team": team, "model": model, "cap": 0, "used": 0, "asked": milli}
                raise Refusal(Code.QUOTA_EXCEEDED, reason="no_line", **data)

    def check_limits(self) -> None:
        booking = self.booking
        if booking.kind:
            limits.check(
                self.lines(),
                kind=booking.kind,
                largest_milli=booking.largest_milli,
                milli=sum(self.asked.values()),
                period=booking.period,
                now=booking.now or booking.created,
            )

    def check_caps(self) -> None:
        """The peak of what the team and those below it use, with the booking, against each line."""
        for team in self.path:
            mine = [line for line in self.lines() if line.team == team]
            self._check(mine, "over_cap", self.uses.milli, self.asked, lambda line: line.cap_milli)
            limited = [line for line in mine if line.memory_mib is not None]
            memory = self.booking.memory
            self._check(limited, "over_memory", self.uses.memory, memory, lambda line: line.memory_mib or 0)

    def _check(
        self,
        lines: list[Line],
        reason: str,
        amounts: Ints,
        asked: Mapping[str, int],
        most: Callable[[Line], int],
    ) -> None:
        if not lines or self._is_far(lines, amounts, asked, most):
            return
        used = self.used(lines[0].team, amounts)
        for line in lines:
            adds = sum(asked.values()) if line.model is None else asked.get(line.model, 0)
            level = used.level.sum(axis=1)
            if line.model is not None:
                level = used.level[:, self.models.index(line.model)]
            allowed = self._steps(line, used.time, most)
            worst = int(np.argmax(level + adds - allowed))
            if adds and level[worst] + adds > allowed[worst]:
                numbers = (int(allowed[worst]), int(level[worst]), adds)
                raise _refusal(reason, line.id, line.team, line.model, numbers, int(used.time[worst]))

    def _is_far(
        self, lines: list[Line], amounts: Ints, asked: Mapping[str, int], most: Callable[[Line], int]
    ) -> bool:
        """Whether all that is there at some time of the period fits even together; grants only add."""
        total = int(amounts[self.under(lines[0].team)].sum()) + sum(asked.values())
        return all(total <= most(line) for line in lines)

    def used(self, team: int, amounts: Ints) -> Stairs:
        """[time, model]: what the team and those below it have in the period."""
        which = self.under(team)
        below = self.charter.tree.below(team)
        return self.stairs(which, self.uses.model[which], amounts, len(self.models), below)

    def under(self, team: int) -> Ints:
        """The uses of the team and those below it."""
        if team not in self._under:
            rows = self.there
            for above in reversed(self.path[self.path.index(team) :]):
                # Who is below a team is below those above it: less and less is looked at.
                rows = self._under.setdefault(above, rows[self._is_below(above, rows)])
        return self._under[team]

    def _is_below(self, team: int, rows: Ints) -> Bools:
        below = np.array(list(self.charter.tree.below(team)), dtype=np.int64)
        return np.isin(self.uses.team[rows], below)

    def stairs(
        self, which: Ints, channel: Ints, amounts: Ints, channels: int, teams: frozenset[int]
    ) -> Stairs:
        """[time, channel], also at every instant at which a grant of these teams begins or ends."""
        within, uses = (self.start, self.end), self.uses
        group = np.zeros(len(which), dtype=np.int64)
        times = uses.since[which], uses.until[which]
        found = stairs.events(group, channel, amounts[which], *times, within, (1, channels))
        return stairs.stairs(found, self.start, self.charter.edges_of(teams, self.start, self.end))

    def _steps(self, line: Line, times: Ints, most: Callable[[Line], int]) -> Ints:
        grants = self.charter.grants_of.get((line.team, line.model), ())
        parts = effective(line, grants, self.booking.period)
        starts = np.array([micros(period.start) for period, _ in parts], dtype=np.int64)
        amounts = np.array([most(now) for _, now in parts], dtype=np.int64)
        return amounts[np.searchsorted(starts, times, side="right") - 1]


class _Own:
    """A booking against what is guaranteed to its team's own work: [time], or [time, model].

    `asked` of each model, `beyond` the room on the lines for its models, `borrowed`: beyond
    that on the line for any, too. `grows`: by so much all that the team borrows does, also
    other work of it that has to make room.
    """

    def __init__(self, passing: _Passing) -> None:
        self.passing, self.booking = passing, passing.booking
        uses, charter, number = passing.uses, passing.charter, len(passing.models)
        which = passing.under(self.booking.team)
        which = which[uses.team[which] == self.booking.team]
        channel = uses.model[which] + number * ~self._goes_before(which)
        teams = charter.tree.below(self.booking.team)
        used = passing.stairs(which, channel, uses.milli, 2 * number, teams)
        self.time = used.time
        self.asked = np.array([passing.asked.get(model, 0) for model in passing.models], dtype=np.int64)
        self.own = charter.own_at(self.booking.team, self.time)
        self.before = used.level[:, :number]
        self.room = np.maximum(0, self.own[:, :number] - self.before)
        self.beyond = self.asked - np.minimum(self.asked, self.room)
        in_any = np.maximum(0, self.before - self.own[:, :number]).sum(axis=1)
        self.any_room = np.maximum(0, self.own[:, number] - in_any)
        self.borrowed = np.maximum(0, self.beyond.sum(axis=1) - self.any_room)
        every = self.before + used.level[:, number:]
        self.grows = self._over(every + self.asked) - self._over(every)

    def _goes_before(self, which: Ints) -> Bools:
        """Which of the team's own uses fill the guarantee before the booking: of its kind, what is older.

        What cannot be taken back stays where it is, however old the booking is.
        """
        uses, kind = self.passing.uses, CLASSES.index(self.booking.klass)
        if self.booking.stays:
            return uses.firm[which]
        kind += len(CLASSES)
        older = (uses.kind[which] == kind) & (uses.created[which] <= micros(self.booking.created))
        before: Bools = (uses.kind[which] < kind) | older
        return before

    def _over(self, used: Ints) -> Ints:
        number = len(self.passing.models)
        over = np.maximum(0, used - self.own[:, :number]).sum(axis=1)
        left: Ints = np.maximum(0, over - self.own[:, number])
        return left

    def check_firm(self) -> None:
        """What nobody can take back has to be within the guarantee at every instant."""
        if not self.borrowed.any():
            return
        worst, number = int(np.argmax(self.borrowed)), len(self.passing.models)
        column = int(np.argmax(self.beyond[worst]))
        online = self.booking.klass is Class.ONLINE
        model = self.passing.models[column] if len(self.passing.asked) == 1 else None
        some = np.arange(number) == column if model else self.asked > 0
        guaranteed = int(self.own[worst, :number][some].sum() + self.own[worst, number])
        # What is on the line for any of other models is in the way, too.
        in_any = np.maximum(0, self.before[worst] - self.own[worst, :number])[~some].sum()
        numbers = (guaranteed, int(self.before[worst][some].sum() + in_any), int(self.asked[some].sum()))
        reason = "online_over_guaranteed" if online else "firm_over_guaranteed"
        line = self._line(model)
        raise _refusal(reason, line, self.booking.team, model, numbers, int(self.time[worst]))

    def _line(self, model: str | None) -> int | None:
        every, team = self.passing.charter.all_lines, self.booking.team
        found = [every[key].id for key in ((team, model), (team, None)) if key in every]
        return found[0] if len(set(found)) == 1 else None

    def check_lent(self) -> None:
        """While what the team borrows grows, there has to be room beside what others keep."""
        passing, team = self.passing, self.booking.team
        grown = np.flatnonzero(self.grows)
        first, last = int(self.time[grown[0]]), int(self._until[grown[-1]])
        if not lending.keeps(passing.standing, team, first, last):
            return
        room = lending.room(passing.standing, team, first, last, passing.there)
        until = np.append(room.time[1:], last)
        wanted = np.append(self.asked, self.asked.sum())
        left, claimed = np.hsplit(room.level, 2)
        # Where nobody claims anything, only the room on the GPUs counts.
        short = (left < wanted) & (wanted > 0) & (claimed > 0)
        for one in np.flatnonzero(short.any(axis=1)).tolist():
            # Only while something is borrowed: between two such times the team is within its guarantee.
            met = (self.time[grown] < until[one]) & (self._until[grown] > room.time[one])
            if met.any():
                self._not_lent(int(room.time[one]), left[one], short[one], grown[met])

    def _not_lent(self, time: int, room: Ints, short: Bools, grown: Ints) -> None:
        passing, number = self.passing, len(self.passing.models)
        column = int(np.flatnonzero(short)[0])
        model = passing.models[column] if column < number else None
        uses = passing.uses
        which = passing.there[(uses.since[passing.there] <= time) & (uses.until[passing.there] > time)]
        if model is not None:
            which = which[uses.model[which] == column]
        used = int(uses.milli[which].sum())
        asked = int(self.asked[column]) if column < number else int(self.asked.sum())
        inside = not self.borrowed[grown].any()
        numbers = (max(0, int(room[column]) + used), used, asked)
        team = self.booking.team
        raise _refusal("not_lent", None, team, model, numbers, int(time), within_guaranteed=inside)

    @cached_property
    def _until(self) -> Ints:
        return np.append(self.time[1:], self.passing.end)

    def loans(self) -> Borrowed:
        """What is borrowed, and from whom, over the longest periods in which both stay the same."""
        siblings = self._from_siblings()
        found: list[Loan] = []
        others = self.borrowed_at(self.grid) - siblings
        sources: tuple[tuple[Source, Ints], ...] = (("siblings", siblings), ("others", others))
        for source, amounts in sources:
            starts = np.flatnonzero(np.append(True, np.diff(amounts) != 0))
            ends = np.append(self.grid[starts[1:]], self.passing.end)
            for at, end in zip(starts.tolist(), ends.tolist(), strict=True):
                if amounts[at]:
                    start = instant(int(self.grid[at]))
                    assert start is not None
                    found.append(Loan(Period(start, instant(end)), int(amounts[at]), source))
        return tuple(sorted(found, key=lambda loan: (loan.period.start, loan.source == "others")))

    def borrowed_at(self, times: Ints) -> Ints:
        found: Ints = self.borrowed[np.searchsorted(self.time, times, side="right") - 1]
        return found

    @cached_property
    def _families(self) -> list[tuple[int, Stairs]]:
        """The team and those above it, as far as other teams with lines are below them."""
        charter, uses = self.passing.charter, self.passing.uses
        parents = set(charter.above.tolist())
        teams = [team for team in self.passing.path if charter.row[team] in parents]
        return [(team, self.passing.used(team, uses.milli)) for team in teams]

    @cached_property
    def grid(self) -> Ints:
        """Every instant at which something that matters changes."""
        times = np.sort(np.concatenate([self.time, *(used.time for _, used in self._families)]))
        each: Ints = times[np.append(True, np.diff(times) != 0)]
        return each

    def _from_siblings(self) -> Ints:
        """What of the borrowed lies in guarantees of the teams above, at each instant of the grid."""
        number, grid = len(self.passing.models), self.grid
        at = np.searchsorted(self.time, grid, side="right") - 1
        rest = self.beyond[at].copy()
        _take(rest, self.any_room[at])
        inside = self.asked - rest
        borrowed = rest.sum(axis=1)
        for team, used in self._families:
            guaranteed = self.passing.charter.guaranteed_at(team, grid)
            level = used.level[np.searchsorted(used.time, grid, side="right") - 1] + inside
            fits = np.minimum(rest, np.maximum(0, guaranteed[:, :number] - level))
            rest -= fits
            over = np.maximum(0, level + fits - guaranteed[:, :number]).sum(axis=1)
            _take(rest, np.maximum(0, guaranteed[:, number] - over))
            inside = self.asked - rest
        found: Ints = borrowed - rest.sum(axis=1)
        return found


def _take(rest: Ints, room: Ints) -> None:
    """Takes a room [time] off what is left of each model, the first model first."""
    before = np.cumsum(rest, axis=1) - rest
    rest -= np.clip(room[:, None] - before, 0, rest)


def _refusal(
    reason: str,
    line: int | None,
    team: int,
    model: str | None,
    numbers: tuple[int, int, int],
    time: int,
    **data: Any,
) -> Refusal:
    cap, used, asked = numbers
    at = instant(time)
    known = {"line": line, "team": team, "model": model, "cap": cap, "used": used, "asked": asked}
    return Refusal(Code.QUOTA_EXCEEDED, reason=reason, **known, at=at.isoformat() if at else None, **data)
