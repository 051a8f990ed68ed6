"""Guarantees that hold: whether every team's unused guarantee still finds a place, all of them at once.

A placement that is within its own guarantee, or cannot be taken back, is legal only if at every
instant of its period the unused guarantees of all other teams still have a simultaneous placement
in their units. What may be taken back (Takeable) counts as free. Whose guarantees are unused is
decided in standing; who has to leave, in reclaim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np

from pool.core.fleet import Bools, Fleet, Ints, micros
from pool.core.guarantee_counts import Free, Need, lacking
from pool.core.guarantee_states import Changes, Ground, Held, held_by, stays
from pool.core.period import Period
from pool.core.placement_search import Pick
from pool.core.quota import WHOLE

#: In what a guarantee has to be obtainable; the codes in `Claims.unit`.
UNITS: tuple[str, ...] = ("slots", "gpu", "node")
#: The number of "any model" in `Claims.model`.
ANY = -1
#: In more instants than this every GPU counts as open (`open_to`): each candidate is checked anyway.
_MOST_INSTANTS = 2_000
#: So many of the instants at which little is left tell which GPUs are closed.
_MOST_TIGHT = 200
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
        return self._part(self.team != team)

    def of_team(self, team: int) -> Claims:
        """Those of this team alone."""
        return self._part(self.team == team)

    def within(self, start: int, end: int) -> Claims:
        """Those at some instant of this time."""
        return self._part((self.since < end) & (self.until > start))

    def and_(self, other: Claims) -> Claims:
        """Both."""
        return Claims(*(np.concatenate((getattr(self, n), getattr(other, n))) for n in self.__slots__))

    def _part(self, which: Bools) -> Claims:
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


class Guarantees:
    """The unused guarantees of others against what stays on the GPUs over one period.

    First all of the period is looked at as one instant at which everything is there at once;
    only where that does not do, each instant by itself.
    """

    def __init__(
        self,
        fleet: Fleet,
        period: Period,
        now: datetime,
        claims: Claims,
        takeable: Takeable,
        own: Claims | None = None,
    ) -> None:
        """`claims`: of all teams but the one that books, `own`: its own before the booking."""
        self.fleet = fleet
        self.start, self.end = micros(period.start), micros(period.end)
        self.claims = claims.within(self.start, self.end)
        self._all = self.claims if own is None else self.claims.and_(own.within(self.start, self.end))
        window = fleet.window(period, now)
        self._stays = stays(window, takeable.which, takeable.since, takeable.until)
        self._ground = Ground(fleet)

    def allow(self, picks: Sequence[Pick]) -> bool:
        """Whether these picks, over all of the period, leave every claim that has a place its place.

        Where more is promised than there is (GPUs have failed), what is lacking of the claims of all,
        its own among them, must not grow: who comes first gets what is left. Never says yes wrongly;
        exact but for node groups of sizes that do not divide one another, where a search is given up
        after a while.
        """
        if self.allow_at_once(picks):
            return True
        mine = held_by(self.fleet, picks, self.start, self.end)
        return bool((lacking(self._with(mine), self._need) <= self._lacking).all())

    def allow_at_once(self, picks: Sequence[Pick]) -> bool:
        """A first look, many times as fast: nothing is lacking even with all that is ever there at once.

        Picks of several plans may be looked at together: if all of them leave enough, so does each.
        """
        if not len(self.claims.milli) or not picks:
            return True
        mine = held_by(self.fleet, picks, self.start, self.end)
        return not lacking(self._ground.worst(self._stays.worst.and_(mine)), self._worst_need)[0]

    def open_to(self, milli: int) -> Bools:
        """[places] where one piece that counts so much could be allowed. For `field(barred=~...)`.

        A first look: what is chosen there has still to be allowed.
        """
        found = np.ones(len(self.fleet.id), dtype=np.bool_)
        if not len(self.claims.milli):
            return found
        whole, level, free = self._ground.worst_in_full(self._stays.worst)
        if not lacking(free, self._worst_need)[0]:
            kinds = _kinds(free, self._worst_need, np.zeros(1, dtype=np.int64), milli)
            found = kinds[0][self.fleet.model, np.where(whole > 0, level, 0)]
            if found.all():
                return found
        if len(self._times) > _MOST_INSTANTS:
            return found
        return self._open_over_time(milli)

    # --- Each instant by itself ---------------------------------------------------

    @cached_property
    def _changes(self) -> Changes:
        places = np.arange(len(self.fleet.id))
        return self._ground.changes(self._stays.exact, self.start, self.end, places)

    @cached_property
    def _times(self) -> Ints:
        since = np.maximum(self._all.since, self.start)
        until = self._all.until[self._all.until < self.end]
        first = np.array([self.start], dtype=np.int64)
        return np.unique(np.concatenate((first, self._changes.time, self._changes.bin_time, since, until)))

    @cached_property
    def _free(self) -> Free:
        return self._changes.free(self._times)

    @cached_property
    def _lacking(self) -> Ints:
        """What of the claims of all finds no place as it is."""
        return lacking(self._free, _need(self._all, len(self.fleet.models), self._times))

    def _with(self, mine: Held) -> Free:
        """The states at all instants with these, too: only their bins are looked at again."""
        ground = self._ground
        touched = np.zeros(max(1, ground.bins), dtype=np.bool_)
        touched[ground.bin[mine.at]] = True
        places = np.flatnonzero(touched[ground.bin])
        there = self._stays.exact.part(touched[ground.bin[self._stays.exact.at]])
        before = ground.changes(there, self.start, self.end, places).free(self._times)
        after = ground.changes(there.and_(mine), self.start, self.end, places).free(self._times)
        return Free(
            self._free.nodes - before.nodes + after.nodes, self._free.slots - before.slots + after.slots
        )

    # --- What is needed -------------------------------------------------------------

    @cached_property
    def _need(self) -> Need:
        return _need(self.claims, len(self.fleet.models), self._times)

    @cached_property
    def _worst_need(self) -> Need:
        """The most that is needed of everything at one instant each."""
        times = np.unique(np.concatenate(([self.start], np.maximum(self.claims.since, self.start))))
        need = _need(self.claims, len(self.fleet.models), times)
        most = (one.max(axis=0, keepdims=True) for one in (need.groups, need.gpus, need.slots))
        return Need(need.sizes, *most)

    # --- Which GPUs are open ----------------------------------------------------------

    def _open_over_time(self, milli: int) -> Bools:
        """Closed is where it would be refused at one of the instants at which little is left."""
        kinds = _kinds(self._free, self._need, self._lacking, milli)
        tight = np.flatnonzero(~kinds.all(axis=(1, 2)))[:_MOST_TIGHT]
        whole, level = self._changes.at_times(self._times[tight])
        model = self.fleet.model
        found = np.ones(len(model), dtype=np.bool_)
        for n, instant in enumerate(tight.tolist()):
            in_bin = level[n][self._ground.bin]
            found &= kinds[instant][model, np.where(whole[n] > 0, in_bin, 0)]
        return found


def _kinds(free: Free, need: Need, before: Ints, milli: int) -> Bools:
    """[states, models, n] whether one piece may be taken of a GPU of the model.

    Of a whole one on a node that has n of them free; for n 0 of any other.
    """
    states, models, levels = len(before), free.slots.shape[1], free.nodes.shape[2]
    kinds = np.ones((states, models, levels), dtype=np.bool_)
    for model in range(models):
        for level in range(levels):
            if level and not free.nodes[:, model, level].any():
                continue
            nodes, slots = free.nodes, free.slots.copy()
            slots[:, model] -= milli
            if level:
                nodes = nodes.copy()
                nodes[:, model, level] -= 1
                nodes[:, model, level - 1] += 1
                slots[:, model] += WHOLE
            kinds[:, model, level] = lacking(Free(nodes, slots), need) <= before
    return kinds


def _need(claims: Claims, models: int, times: Ints) -> Need:
    """The sum of the claims at each of these instants, which are in order and have all their changes."""
    size = np.where(claims.unit == _NODE, np.maximum(claims.size, 1), 1)
    groups = np.where((claims.unit == _NODE) & (size > 1), claims.milli // (size * WHOLE), 0)
    rest = claims.milli - groups * size * WHOLE
    gpus = np.where(claims.unit == _SLOTS, 0, rest // WHOLE)
    slots = rest - gpus * WHOLE
    # ANY is the last, behind the models.
    model = np.where(claims.model == ANY, models, claims.model)
    sizes = tuple(sorted(set(size[groups > 0].tolist()), reverse=True))
    over = [_over_time(claims, model, np.where(size == one, groups, 0), models, times) for one in sizes]
    stacked = np.stack(over, axis=2) if over else np.zeros((len(times), models + 1, 0), dtype=np.int64)
    gpus, slots = (_over_time(claims, model, one, models, times) for one in (gpus, slots))
    return Need(sizes, stacked, gpus, slots)


def _over_time(claims: Claims, model: Ints, amount: Ints, models: int, times: Ints) -> Ints:
    """[times, models + 1] what these amounts come to."""
    total = np.zeros((len(times) + 1, models + 1), dtype=np.int64)
    first = np.maximum(np.searchsorted(times, claims.since, side="right") - 1, 0)
    np.add.at(total, (first, model), amount)
    np.add.at(total, (np.searchsorted(times, claims.until), model), -amount)
    return np.cumsum(total, axis=0)[:-1]
