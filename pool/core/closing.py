"""When the lines of a team leave too little for an ask, whatever its place: what offers need not look at.

A first sieve over a long window. What it leaves open may still be refused when it is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pool.core.fleet_rows import NEVER, Bools, Ints, instant, micros
from pool.core.period import Period
from pool.core.quota_lines import Line
from pool.core.standing import Standing


def closed(
    standing: Standing, team: int, models: Collection[str], milli: int, window: Period, *, firm: bool
) -> tuple[Period, ...]:
    """When in `window` a line has less left than `milli` for the models that could serve, by their starts.

    Each line with what grants add to it, while they do. `firm`: what cannot be taken back has to
    lie within the guaranteed of its own team.
    """
    tree, found = standing.charter.tree, []
    path = set(tree.path(team))
    for line in standing.charter.all_lines.values():
        if line.team not in path or (line.model is not None and set(models) != {line.model}):
            continue
        there = np.isin(standing.uses.team, list(tree.below(line.team)))
        found += _over(
            standing, there & _of_model(standing, line.model), _steps(standing, [line], "cap"), milli
        )
    if firm:
        found += _firm(standing, team, models, milli)
    start, end = micros(window.start), micros(window.end)
    shut = sorted((max(since, start), until) for since, until in found if since < end and until > start)
    return tuple(_period(since, until) for since, until in shut)


def _firm(standing: Standing, team: int, models: Collection[str], milli: int) -> list[tuple[int, int]]:
    """By what is guaranteed to the team for any of these models together."""
    own = [line for (whose, _), line in standing.charter.all_lines.items() if whose == team]
    limit = _steps(standing, [one for one in own if one.model in (None, *models)], "guaranteed")
    numbers = [standing.models.index(model) for model in models if model in standing.models]
    uses = standing.uses
    there = (uses.team == team) & uses.firm & np.isin(uses.model, numbers)
    return _over(standing, there, limit, milli)


#: What the lines have in all, and (since, until, thousandths) of what grants add.
_Limit = tuple[int, Sequence[tuple[int, int, int]]]


def _steps(standing: Standing, lines: Sequence[Line], what: str) -> _Limit:
    """The caps or guarantees of these lines together."""
    name = f"{what}_milli"
    grants = [one for line in lines for one in standing.charter.grants_of.get((line.team, line.model), ())]
    added = [(micros(one.period.start), micros(one.period.end), int(getattr(one, name))) for one in grants]
    return sum(int(getattr(line, name)) for line in lines), added


def _of_model(standing: Standing, model: str | None) -> Bools:
    if model is None:
        return np.ones(len(standing.uses), dtype=np.bool_)
    number = standing.models.index(model) if model in standing.models else -1
    return np.asarray(standing.uses.model == number)


def _over(standing: Standing, there: Bools, limit: _Limit, milli: int) -> list[tuple[int, int]]:
    """When these uses leave less than `milli` of the limit."""
    uses, (most, grants) = standing.uses, limit
    amounts: Ints = uses.milli[there]
    # What a grant adds is as if so much less were used.
    since, until, added = np.array([(0, NEVER, 0), *grants], dtype=np.int64).T
    times = np.concatenate((uses.until[there], uses.since[there], since, until))
    changes = np.concatenate((-amounts, amounts, -added, added))
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(changes[order])
    last = np.append(np.diff(times) != 0, True)[: len(times)]
    times, levels = times[last], levels[last]
    over = levels + milli > most
    edges = np.flatnonzero(np.diff(np.concatenate(([False], over)).astype(np.int8)))
    bounds = [*times[edges].tolist(), NEVER]
    return [(bounds[at], bounds[at + 1]) for at in range(0, len(bounds) - 1, 2)]


def _period(since: int, until: int) -> Period:
    start = instant(since)
    assert start is not None
    return Period(start, instant(until))
