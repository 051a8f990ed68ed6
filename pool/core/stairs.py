"""Step functions of time in columns: what many uses with a start and an end come to at every instant.

Times are microseconds (fleet_rows.micros), half-open: at one instant, what ends is
gone before what starts counts. What the amounts are is known to callers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pool.core.fleet_rows import Bools, Ints


@dataclass(frozen=True, eq=False, slots=True)
class Events:
    """Changes of `channels` amounts of `len(base)` groups after the instant for which `base` holds.

    `base` is [group, channel]; the rest has one entry a change of one amount of one group.
    """

    base: Ints
    group: Ints
    time: Ints
    channel: Ints
    delta: Ints

    @property
    def channels(self) -> int:
        return int(self.base.shape[1])


@dataclass(frozen=True, eq=False, slots=True)
class Stairs:
    """Levels of several groups: `level[i]` (a row of channels) of `group[i]` holds from `time[i]` on.

    In the order of groups, then of times, each (group, time) once; every group begins at the same `time`.
    """

    group: Ints
    time: Ints
    level: Ints

    def changes(self, level: Ints, number: int) -> Events:
        """These other levels at the same times, as changes from each group's first."""
        first = _firsts(self.group)
        starts = np.flatnonzero(first)
        base = np.zeros((number, level.shape[1]), dtype=np.int64)
        base[self.group[starts]] = level[starts]
        delta = np.diff(level, axis=0, prepend=level[:1])
        delta[starts] = 0
        at, channel = np.nonzero(delta)
        return Events(base, self.group[at], self.time[at], channel, delta[at, channel])


def events(
    group: Ints,
    channel: Ints,
    amount: Ints,
    since: Ints,
    until: Ints,
    within: tuple[int, int],
    shape: tuple[int, int],
) -> Events:
    """Of uses that overlap `within`: what is there at its start is the base. `shape`: (groups, channels)."""
    start, end = within
    there = since <= start
    base = sums(group[there] * shape[1] + channel[there], amount[there], shape[0] * shape[1])
    comes, goes = np.flatnonzero(~there), np.flatnonzero(until < end)
    which = np.concatenate((comes, goes))
    return Events(
        base=base.reshape(shape),
        group=group[which],
        time=np.concatenate((since[comes], until[goes])),
        channel=channel[which],
        delta=np.concatenate((amount[comes], -amount[goes])),
    )


def merged(parts: list[Events]) -> Events:
    """The sum of events of the same groups and channels."""
    if len(parts) == 1:
        return parts[0]
    return Events(
        base=np.sum([one.base for one in parts], axis=0),
        group=np.concatenate([one.group for one in parts]),
        time=np.concatenate([one.time for one in parts]),
        channel=np.concatenate([one.channel for one in parts]),
        delta=np.concatenate([one.delta for one in parts]),
    )


def regrouped(one: Events, to: Ints, number: int) -> Events:
    """The events of groups together: group g becomes `to[g]` of `number` (below 0: is left out)."""
    base = np.zeros((number, one.channels), dtype=np.int64)
    kept = to >= 0
    np.add.at(base, to[kept], one.base[kept])
    group = to[one.group]
    here = group >= 0
    return Events(base, group[here], one.time[here], one.channel[here], one.delta[here])


def stairs(one: Events, start: int, edges: Ints | None = None) -> Stairs:
    """The levels from `start` on; `edges` are further instants at which each group has a level."""
    number = len(one.base)
    marks = np.array([start], dtype=np.int64) if edges is None else np.append(edges, start)
    group = np.concatenate((one.group, np.repeat(np.arange(number), len(marks))))
    time = np.concatenate((one.time, np.tile(marks, number)))
    order = _ordered(group, time, number)
    group, time = group[order], time[order]
    fresh = _firsts(group) | (np.diff(time, prepend=time[:1]) != 0)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(fresh) - 1
    group, time = group[fresh], time[fresh]
    change = sums(place[: len(one.group)] * one.channels + one.channel, one.delta, len(time) * one.channels)
    level = np.cumsum(change.reshape(len(time), one.channels), axis=0)
    starts = np.flatnonzero(_firsts(group))
    # What came before a group is not its own: all groups end at the sum of their changes.
    before = np.vstack((np.zeros((1, one.channels), dtype=np.int64), level))[starts]
    level += (one.base[group[starts]] - before)[np.cumsum(_firsts(group)) - 1]
    return Stairs(group, time, level)


def sums(keys: Ints, amounts: Ints, number: int) -> Ints:
    """The sum of the amounts of each key below `number`; exact below 2**53."""
    return np.bincount(keys, weights=amounts, minlength=number).astype(np.int64)


def _firsts(group: Ints) -> Bools:
    found: Bools = np.diff(group, prepend=-1) != 0
    return found


def _ordered(group: Ints, time: Ints, number: int) -> Ints:
    """By group, then time: one number holds both where there is room, which sorts much faster than two."""
    if number <= 1:
        return np.argsort(time)
    low = int(time.min())
    bits = (int(time.max()) - low).bit_length()
    if bits + number.bit_length() <= 62:
        return np.argsort((group << bits) | (time - low))
    return np.lexsort((time, group))
