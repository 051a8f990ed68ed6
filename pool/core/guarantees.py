"""Guarantees that hold: whether every team's unused guarantee still finds a place, all of them at once.

A placement that is within its own guarantee, or cannot be taken back, is legal only if at every
instant of its period the unused guarantees of all other teams still have a simultaneous placement
in their units. What may be taken back (Takeable) counts as free. Whose guarantees are unused is
decided in standing; who has to leave, in reclaim.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property

import numpy as np

from pool.core.fleet import Bools, Fleet, Ints, micros
from pool.core.guarantee_claims import ANY, UNITS, Claim, Claims, Takeable, most_at_once, most_needed, need
from pool.core.guarantee_counts import Free, Need, Room, divide, lacking, short_of
from pool.core.guarantee_states import Changes, Ground, Held, held_by, stays
from pool.core.period import Period
from pool.core.placement_search import Pick
from pool.core.quota import WHOLE

__all__ = ["ANY", "UNITS", "Claim", "Claims", "Guarantees", "Takeable"]

#: In more instants than this every GPU counts as open (`open_to`): each candidate is checked anyway.
_MOST_INSTANTS = 2_000
#: About so many stretches of time are looked at, before each instant is.
_STRETCHES = 128
_SAMPLE = 4_000
#: So many of the instants at which little is left tell which GPUs are closed.
_MOST_TIGHT = 200


class Guarantees:
    """The unused guarantees of others against what stays on the GPUs over one period.

    First all of the period is looked at as one instant at which everything is there at once, then some
    stretches of it so; only where that does not do, each instant by itself.
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
        return self.allow_held(held_by(self.fleet, picks, self.start, self.end))

    def allow_held(self, mine: Held) -> bool:
        """The same of what lies on the GPUs for all of the period (held_by, held_as)."""
        if not len(self.claims.milli) or not len(mine.at):
            return True
        return bool((lacking(self._with(mine), self._need) <= self._lacking).all())

    def lack(self) -> bool:
        """Whether some of the claims have no place at some instant, as it is; never where no GPU is."""
        if not len(self.claims.milli) or not len(self.fleet.id):
            return False
        if not lacking(self._ground.worst(self._stays.worst), self._worst_need)[0]:
            return False
        if divide(self._most_needed.sizes) and not short_of(self._least_free, self._most_needed).any():
            return False
        return bool(lacking(self._free, self._need).any())

    def allow_at_once(self, picks: Sequence[Pick]) -> bool:
        """A first look, many times as fast: nothing is lacking though much is taken to be there at once.

        Picks of several plans may be looked at together: if all of them leave enough, so does each.
        """
        if not len(self.claims.milli) or not picks:
            return True
        mine = held_by(self.fleet, picks, self.start, self.end)
        if not lacking(self._ground.worst(self._stays.worst.and_(mine)), self._worst_need)[0]:
            return True
        return self._allow_in_stretches(mine)

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
            found = np.asarray(kinds[0][self.fleet.model, np.where(whole > 0, level, 0)])
            if found.all():
                return found
        if len(self._times) > _MOST_INSTANTS:
            return found
        return self._open_over_time(milli)

    # --- Stretches of time ------------------------------------------------------------

    def _allow_in_stretches(self, mine: Held) -> bool:
        """Whether nothing is lacking with the least that is free and the most that is needed of each."""
        if not divide(self._most_needed.sizes) or short_of(self._least_free, self._most_needed).any():
            return False
        before, after = (one.least(self._edges, self._most_needed.sizes) for one in self._of_bins(mine))
        return not short_of(self._least_free.and_(after, before), self._most_needed).any()

    @cached_property
    def _edges(self) -> Ints:
        """Where stretches begin: at the instants at which most changes, and here and there between them."""
        times = np.concatenate((self._changes.time, np.maximum(self.claims.since, self.start)))
        times = times[times < self.end]
        # A few thousand of them tell well enough.
        instants, number = np.unique(times[:: max(1, len(times) // _SAMPLE)], return_counts=True)
        if len(instants) > _STRETCHES:
            busiest = np.argpartition(number, -_STRETCHES // 2)[-_STRETCHES // 2 :]
            between = np.linspace(0, len(instants) - 1, _STRETCHES // 2).astype(np.int64)
            instants = instants[np.concatenate((busiest, between))]
        return np.union1d(instants, [self.start])

    @cached_property
    def _most_needed(self) -> Need:
        return most_needed(self.claims, len(self.fleet.models), self._edges)

    @cached_property
    def _least_free(self) -> Room:
        return self._changes.least(self._edges, self._most_needed.sizes)

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
        return lacking(self._free, need(self._all, len(self.fleet.models), self._times))

    def _with(self, mine: Held) -> Free:
        """The states at all instants with these, too."""
        before, after = (one.free(self._times) for one in self._of_bins(mine))
        return Free(
            self._free.nodes - before.nodes + after.nodes, self._free.slots - before.slots + after.slots
        )

    def _of_bins(self, mine: Held) -> tuple[Changes, Changes]:
        """The changes of the bins of these, without and with them."""
        ground, exact = self._ground, self._stays.exact
        touched = np.zeros(max(1, ground.bins), dtype=np.bool_)
        touched[ground.bin[mine.at]] = True
        places = np.flatnonzero(touched[ground.bin])
        there = exact.part(touched[ground.bin[exact.at]])
        before = ground.changes(there, self.start, self.end, places)
        return before, ground.changes(there.and_(mine), self.start, self.end, places)

    # --- What is needed -------------------------------------------------------------

    @cached_property
    def _need(self) -> Need:
        return need(self.claims, len(self.fleet.models), self._times)

    @cached_property
    def _worst_need(self) -> Need:
        return most_at_once(self.claims, len(self.fleet.models))

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


def _kinds(free: Free, wanted: Need, before: Ints, milli: int) -> Bools:
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
            kinds[:, model, level] = lacking(Free(nodes, slots), wanted) <= before
    return kinds
