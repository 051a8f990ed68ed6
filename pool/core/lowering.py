"""What is promised already above a line as it would be: a look before it is lowered.

What is there is kept, and what is new refused, until it has ended.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import UUID

import numpy as np

from pool.core import borrowing, stairs
from pool.core.fleet_rows import NEVER, Bools, Ints, instant, micros
from pool.core.period import Period
from pool.core.quota_lines import Line, effective
from pool.core.stairs import Stairs

if TYPE_CHECKING:
    from pool.core.standing import Standing

What = Literal["cap", "guaranteed", "memory"]


class Promised(NamedTuple):
    """Over this period more is promised than a limit: `what` is cap, guaranteed (of firm work) or memory.

    `used` and `limit` are as they are when it is most above; `reservations` are those that lie
    above it, wholly or in part, in the order in which they fill the line.
    """

    what: What
    period: Period
    used: int
    limit: int
    reservations: tuple[UUID, ...]


def above(standing: Standing, line: Line, now: datetime) -> tuple[Promised, ...]:
    """What is promised from `now` on above this line, as it would be, with its grants; () if nothing is.

    Cap and memory are of the work of the team and those below it, the guarantee of
    the team's own work that nobody can take back. The standing's uses have to reach as far as one looks.
    """
    start = micros(now)
    found = _over(standing, line, start, "cap", standing.uses.milli)
    if line.memory_mib is not None:
        found += _over(standing, line, start, "memory", standing.uses.memory)
    return (*found, *_firm(standing, line, start))


def _over(standing: Standing, line: Line, start: int, what: What, amounts: Ints) -> list[Promised]:
    uses, charter = standing.uses, standing.charter
    which = uses.within(start, NEVER)
    which = which[np.isin(uses.team[which], list(charter.tree.below(line.team)))]
    if line.model is not None:
        number = charter.columns.get(line.model, -1)
        which = which[uses.model[which] == number]
    used = _level(standing, which, amounts[which], uses.since[which], uses.until[which], start)
    limit = _limits(standing, line, used.time, what)
    level = used.level[:, 0]
    which = uses.order(which)
    found = []
    for first, last in _runs(level > limit):
        steps = range(first, last)
        worst = max(steps, key=lambda step: level[step] - limit[step])
        beyond = [_beyond(standing, which, amounts, int(used.time[step]), int(limit[step])) for step in steps]
        rows = which[np.any(beyond, axis=0)]
        period = _period(used, first, last)
        found.append(Promised(what, period, int(level[worst]), int(limit[worst]), tuple(uses.ids(rows))))
    return found


def _beyond(standing: Standing, which: Ints, amounts: Ints, moment: int, limit: int) -> list[bool]:
    """Which of these, in their order, lie above the limit at that moment."""
    uses = standing.uses
    there = (uses.since[which] <= moment) & (uses.until[which] > moment)
    total = np.cumsum(amounts[which] * there)
    beyond: list[bool] = (there & (total > limit) & (amounts[which] > 0)).tolist()
    return beyond


def _firm(standing: Standing, line: Line, start: int) -> list[Promised]:
    lines = [one for one in standing.lines if (one.team, one.model) != (line.team, line.model)]
    lowered = replace(standing, lines=(*lines, line), kept=None)
    uses = standing.uses
    spans = borrowing.borrowed_spans(lowered, start, NEVER, team=line.team, most=NEVER)
    mine = uses.firm[spans.which].copy()
    if line.model is not None:
        mine &= uses.model[spans.which] == standing.charter.columns.get(line.model, -1)
    which, milli = spans.which[mine], spans.milli[mine]
    since, until = spans.since[mine], spans.until[mine]
    over = _level(standing, which, milli, since, until, start)
    firm = uses.within(start, NEVER)
    firm = firm[uses.firm[firm] & (uses.team[firm] == line.team)]
    if line.model is not None:
        firm = firm[uses.model[firm] == standing.charter.columns.get(line.model, -1)]
    used = _level(standing, firm, uses.milli[firm], uses.since[firm], uses.until[firm], start)
    found = []
    for first, last in _runs(over.level[:, 0] > 0):
        worst = max(range(first, last), key=lambda step: over.level[step, 0])
        at = int(np.searchsorted(used.time, over.time[worst], side="right")) - 1
        period = _period(over, first, last)
        met = (since < micros(period.end)) & (until > micros(period.start))
        level, beyond = int(used.level[at, 0]), int(over.level[worst, 0])
        ids = tuple(uses.ids(uses.order(which[met])))
        found.append(Promised("guaranteed", period, level, level - beyond, ids))
    return found


def _level(standing: Standing, which: Ints, amounts: Ints, since: Ints, until: Ints, start: int) -> Stairs:
    zero = np.zeros(len(which), dtype=np.int64)
    found = stairs.events(zero, zero, amounts, since, until, (start, NEVER), (1, 1))
    return stairs.stairs(found, start, standing.charter.edges_in(start, NEVER))


def _limits(standing: Standing, line: Line, times: Ints, what: What) -> Ints:
    first = instant(int(times[0]))
    assert first is not None
    grants = standing.charter.grants_of.get((line.team, line.model), ())
    parts = effective(line, grants, Period(first, None))
    starts = np.array([micros(period.start) for period, _ in parts], dtype=np.int64)
    most = [now.cap_milli if what == "cap" else now.memory_mib or 0 for _, now in parts]
    return np.array(most, dtype=np.int64)[np.searchsorted(starts, times, side="right") - 1]


def _runs(true: Bools) -> list[tuple[int, int]]:
    """From which step until before which it holds without a break."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], true, [False])).astype(np.int64)))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _period(found: Stairs, first: int, last: int) -> Period:
    start = instant(int(found.time[first]))
    assert start is not None
    return Period(start, instant(int(found.time[last])) if last < len(found.time) else None)
