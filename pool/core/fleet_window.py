"""What is free of a whole fleet over one period: masks, ledgers, node resources, in columns over its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pool.core.fleet_cards import node_resources
from pool.core.fleet_rows import NEVER, Bools, Ints, Records

if TYPE_CHECKING:
    from pool.core.fleet import Fleet


@dataclass(frozen=True, eq=False)
class Window:
    """A period on all GPUs of `fleet`: microseconds `start` to `end`. Columns are over the fleet's places.

    What is in the period, in the order of the places: `at` is the place of each, `mask` its
    span, `starts` and `ends` its time; `which` are their numbers in `fleet.on`.
    """

    fleet: Fleet
    start: int
    end: int
    which: Ints
    at: Ints
    mask: Ints
    starts: Ints
    ends: Ints

    def part(self, keep: Bools) -> Window:
        """Only what `keep` says of all that is in the period; what was read of it is not read again."""
        window = Window(
            fleet=self.fleet,
            start=self.start,
            end=self.end,
            which=self.which[keep],
            at=self.at[keep],
            mask=self.mask[keep],
            starts=self.starts[keep],
            ends=self.ends[keep],
        )
        window._fields.update({name: values[keep] for name, values in self._fields.items()})
        return window

    @cached_property
    def rows(self) -> Records:
        """All that is known of what is in the period (fleet.ROW), with the times of this window."""
        rows = self.fleet.on.records(self.which)
        rows["start"], rows["end"] = self.starts, self.ends
        return rows

    @cached_property
    def taken(self) -> Ints:
        """The memory slices that something takes at some instant: masks. A share takes the whole grid."""
        return self._folded(np.bitwise_or, self.mask)

    @cached_property
    def free(self) -> Ints:
        """The memory slices that nothing touches in the period: masks."""
        return self.fleet.full & ~self.taken

    @cached_property
    def number(self) -> Ints:
        """How many things are in the period."""
        return np.bincount(self.at, minlength=len(self.fleet.id)).astype(np.int64)

    @cached_property
    def empty(self) -> Bools:
        """Where nothing at all is in the period."""
        return np.equal(self.number, 0)

    @cached_property
    def shares_only(self) -> Bools:
        """Where nothing but shares is, or nothing at all."""
        shares = np.bincount(self.at[self._shares], minlength=len(self.fleet.id))
        return np.asarray(shares == self.number)

    @cached_property
    def share_peaks(self) -> tuple[Ints, Ints, Ints]:
        """What the ledgers hold at their fullest: memory in MiB, compute in percent, tenants.

        Exact, each at its own instant, as shares.peaks counts them.
        """
        shares = self._shares
        number = len(self.fleet.id)
        at, starts, ends = self.at[shares], np.maximum(self.starts[shares], self.start), self.ends[shares]
        memory, compute = self.of("memory", shares), self.of("compute", shares)
        # They change together, so that one order does for all three.
        order = _in_time(at, starts, ends)
        amounts = (memory, compute, np.ones(len(shares), dtype=np.int64))
        memory, compute, tenants = (_peaks(at, one, number, order) for one in amounts)
        return memory, compute, tenants

    @cached_property
    def account(self) -> Ints:
        """Whose MPS server is there (0: nobody's), -1 where there are several."""
        shares = self._shares
        whose = self.of("account", shares)
        least = self._folded(np.minimum, whose, shares)
        return np.where(least == self._folded(np.maximum, whose, shares), least, -1)

    @cached_property
    def media(self) -> Ints:
        """The media codes that are there, as bits (1 << code of fleet.MEDIA)."""
        return self._folded(np.bitwise_or, np.left_shift(1, self.of("media")))

    def instances(self, profile_id: int) -> Ints:
        """How many instances of this driver's profile id are there at the fullest instant. Exact."""
        same = np.flatnonzero(self.of("profile") == profile_id)
        return self._peak(same, self.at[same], np.ones(len(same), dtype=np.int64), len(self.fleet.id))

    @cached_property
    def node_free(self) -> tuple[Ints, Ints]:
        """Per node of `fleet.nodes`: cpu (thousandths) and memory (MiB) that are free at every instant.

        fleet.NEVER where it is not known what the node has.
        """
        cpu, ram = self.fleet.fact(node_resources)
        return self._node_left("cpu", cpu), self._node_left("ram", ram)

    def _node_left(self, name: str, has: Ints) -> Ints:
        taken = self.of(name)
        some = np.flatnonzero(taken)
        peak = self._peak(some, self.fleet.node[self.at[some]], taken[some], len(has))
        return np.where(has == NEVER, NEVER, has - peak)

    @cached_property
    def _fields(self) -> dict[str, Ints]:
        return {}

    @cached_property
    def _shares(self) -> Ints:
        return np.flatnonzero(self.of("memory") > 0)

    def of(self, name: str, part: Ints | slice = slice(None)) -> Ints:
        """One field of ROW of what is in the period (or of a part of it); no times, which are in `starts`."""
        # Kept, because several questions look at the same field.
        if name not in self._fields:
            self._fields[name] = self.fleet.on.field(name, self.which).astype(np.int64)
        return self._fields[name][part]

    def _folded(self, how: Any, values: Ints, part: Ints | None = None) -> Ints:
        """The values of each place put together by a ufunc; 0 where there are none."""
        folded = np.zeros(len(self.fleet.id), dtype=np.int64)
        at = self.at if part is None else self.at[part]
        if len(at):
            first = _firsts(at)
            folded[at[first]] = how.reduceat(values, first)
        return folded

    def _peak(self, part: Ints, group: Ints, amounts: Ints, groups: int) -> Ints:
        """The most that is there at any one instant, for each group; ends before starts of an instant."""
        starts, ends = self.starts[part], self.ends[part]
        through = (starts <= self.start) & (ends >= self.end)
        always = np.bincount(group[through], amounts[through], groups).astype(np.int64)
        some = np.flatnonzero(~through)
        if not len(some):
            return always
        return always + peaks(
            group[some], np.maximum(starts[some], self.start), ends[some], amounts[some], groups
        )


def peaks(group: Ints, starts: Ints, ends: Ints, amounts: Ints, groups: int) -> NDArray[np.int64]:
    """For each group 0..groups-1, the most that is there at any one instant of half-open times."""
    return _peaks(group, amounts, groups, _in_time(group, starts, ends))


def _in_time(group: Ints, starts: Ints, ends: Ints) -> Ints:
    """The order of all starts and, numbered after them, all ends: by group, then time, ends first."""
    last = (1 << 61) - 1
    # An end is an even number, a start the odd one after it.
    times = np.minimum(np.concatenate((starts, ends)), last) << 1
    times[: len(starts)] |= 1
    order = np.argsort(times)
    whose = np.concatenate((group, group))[order]
    few = int(group.max(initial=0)) < 1 << 15
    # Numbers of 16 bits are sorted several times as fast.
    return order[np.argsort(whose.astype(np.int16) if few else whose, kind="stable")]


def _peaks(group: Ints, amounts: Ints, groups: int, order: Ints) -> NDArray[np.int64]:
    """`peaks` of amounts that are not below 0, which come and go in this order (`_in_time`)."""
    most = np.zeros(groups, dtype=np.int64)
    if not len(group):
        return most
    whose = np.concatenate((group, group))[order]
    level = np.cumsum(np.concatenate((amounts, -amounts))[order])
    # All that starts in a group also ends in it, so that each group begins at 0.
    first = _firsts(whose)
    most[whose[first]] = np.maximum.reduceat(level, first)
    return most


def _firsts(sorted_values: Ints) -> Ints:
    """Where each new value begins."""
    return np.flatnonzero(np.concatenate(([True], sorted_values[1:] != sorted_values[:-1])))
