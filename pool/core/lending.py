"""What is left to borrow: what is free, less what teams are guaranteed, do not lend and do not use.

A team's claim is on a model, for its line for that model, and on the pool's total, for its line
for any. A team and those below it claim what the team itself would, or what those below it would,
whichever is more. Nobody has to leave room for a claim of a team above it, in whose guarantee it
is. Amounts in milli, times in microseconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pool.core import stairs
from pool.core.charter import Charter, Terms
from pool.core.fleet_rows import Bools, Ints
from pool.core.stairs import Events, Stairs

if TYPE_CHECKING:
    from pool.core.standing import Standing


def room(standing: Standing, team: int, start: int, end: int, there: Ints | None = None) -> Stairs:
    """What may still be borrowed by the team, and then what others claim: of each model and of all together.

    Below 0 where more is borrowed than is lent. `there`: the uses to look at, if they are known.
    """
    if there is None:
        there = standing.uses.within(start, end)
    parts = []
    charter = standing.charter
    edges = [start, *charter.edges_in(start, end).tolist(), end]
    for since, until in pairwise(edges):
        parts.append(_room(standing, charter.terms(since), team, (since, until), there))
    columns = ([getattr(one, name) for one in parts] for name in ("group", "time", "level"))
    return Stairs(*map(np.concatenate, columns))


def keeps(standing: Standing, team: int, start: int, end: int) -> bool:
    """Whether any other team's guarantee is not lent wholly: else there is nothing to look at."""
    charter = standing.charter
    others = ~on_path(charter, team)
    edges = (start, *charter.edges_in(start, end).tolist())
    return any(bool(charter.terms(one).kept[others].any()) for one in edges)


def on_path(charter: Charter, team: int | None) -> Bools:
    """[team]: whether it is this team or one above it."""
    found = np.zeros(len(charter.teams), dtype=np.bool_)
    if team is not None:
        found[[charter.row[one] for one in charter.tree.path(team) if one in charter.row]] = True
    return found


def _room(standing: Standing, terms: Terms, team: int, within: tuple[int, int], there: Ints) -> Stairs:
    number, uses = len(standing.charter.models), standing.uses
    since, until = uses.since[there], uses.until[there]
    here = (since < within[1]) & (until > within[0])
    if not here.all():
        there, since, until = there[here], since[here], until[here]
    zero = np.zeros(len(there), dtype=np.int64)
    model, milli = uses.model[there], uses.milli[there]
    used = stairs.events(zero, model, milli, since, until, within, (1, 2 * number + 1))
    claimed = _claims(standing, terms, team, within, there)
    found = stairs.stairs(stairs.merged([used, *claimed]), within[0])
    use, claim = found.level[:, :number], found.level[:, number:]
    capacity = standing.capacities
    free = np.column_stack((capacity - use, capacity.sum() - use.sum(axis=1)))
    return Stairs(found.group, found.time, np.column_stack((free - claim, claim)))


def _claims(
    standing: Standing, terms: Terms, team: int, within: tuple[int, int], which: Ints
) -> list[Events]:
    """What others keep and do not use: in the columns after those of what is used, as `_room` has them."""
    charter, number = standing.charter, len(standing.charter.models)
    mine = on_path(charter, team)
    node, uses = standing.nodes, standing.uses
    which = which[node[which] >= 0]
    lasting = which[(uses.since[which] <= within[0]) & (uses.until[which] >= within[1])]
    keys = node[lasting] * number + uses.model[lasting]
    least = stairs.sums(keys, uses.milli[lasting], len(mine) * number).reshape(-1, number)
    host = _hosts(charter, terms, mine, least)
    which = which[host[node[which]] >= 0]
    pending = stairs.events(
        host[node[which]],
        uses.model[which],
        uses.milli[which],
        uses.since[which],
        uses.until[which],
        within,
        (len(host), 2 * number + 1),
    )
    out: list[Events] = []
    for rows in charter.levels:
        rows = rows[host[rows] == rows]
        if not len(rows):
            continue
        here = np.full(len(host), -1, dtype=np.int64)
        here[rows] = np.arange(len(rows))
        found = stairs.stairs(stairs.regrouped(pending, here, len(rows)), within[0])
        changed = found.changes(_claimed(found, terms, rows, number), len(rows))
        above = charter.above[rows]
        outside = (above < 0) | mine[above]
        out.append(_claims_only(stairs.regrouped(changed, np.where(outside, 0, -1), 1), number))
        pending = stairs.merged([pending, stairs.regrouped(changed, np.where(outside, -1, above), len(host))])
    return out


def _hosts(charter: Charter, terms: Terms, mine: Bools, least: Ints) -> Ints:
    """[team]: itself or the next above it that may claim something; -1: neither it nor one above does.

    `least` [team, model] is what its own work uses all the time: who needs no more keeps nothing for it.
    """
    number, least = least.shape[1], least.copy()
    for rows in charter.levels:
        up = charter.above[rows] >= 0
        np.add.at(least, charter.above[rows[up]], least[rows[up]])
    over = np.maximum(0, least - terms.guaranteed[:, :number]).sum(axis=1)
    wants = (terms.kept[:, :number] > least).any(axis=1) | (terms.kept[:, number] > over)
    wants &= ~mine
    for rows in charter.levels:
        above = charter.above[rows]
        up = above[wants[rows] & (above >= 0)]
        wants[up[~mine[up]]] = True
    host = np.full(len(mine), -1, dtype=np.int64)
    for rows in reversed(charter.levels):
        above = charter.above[rows]
        host[rows] = np.where(wants[rows], rows, np.where(above >= 0, host[above], -1))
        host[rows[mine[rows]]] = -1
    return host


def _claimed(found: Stairs, terms: Terms, rows: Ints, number: int) -> Ints:
    """What is used passes on; each team claims what it keeps, or what those below it claim."""
    team = rows[found.group]
    used, below, total = found.level[:, :number], found.level[:, number:-1], found.level[:, -1]
    kept, guaranteed = terms.kept[team], terms.guaranteed[team, :number]
    own = np.maximum(0, kept[:, :number] - used)
    claim = np.maximum(own, below)
    over = np.maximum(0, used - guaranteed).sum(axis=1)
    alone = own.sum(axis=1) + np.maximum(0, kept[:, number] - over)
    return np.column_stack((used, claim, np.maximum(np.maximum(alone, total), claim.sum(axis=1))))


def _claims_only(one: Events, number: int) -> Events:
    base = one.base.copy()
    base[:, :number] = 0
    here = one.channel >= number
    return Events(base, one.group[here], one.time[here], one.channel[here], one.delta[here])
