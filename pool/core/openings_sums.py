"""What pieces that come and go make together over time, on nodes that give only so many, in segments."""

from __future__ import annotations

import numpy as np

from pool.core.fleet import Fleet, Ints
from pool.core.fleet_cards import node_resources
from pool.core.fleet_rows import NEVER
from pool.core.topology import Reach

#: Whose, when, and what is there from then on.
Levels = tuple[Ints, Ints, Ints]


def levels(group: Ints, start: Ints, end: Ints, amounts: Ints) -> Levels:
    """Group by group, each instant at which something changes and what is there from then on."""
    whose, when = np.concatenate((group, group)), np.concatenate((start, end))
    return _running(whose, when, np.concatenate((amounts, -amounts)))


def _running(group: Ints, when: Ints, change: Ints) -> Levels:
    order = np.lexsort((change, when, group))
    group, when = group[order], when[order]
    level = np.cumsum(change[order])
    final = np.ones(len(group), dtype=np.bool_)
    final[:-1] = (group[1:] != group[:-1]) | (when[1:] != when[:-1])
    return group[final], when[final], level[final]


def above(at: Ints, start: Ints, end: Ints, amounts: Ints, most: int | Ints) -> tuple[Ints, Ints, Ints]:
    """Where and when the amounts that are there at once come to more than `most` (of all, or [groups])."""
    whose, when, level = levels(at, start, end, amounts)
    over = np.flatnonzero(level > (most if isinstance(most, int) else most[whose]))
    # The last of each group brings its level to 0, so that each one above has a next one there.
    return whose[over], when[over], when[over + 1]


def together(reach: Reach, place: Ints, way: Ints, weight: Ints, first: Ints, last: Ints) -> Levels:
    """How many pieces start together, of each key and way: as Reach.together, at all instants at once.

    Each of `weight` could start on its place at any instant from `first` to `last`.
    """
    key = reach.key[place] * (int(way.max(initial=0)) + 1) + way
    if reach.most is None and reach.cell is None:
        return levels(key, first, last + 1, weight)
    when, change = np.concatenate((first, last + 1)), np.concatenate((weight, -weight))
    cell = np.zeros(len(key), dtype=np.int64) if reach.cell is None else reach.cell[place]
    names, number = np.unique(np.stack((key, cell, reach.node[place])), axis=1, return_inverse=True)
    whose = np.tile(number.ravel(), 2)
    if reach.most is not None:
        whose, when, level = _running(whose, when, change)
        change = _changes(whose, np.minimum(level, reach.most[names[2, whose]]))
    if reach.cell is not None:
        cells, of_cell = np.unique(names[:2], axis=1, return_inverse=True)
        whose, when, level = _running(of_cell.ravel()[whose], when, change)
        change = _changes(whose, level // reach.segment * reach.segment)
        names = cells
    return _running(names[0, whose], when, change)


def _changes(group: Ints, level: Ints) -> Ints:
    """By how much each level differs from the one before it in its group."""
    change = np.diff(level, prepend=0)
    first = np.ones(len(group), dtype=np.bool_)
    first[1:] = group[1:] != group[:-1]
    change[first] = level[first]
    return change


def short_nodes(
    fleet: Fleet,
    node: Ints,
    start: Ints,
    end: Ints,
    taken: tuple[Ints, Ints],
    wants: tuple[int, int],
    far: int,
) -> tuple[Ints, Ints, Ints]:
    """The nodes that have less cpu or memory left than is wanted, and when; up to `far`.

    `taken` is what each thing takes of both while it is there.
    """
    parts = []
    for has, amounts, wanted in zip(fleet.fact(node_resources), taken, wants, strict=True):
        if wanted:
            most = np.where(has == NEVER, NEVER, has - wanted)
            some = np.flatnonzero(amounts)
            parts.append(above(node[some], start[some], end[some], amounts[some], np.maximum(most, 0)))
            never = np.flatnonzero(most < 0)
            parts.append((never, np.zeros_like(never), np.full_like(never, far)))
    if not parts:
        return node[:0], node[:0], node[:0]
    found = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return found[0], found[1], found[2]
