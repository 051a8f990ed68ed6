"""What would have to move so that an ask fits: bookings yet to start, placed elsewhere for their own time.

The least in total, and never online work: who may be moved is the caller's list. Nothing
is moved here; what is found is shown to an operator, and checked again when it is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from uuid import UUID

import numpy as np

from pool.core.asks import Ask, GpuAsk
from pool.core.clearing import Wanted, sets
from pool.core.fleet import BOOKED, ROW, Fleet, Records, halves, instant
from pool.core.fleet_views import record_of
from pool.core.period import Period
from pool.core.placement import Busy, Candidate, Pick, Policy, candidates, held_by
from pool.core.placement_mode import wide

__all__ = [
    "Movable",
    "Move",
    "Shift",
    "Wanted",
    "places",
    "rows_of",
    "shift",
    "tied",
    "with_picks",
    "without",
]

#: Of so many bookings all sets are tried, of more only those that free one place after another.
FEW = 8
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


def shift(
    fleet: Fleet, wanted: Wanted, movable: Sequence[Movable], *, now: datetime, policy: Policy | None = None
) -> Shift | None:
    """The moves of the least total charge after which `wanted` fits; they are made together.

    Of up to 8 bookings in the way all sets are tried; of more those that are in the way at one place
    after another (clearing.sets), those that count least. None when none of them helps, or when it
    fits as it is. What is moved may go where another of the moved was.
    """
    near = sorted(
        (one for one in movable if one.period.overlaps(wide(wanted.period)) and not tied(fleet, one)),
        key=lambda one: (one.charge_milli, one.reservation),
    )
    mover = _Mover(fleet, wanted, now, policy)
    if mover.ways(fleet):
        return None
    if not mover.ways(mover.without(near)):
        return None
    if len(near) <= FEW:
        return next((found for some in _sets(near) if (found := mover.moved(some))), None)
    by_id = {one.reservation: one for one in near}
    some_of = [[by_id[pk] for pk in some] for some in sets(fleet, wanted, now=now, only=by_id)]
    for some in sorted(some_of, key=lambda some: sum(one.charge_milli for one in some)):
        found = mover.moved(some)
        if found is not None:
            return mover.fewest(found, some)
    return None


def tied(fleet: Fleet, one: Movable) -> bool:
    """Whether it goes on where its owner is, or has an IMEX channel for just these nodes: then it stays."""
    if isinstance(one.ask, GpuAsk) and one.ask.same_nvlink_domain:
        return True
    mine = rows_of(fleet, one)
    if not len(mine):
        return True
    since, until = instant(int(mine["since"][0])), instant(int(mine["until"][0]))
    assert since is not None
    own = held_by(fleet, int(mine["owner"][0]), int(mine["team"][0]), Period(since, until))
    return bool({gpu for gpu, _, _ in own} & set(mine["gpu"].tolist()))


def places(
    fleet: Fleet,
    one: Movable,
    mine: Records,
    *,
    now: datetime,
    policy: Policy | None = None,
    most: int = _WAYS,
) -> list[Candidate]:
    """Where else it could be, best first: on its GPU models, counting the same, without a change of mode.

    `mine` is what it has now, `fleet` is without that.
    """
    here = Counter(fleet.cards[fleet.places[gpu]].model for gpu in mine["gpu"].tolist())
    other = set(fleet.models) - set(here)
    found = candidates(
        fleet, one.ask, one.period, most, account=one.account, now=now, policy=policy, avoid=other
    )
    return [
        to
        for to in found
        if to.charge_milli == one.charge_milli
        and Counter(pick.model for pick in to.picks) == here
        and not any(pick.switch for pick in to.picks)
    ]


def rows_of(fleet: Fleet, one: Movable) -> Records:
    """What is known of it on its GPUs."""
    places = np.array(sorted(fleet.places[gpu] for gpu in one.gpus), dtype=np.int64)
    rows = fleet.rows(places)
    mine: Records = rows[(rows["reservation"] == halves(one.reservation)).all(axis=1)]
    return mine


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

    def fewest(self, found: Shift, some: Sequence[Movable]) -> Shift:
        """The same without those, the largest first, that need not move after all."""
        for one in sorted(some, key=lambda one: (-one.charge_milli, one.reservation))[:FEW]:
            rest = [other for other in some if other is not one]
            fewer = self.moved(rest) if rest else None
            if fewer is not None:
                found, some = fewer, rest
        return found

    def without(self, some: Sequence[Movable]) -> Fleet:
        """The fleet without what these hold."""
        return without(self.fleet, some)

    def _elsewhere(self, fleet: Fleet, some: Sequence[Movable]) -> tuple[Move, ...] | None:
        """A place for each, the largest first."""
        moves = []
        order = sorted(some, key=lambda one: (-one.charge_milli, one.reservation))
        for one in order:
            found = places(fleet, one, rows_of(self.fleet, one), now=self.now, policy=self.policy)
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
