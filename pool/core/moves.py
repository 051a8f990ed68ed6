"""What would have to move so that an ask fits: bookings yet to start, placed elsewhere for their own time.

The least in total, and never online work: who may be moved is the caller's list. Nothing
is moved here; what is found is shown to an operator, and checked again when it is applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from uuid import UUID

import numpy as np

from pool.core.asks import Ask
from pool.core.fleet import BOOKED, ROW, Fleet, halves
from pool.core.fleet_views import record_of
from pool.core.period import Period
from pool.core.placement import Busy, Pick, Policy, candidates

#: Sets of bookings that are tried, the least first.
MOST_SETS = 256
#: Ways to place the ask among what a set leaves free, of which one has to leave room for the set elsewhere.
_WAYS = 8


@dataclass(frozen=True, slots=True)
class Movable:
    """A booking that may be placed anew: what it asked for, for which time GPUs are blocked, what it counts.

    `gpus` are the ids of those that it holds now.
    """

    reservation: UUID
    ask: Ask
    period: Period
    charge_milli: int
    gpus: frozenset[int]
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Where all of a booking goes."""

    reservation: UUID
    period: Period
    picks: tuple[Pick, ...]


@dataclass(frozen=True, slots=True)
class Shift:
    """What the ask gets once these are moved; `charge_milli` is what is moved in all."""

    picks: tuple[Pick, ...]
    moves: tuple[Move, ...]
    charge_milli: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ask that does not fit, and for which time."""

    ask: Ask
    period: Period
    account: str | None = None


def shift(
    fleet: Fleet, wanted: Wanted, movable: Sequence[Movable], *, now: datetime, policy: Policy | None = None
) -> Shift | None:
    """The moves of the least total charge after which `wanted` fits; they are made together.

    None when there are none among the first 256 sets of bookings, or when it fits as it is.
    What is moved may go where another of the moved was.
    """
    near = sorted(
        (one for one in movable if one.period.overlaps(wanted.period)),
        key=lambda one: (one.charge_milli, one.reservation),
    )
    mover = _Mover(fleet, wanted, now, policy)
    if mover.ways(fleet) or not mover.ways(mover.without(near)):
        return None
    for number, some in enumerate(_sets(near)):
        if number == MOST_SETS:
            return None
        found = mover.moved(some)
        if found is not None:
            return found
    return None


def _sets(movable: Sequence[Movable]) -> Iterator[tuple[Movable, ...]]:
    """All sets of these, by what they count in all; of equal ones the smaller set first."""
    heap: list[tuple[int, int, tuple[int, ...]]] = []

    def push(which: tuple[int, ...]) -> None:
        heappush(heap, (sum(movable[n].charge_milli for n in which), len(which), which))

    if movable:
        push((0,))
    while heap:
        _, _, which = heappop(heap)
        yield tuple(movable[n] for n in which)
        following = which[-1] + 1
        if following < len(movable):
            push((*which, following))
            push((*which[:-1], following))


@dataclass(frozen=True, slots=True)
class _Mover:
    fleet: Fleet
    wanted: Wanted
    now: datetime
    policy: Policy | None

    def ways(self, fleet: Fleet) -> list[tuple[Pick, ...]]:
        wanted = self.wanted
        found = candidates(
            fleet, wanted.ask, wanted.period, _WAYS, account=wanted.account, now=self.now, policy=self.policy
        )
        return [one.picks for one in found]

    def moved(self, some: Sequence[Movable]) -> Shift | None:
        """The ask in what these leave, and all of these elsewhere."""
        left = self.without(some)
        for picks in self.ways(left):
            moves = self._elsewhere(with_picks(left, picks, self.wanted.period), some)
            if moves is not None:
                return Shift(picks, moves, sum(one.charge_milli for one in some))
        return None

    def without(self, some: Sequence[Movable]) -> Fleet:
        """The fleet without what these hold."""
        return without(self.fleet, some)

    def _elsewhere(self, fleet: Fleet, some: Sequence[Movable]) -> tuple[Move, ...] | None:
        """A place for each, the largest first."""
        moves = []
        order = sorted(some, key=lambda one: (-one.charge_milli, one.reservation))
        for one in order:
            found = candidates(
                fleet, one.ask, one.period, 1, account=one.account, now=self.now, policy=self.policy
            )
            if not found:
                return None
            moves.append(Move(one.reservation, one.period, found[0].picks))
            fleet = with_picks(fleet, found[0].picks, one.period)
        return tuple(moves)


def without(fleet: Fleet, some: Collection[Movable]) -> Fleet:
    """The fleet without what these hold."""
    places = np.array(sorted({fleet.places[gpu] for one in some for gpu in one.gpus}), dtype=np.int64)
    rows = fleet.rows(places)
    for one in some:
        rows = rows[(rows["reservation"] != halves(one.reservation)).any(axis=1)]
    return fleet.updated([fleet.cards[place] for place in places.tolist()], rows)


def with_picks(fleet: Fleet, picks: Sequence[Pick], period: Period) -> Fleet:
    """The fleet in which these are taken as well."""
    users = sorted({p.portion.user for p in picks if p.portion and p.portion.user})
    numbers: dict[str | None, int] = {None: 0} | {name: fleet.account_number(name) for name in users}
    places = np.array(sorted({fleet.places[pick.gpu_id] for pick in picks}), dtype=np.int64)
    there = fleet.rows(places)
    new = np.zeros(len(picks), dtype=ROW)
    for n, pick in enumerate(picks):
        new[n] = record_of(pick.gpu_id, _busy(pick, period), numbers)
    cards = [fleet.cards[place] for place in places.tolist()]
    return fleet.updated(cards, np.concatenate((there, new)))


def _busy(pick: Pick, period: Period) -> Busy:
    profile = pick.profile
    return Busy(
        pick.start,
        pick.size,
        period,
        None if profile is None else profile.media,
        BOOKED,
        None if profile is None else profile.profile_id,
        pick.portion,
        pick.cpu_milli,
        pick.ram_mib,
    )
