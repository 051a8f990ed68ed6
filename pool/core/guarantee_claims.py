"""What guarantees leave unused, as claims on GPUs over time; how much of each unit that comes to.

Whether they find a place is in guarantees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pool.core.fleet import NEVER, Bools, Fleet, Ints, micros
from pool.core.guarantee_counts import Need, extremes
from pool.core.period import Period
from pool.core.quota import WHOLE

#: In what a guarantee has to be obtainable; the codes in `Claims.unit`.
UNITS: tuple[str, ...] = ("slots", "gpu", "node")
#: The number of "any model" in `Claims.model`.
ANY = -1
_SLOTS, _GPU, _NODE = range(3)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one team's guarantee leaves unused over a time, in milli; `model` None is any.

    `unit`: slots are any slices or shares; gpu a GPU with nothing on it that stays; node
    `unit_size` such GPUs of one model on one node. What is no whole unit is claimed in the
    next smaller one. Claims add up: of a team and its parent each names only its own part.
    """

    team: int
    model: str | None
    milli: int
    period: Period
    unit: str = "slots"
    unit_size: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claims in columns: `model` is a number in Fleet.models or ANY, `unit` one in UNITS; microseconds."""

    team: Ints
    model: Ints
    unit: Ints
    size: Ints
    milli: Ints
    since: Ints
    until: Ints

    @classmethod
    def of(cls, fleet: Fleet, claims: Iterable[Claim]) -> Claims:
        """These; one for a model of which the pool has no GPU is left out, because nothing can serve it."""
        number: dict[str | None, int] = {name: n for n, name in enumerate(fleet.models)} | {None: ANY}
        rows = [
            (
                one.team,
                number[one.model],
                UNITS.index(one.unit),
                one.unit_size,
                one.milli,
                micros(one.period.start),
                micros(one.period.end),
            )
            for one in claims
            if one.model in number and one.milli > 0
        ]
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, 7).T)

    def but(self, team: int) -> Claims:
        """Those of all other teams."""
        return self.part(self.team != team)

    def of_team(self, team: int) -> Claims:
        """Those of this team alone."""
        return self.part(self.team == team)

    def within(self, start: int, end: int) -> Claims:
        """Those at some instant of this time."""
        return self.part((self.since < end) & (self.until > start))

    def and_(self, other: Claims) -> Claims:
        """Both."""
        return Claims(*(np.concatenate((getattr(self, n), getattr(other, n))) for n in self.__slots__))

    def part(self, which: Bools | Ints) -> Claims:
        """Some of them."""
        return Claims(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Takeable:
    """When rows may be taken back: `which` are numbers in `fleet.on`, `since` to `until` in microseconds."""

    which: Ints
    since: Ints
    until: Ints

    @classmethod
    def none(cls) -> Takeable:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing)


class _Units(NamedTuple):
    """Claims in whole units: `groups` of `size` GPUs each, single `gpus`, and `slots` in milli."""

    model: Ints
    size: Ints
    groups: Ints
    gpus: Ints
    slots: Ints

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.size[self.groups > 0].tolist()), reverse=True))

    def columns(self) -> list[Ints]:
        """The groups of each size, then the others."""
        return [np.where(self.size == one, self.groups, 0) for one in self.sizes] + [self.gpus, self.slots]


def _units(claims: Claims, models: int) -> _Units:
    """What is no whole unit is claimed in the next smaller one."""
    size = np.where(claims.unit == _NODE, np.maximum(claims.size, 1), 1)
    groups = np.where((claims.unit == _NODE) & (size > 1), claims.milli // (size * WHOLE), 0)
    rest = claims.milli - groups * size * WHOLE
    gpus = np.where(claims.unit == _SLOTS, 0, rest // WHOLE)
    # ANY is the last, behind the models.
    model = np.where(claims.model == ANY, models, claims.model)
    return _Units(model, size, groups, gpus, rest - gpus * WHOLE)


def _told(sizes: tuple[int, ...], columns: list[Ints]) -> Need:
    *groups, gpus, slots = columns
    none = np.zeros((*gpus.shape, 0), dtype=np.int64)
    return Need(sizes, np.stack(groups, axis=2) if groups else none, gpus, slots)


def need(claims: Claims, models: int, times: Ints) -> Need:
    """The sum of the claims at each of these instants, which are in order and have all their changes."""
    units = _units(claims, models)
    first = np.maximum(np.searchsorted(times, claims.since, side="right") - 1, 0)
    last = np.searchsorted(times, claims.until)

    def over_time(amount: Ints) -> Ints:
        total = np.zeros((len(times) + 1, models + 1), dtype=np.int64)
        np.add.at(total, (first, units.model), amount)
        np.add.at(total, (last, units.model), -amount)
        return np.cumsum(total, axis=0)[:-1]

    return _told(units.sizes, [over_time(one) for one in units.columns()])


def most_needed(claims: Claims, models: int, edges: Ints) -> Need:
    """No less than what is needed at any instant of each stretch, which begin at these edges."""
    whose = ((claims.team * (models + 2) + claims.model + 1) * 3 + claims.unit) << 16 | claims.size
    order = np.lexsort((claims.since, whose))
    ordered = claims.part(order)
    units, whose = _units(ordered, models), whose[order]
    goes_on = np.zeros(len(whose), dtype=np.bool_)
    goes_on[1:] = (whose[1:] == whose[:-1]) & (ordered.until[:-1] == ordered.since[1:])
    ends = ~np.append(goes_on[1:], False)[: len(whose)]
    time = np.concatenate((np.maximum(ordered.since, edges[0]), ordered.until[ends]))
    model = np.concatenate((units.model, units.model[ends]))

    by = []
    for amount in units.columns():
        before = np.where(goes_on, np.roll(amount, 1), 0)
        by.append(np.concatenate((amount - before, -amount[ends])))
    return _told(units.sizes, extremes(edges, time, model, by, models + 1, np.maximum))


def most_at_once(claims: Claims, models: int) -> Need:
    """The most that is needed of everything, each at its own instant."""
    units = _units(claims, models)
    # At one instant what ends comes first, so that no sum is more than there ever is.
    when = np.concatenate((claims.until << 1, claims.since << 1 | 1))
    order = np.argsort(np.where(np.concatenate((claims.until, claims.since)) >= NEVER >> 1, NEVER, when))
    model = np.concatenate((units.model, units.model))[order]
    columns = [np.concatenate((-one, one))[order] for one in units.columns()]
    most = np.zeros((len(columns), 1, models + 1), dtype=np.int64)
    for number in range(models + 1):
        mine = np.flatnonzero(model == number)
        for n, one in enumerate(columns):
            most[n, 0, number] = np.cumsum(one[mine]).max(initial=0)
    return _told(units.sizes, list(most))
