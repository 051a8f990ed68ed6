"""Which few bookings that have not begun are better placed elsewhere, so that more of what is left is of use.

Who may be moved is the caller's list; nothing that runs is in it. A booking keeps its time, its
GPU models and its charge, and stays where its owner is before or after it. Nothing is moved here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from pool.core.fleet import Fleet, Ints, Records, micros, span_of
from pool.core.fleet import fleet as fleet_of
from pool.core.fleet_rows import Rows
from pool.core.fragmentation import Figure, fragmentation
from pool.core.mix import Mix
from pool.core.moves import Movable, Move, places, rows_of, tied, with_picks, without
from pool.core.period import Period
from pool.core.placement import Candidate, Policy, prior

#: So many moves at most: few enough that somebody looks at each.
MOST = 5
#: What one has to win, in thousandths of a GPU times hours.
LEAST = 50.0
#: Places that are tried for each booking.
_PLACES = 2
_HOUR = 3600 * 10**6
NOTHING = Figure()


@dataclass(frozen=True, slots=True)
class Step:
    """One move: where all of the booking is (GPU id, first slice, slices), and what it wins.

    `won`: in thousandths of a GPU times hours that the usual asks can use again.
    """

    move: Move
    before: tuple[tuple[int, int, int], ...]
    won: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in their order. `before`, `after`: thousandths of GPU-hours on the nodes concerned meanwhile."""

    steps: tuple[Step, ...] = ()
    before: Figure = NOTHING
    after: Figure = NOTHING


def plan(
    known: Fleet,
    movable: Sequence[Movable],
    *,
    now: datetime,
    policy: Policy | None = None,
    most: int = MOST,
) -> Plan:
    """The moves that win the most, one after another; none that wins less than `LEAST`."""
    search = _Search(known, now, policy or prior())
    heap = [(-step.won, one.reservation, 0, step) for one in movable if (step := search.best(one))]
    heapify(heap)
    by_id = {one.reservation: one for one in movable}
    steps: list[Step] = []
    while heap and len(steps) < most:
        _, reservation, seen, step = heappop(heap)
        if seen == len(steps):
            search.make(by_id[reservation], step)
            steps.append(step)
            continue
        # Others have moved since it was looked at.
        again = search.best(by_id[reservation])
        if again is not None:
            heappush(heap, (-again.won, reservation, len(steps), again))
    return _told(known, search, steps)


def _told(known: Fleet, search: _Search, steps: Sequence[Step]) -> Plan:
    if not steps:
        return Plan()
    gpus = {gpu for step in steps for gpu, _, _ in step.before}
    gpus |= {pick.gpu_id for step in steps for pick in step.move.picks}
    start = min(step.move.period.start for step in steps)
    ends = [step.move.period.end for step in steps]
    whole = Period(start, max(end for end in ends if end is not None))
    return Plan(tuple(steps), *(search.spoilt(one, gpus, whole) for one in (known, search.fleet)))


class _Search:
    def __init__(self, known: Fleet, now: datetime, policy: Policy) -> None:
        self.fleet = known
        self.now = now
        self.policy = policy

    def make(self, one: Movable, step: Step) -> None:
        """From here on it is there."""
        self.fleet = with_picks(without(self.fleet, [one]), step.move.picks, one.period)

    def best(self, one: Movable) -> Step | None:
        """The move of this booking that wins the most; None where none is worth it."""
        mine = rows_of(self.fleet, one)
        if one.period.end is None or tied(self.fleet, one):
            return None
        left = without(self.fleet, [one])
        here = tuple(sorted((int(row["gpu"]), *span_of(row["mask"])) for row in mine))
        found = places(left, one, mine, now=self.now, policy=self.policy, most=_PLACES)
        steps = [self._step(one, left, here, to) for to in found]
        steps = [step for step in steps if step.won >= LEAST]
        return max(steps, key=lambda step: step.won, default=None)

    def _step(self, one: Movable, left: Fleet, here: tuple[tuple[int, int, int], ...], to: Candidate) -> Step:
        gpus = {gpu for gpu, _, _ in here} | {pick.gpu_id for pick in to.picks}
        # Only of the nodes concerned: the whole fleet is long to write anew.
        after = with_picks(_nodes_of(left, gpus), to.picks, one.period)
        lost = [self.spoilt(known, gpus, one.period).lost for known in (self.fleet, after)]
        return Step(Move(one.reservation, one.period, to.picks), here, lost[0] - lost[1])

    def spoilt(self, known: Fleet, gpus: Collection[int], period: Period) -> Figure:
        """What is free, and of no use, on the nodes of these GPUs over the period, in hours."""
        return _over(_nodes_of(known, gpus), period, self.now, self.policy.mix)


def _nodes_of(known: Fleet, gpus: Collection[int]) -> Fleet:
    """Only the nodes on which these GPUs are."""
    nodes = {int(known.node[known.places[gpu]]) for gpu in gpus}
    places: Ints = np.flatnonzero(np.isin(known.node, sorted(nodes)))
    return fleet_of(
        [known.cards[place] for place in places.tolist()],
        known.rows(places),
        change=known.change,
        accounts=known.accounts,
        most_shares=known.most_shares,
        one_user=known.one_user,
        stale=known.stale,
    )


def _over(part: Fleet, period: Period, now: datetime, mix: Mix) -> Figure:
    """The figure of the fleet over the period: of each stretch in which nothing changes, times its hours.

    All stretches at once: each is a copy of the GPUs, on nodes of its own, with what is there meanwhile.
    """
    rows, at = part.on.records(slice(None)), part.on.at
    cuts = _cuts(rows, period)
    copies, gpus = len(cuts) - 1, len(part.id)
    # From which stretch on, and up to which, each of the rows is there.
    first = np.clip(np.searchsorted(cuts, rows["start"]), 0, copies)
    last = np.clip(np.searchsorted(cuts, rows["end"]), 0, copies)
    number = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(rows)), number)
    stretch = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number) + first[which]
    there = rows[which]
    there["start"], there["end"] = cuts[0], cuts[-1]
    told = fragmentation(_copied(part, copies, stretch * gpus + at[which], there).window(period, now), mix)
    hours = np.diff(cuts) / _HOUR
    free, lost = (column.reshape(copies, gpus).sum(axis=1) @ hours for column in (told.free, told.lost))
    return Figure(float(free), float(lost))


def _cuts(rows: Records, period: Period) -> Ints:
    start, end = micros(period.start), micros(period.end)
    times = np.unique(np.concatenate((rows["start"], rows["end"])))
    return np.concatenate(([start], times[(times > start) & (times < end)], [end]))


#: The columns of a fleet over its places that are the same in each copy.
_COLUMNS = ("id", "model", "domain", "block", "geometry", "memory", "grid", "full", "use", "sharing", "ready")


def _copied(part: Fleet, copies: int, at: Ints, rows: Records) -> Fleet:
    """So many copies of these GPUs, for figures only: they have one another's ids."""
    columns: dict[str, Any] = {name: np.tile(getattr(part, name), copies) for name in _COLUMNS}
    nodes = len(part.nodes)
    columns["node"] = np.tile(part.node, copies) + np.repeat(np.arange(copies) * nodes, len(part.id))
    return replace(
        part,
        **columns,
        nodes=part.nodes * copies,
        usable=np.tile(part.usable, copies),
        block_sizes=(),
        on=Rows.of(at, rows),
    )
