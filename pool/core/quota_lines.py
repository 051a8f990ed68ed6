"""A team's quota in one pool: lines that stand, grants on top of them, and what holds at an instant.

Amounts are thousandths of a GPU (milli) and of a GPU-hour, memory in MiB. What
is used of a line is in standing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from pool.core.period import Period


class Unit(StrEnum):
    """In what a guarantee has to be obtainable: any slices, whole GPUs, or groups of GPUs of one node."""

    SLOTS = "slots"
    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one booking may be (see limits). `kinds` (): all; None: not limited.

    `largest_milli` is of one piece, `most_gpus` of all pieces together, rounded up to whole
    GPUs. `ahead_minutes`: so long before its start it can be booked at the earliest.
    """

    kinds: tuple[str, ...] = ()
    largest_milli: int | None = None
    most_gpus: int | None = None
    longest_minutes: int | None = None
    ahead_minutes: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Line:
    """A team's quota in one pool, for one GPU model or (None) for any.

    `guaranteed_milli` is obtainable in groups of `unit` (`unit_size` GPUs of one node);
    `lend_milli` of it others may borrow, None: all. The use of a line is that of the team and
    its subteams. `id` 0: there is no row, only grants.
    """

    id: int
    model: str | None
    guaranteed_milli: int
    cap_milli: int
    team: int = 0
    lend_milli: int | None = None
    unit: str = Unit.SLOTS
    unit_size: int = 1
    weight: int = 1
    memory_mib: int | None = None
    budget_milli_hours: int | None = None
    limits: Limits = NO_LIMITS

    @property
    def kept_milli(self) -> int:
        """What of the guarantee nobody else may borrow."""
        return 0 if self.lend_milli is None else max(0, self.guaranteed_milli - self.lend_milli)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a team has on top of its line for the same model while `period` lasts; grants add up.

    Without such a line it stands for itself. Memory and budget add to a line that limits them.
    """

    team: int
    model: str | None
    guaranteed_milli: int
    cap_milli: int
    memory_mib: int
    budget_milli_hours: int
    period: Period


def at(line: Line, grants: Iterable[Grant], instant: datetime) -> Line:
    """The line as it is at `instant`, with the grants of its team and model that are valid then."""
    mine = [grant for grant in grants if _is_on(grant, line) and grant.period.contains(instant)]
    if not mine:
        return line
    more_memory = sum(grant.memory_mib for grant in mine)
    more_hours = sum(grant.budget_milli_hours for grant in mine)
    return replace(
        line,
        guaranteed_milli=line.guaranteed_milli + sum(grant.guaranteed_milli for grant in mine),
        cap_milli=line.cap_milli + sum(grant.cap_milli for grant in mine),
        memory_mib=None if line.memory_mib is None else line.memory_mib + more_memory,
        budget_milli_hours=None if line.budget_milli_hours is None else line.budget_milli_hours + more_hours,
    )


def effective(line: Line, grants: Iterable[Grant], within: Period) -> list[tuple[Period, Line]]:
    """The line in each part of `within` in which it stays the same, in order and without gaps.

    Half-open: where one grant ends and the next begins there is no instant with both or neither.
    """
    mine = [grant for grant in grants if _is_on(grant, line) and grant.period.overlaps(within)]
    edges = {edge for grant in mine for edge in (grant.period.start, grant.period.end) if edge is not None}
    inner = sorted(edge for edge in edges if within.start < edge and within.contains(edge))
    starts = [within.start, *inner]
    ends = [*inner, within.end]
    parts: list[tuple[Period, Line]] = []
    for start, end in zip(starts, ends, strict=True):
        now = at(line, mine, start)
        if parts and parts[-1][1] == now:
            parts[-1] = (Period(parts[-1][0].start, end), now)
        else:
            parts.append((Period(start, end), now))
    return parts


def with_grants(lines: Iterable[Line], grants: Iterable[Grant]) -> tuple[Line, ...]:
    """The lines, and an empty one for each (team, model) that has grants alone."""
    known = list(lines)
    there = {(line.team, line.model) for line in known}
    for team, model in sorted(
        {(one.team, one.model) for one in grants} - there, key=lambda k: (k[0], k[1] or "")
    ):
        known.append(Line(0, model, 0, 0, team=team))
    return tuple(known)


def _is_on(grant: Grant, line: Line) -> bool:
    return (grant.team, grant.model) == (line.team, line.model)
