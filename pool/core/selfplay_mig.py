"""Chooses the parameters of a mix for MIG slices by playing: asks drawn from it fill a small copy of the pool.

Many games at once, in arrays: all candidates see the same streams. Off the decision
path: seconds. Deterministic for one seed. What the parameters mean is in worth_mig.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pool.core.mig import Profile
from pool.core.mix import Mix
from pool.core.worth_mig import LARGEST_TABLE, STEP, Floats, Ints, SliceKind, kinds_of, left_of, weighed

#: The copy, large enough for its choice to hold for larger pools, and what is played on it.
GPUS, REQUESTS, STREAMS = 24, 1200, 2
#: Slices asked for at once, as a multiple of those there are: where nothing is short, nothing is learnt.
LOAD = 1.2
#: What a point of slice-time is worth against a point of requests served.
SLICE_TIME = 0.2
#: The evolution: generations, candidates in each, how many of them are followed, the first step.
GENERATIONS, CANDIDATES, FOLLOWED, FIRST_STEP = 10, 12, 4, 0.3
#: How much of the variance a generation keeps.
KEEPS = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """Streams of requests, [streams, requests] each; a time of 1 is what asks last in the mean."""

    kind: Ints
    start: Floats
    lasts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One geometry, and the kinds of slices that are played on it."""

    grid: int
    kinds: tuple[SliceKind, ...]

    def draw(self, dice: np.random.Generator, gpus: int, streams: int, requests: int) -> Asks:
        """Requests as they would come to so many GPUs."""
        often = np.array([kind.often for kind in self.kinds])
        sizes = np.array([kind.places[0].bit_count() for kind in self.kinds])
        rate = LOAD * gpus * self.grid / float(sizes @ often)
        shape = (streams, requests)
        kind = dice.choice(len(self.kinds), size=shape, p=often)
        start = dice.exponential(1 / rate, size=shape).cumsum(1)
        return Asks(kind, start, dice.exponential(1.0, size=shape))

    def spoilt(self, power: Floats, weights: Floats) -> list[Floats]:
        """Of each kind [candidates, places, masks]: what is lost of the free slices with that place."""
        every = np.arange(1 << self.grid)
        left = np.array([left_of(kind.places, every) for kind in self.kinds])
        worth = np.einsum("ck,ckm->cm", weights, left[None] ** power[:, None, None])
        return [
            np.stack([worth - worth[:, every & ~place] for place in kind.places], axis=1)
            for kind in self.kinds
        ]


def choose_slices(mix: Mix, model: str, grid: int, profiles: Sequence[Profile], seed: int = 0) -> Mix:
    """`mix` with the parameters for slices that served most on GPUs of this geometry.

    The mix as it is where there is nothing to choose: fewer than two kinds of slices, or
    a grid beyond all known ones.
    """
    kinds = kinds_of(mix, model, grid, profiles)
    if len(kinds) < 2 or grid > LARGEST_TABLE:
        return mix
    table = Table(grid, tuple(kinds))
    dice = np.random.default_rng(seed)
    asks = table.draw(dice, GPUS, STREAMS, REQUESTS)
    by_rule = weighed(kinds, grid, replace(mix.slices, weights=()))
    at = np.array([np.log(mix.slices.power), np.log(mix.slices.horizon), *by_rule.values()])
    # Weights are looked for as parts of the largest, so that one step suits all.
    at[2:] /= at[2:].max()
    best = _evolve(table, asks, at, dice)
    weights = [round(max(0.0, float(weight)), 4) for weight in best[2:]]
    slices = replace(
        mix.slices,
        power=round(float(np.exp(best[0])), 4),
        horizon=round(float(np.exp(best[1])), 4),
        weights=tuple(sorted(zip((kind.name for kind in kinds), weights, strict=True))),
    )
    return replace(mix, slices=slices)


def _evolve(table: Table, asks: Asks, at: Floats, dice: np.random.Generator) -> Floats:
    """A short evolution strategy: the next generation is spread about the best of the last."""
    step = np.full(len(at), FIRST_STEP)
    pull = np.log(FOLLOWED + 1) - np.log(np.arange(1, FOLLOWED + 1))
    pull /= pull.sum()
    for _ in range(GENERATIONS):
        field = at + dice.standard_normal((CANDIDATES, len(at))) * step
        served, slice_time = play(table, asks, np.exp(field[:, 0]), np.exp(field[:, 1]), field[:, 2:], GPUS)
        won = served + SLICE_TIME * slice_time
        best = field[np.argsort(-won, kind="stable")[:FOLLOWED]]
        step = np.sqrt(KEEPS * step**2 + (1 - KEEPS) * (pull @ (best - at) ** 2))
        at = pull @ best
    return at


def play(
    table: Table, asks: Asks, power: Floats, horizon: Floats, weights: Floats, gpus: int
) -> tuple[Floats, Floats]:
    """(requests served, slice-time served) of all that was asked, a part of 1 for each candidate.

    `power` and `horizon` [candidates], `weights` [candidates, kinds]; negative weights are 0.
    """
    candidates, streams = len(power), len(asks.kind)
    weights = np.maximum(weights, 0.0)
    weights /= np.maximum(weights.sum(1, keepdims=True), STEP)
    games = _Games(table, table.spoilt(power, weights), horizon, candidates, streams, gpus)
    served = np.zeros(candidates)
    slice_time = np.zeros(candidates)
    sizes = np.array([kind.places[0].bit_count() for kind in table.kinds])
    costs = sizes[asks.kind] * asks.lasts
    for number in range(asks.kind.shape[1]):
        for stream in range(streams):
            kind = int(asks.kind[stream, number])
            yes = games.ask(
                stream, kind, float(asks.start[stream, number]), float(asks.lasts[stream, number])
            )
            served += yes
            slice_time += yes * costs[stream, number]
    return served / asks.kind.size, slice_time / costs.sum()


class _Games:
    """What runs in all games: until when each slice is taken, [streams, candidates, GPUs, slices]."""

    def __init__(
        self,
        table: Table,
        spoilt: list[Floats],
        horizon: Floats,
        candidates: int,
        streams: int,
        gpus: int,
    ) -> None:
        self._table = table
        self._spoilt = [each.reshape(-1) for each in spoilt]
        self._horizon = horizon
        self._until = np.zeros((streams, candidates, gpus, table.grid))
        self._bit = 1 << np.arange(table.grid)

    def ask(self, stream: int, kind: int, now: float, lasts: float) -> NDArray[np.bool_]:
        """[candidates] whether each had room for a slice of this kind, which it then has."""
        places = np.array(self._table.kinds[kind].places)
        until = self._until[stream]
        candidates, gpus, grid = until.shape
        free_now = ((until <= now) @ self._bit).reshape(-1)
        fits = (free_now[:, None] & places) == places
        rows = np.flatnonzero(fits.any(1))
        key = np.full(fits.shape, _NEVER)
        of = rows // gpus
        free, weight = self._stretches(until.reshape(-1, grid)[rows], self._horizon[of, None], now, lasts)
        for number in range(len(places)):
            at = (of * len(places) + number << grid)[:, None] + free
            lost = np.einsum("rs,rs->r", self._spoilt[kind][at], weight)
            key[rows, number] = self._key(lost, free[:, 0], rows % gpus, len(places) - 1 - number)
        key[~fits] = _NEVER
        key = key.reshape(candidates, -1)
        best = key.argmin(1)
        yes: NDArray[np.bool_] = key[np.arange(candidates), best] < _NEVER
        where = np.flatnonzero(yes)
        gpu, place = best[where] // len(places), places[best[where] % len(places)]
        until[where, gpu] = np.where(place[:, None] & self._bit, now + lasts, until[where, gpu])
        return yes

    def _stretches(self, until: Floats, horizon: Floats, now: float, lasts: float) -> tuple[Ints, Floats]:
        """[rows, stretches] what is free, and how much each counts; the first is now."""
        order = until.argsort(1)
        ends = np.clip(np.take_along_axis(until, order, 1) - now, 0.0, lasts)
        counts = np.empty((len(until), until.shape[1] + 2))
        counts[:, 0] = 1.0
        counts[:, 1:-1] = np.exp(-ends / horizon)
        counts[:, -1] = np.exp(-lasts / horizon[:, 0])
        free = np.zeros((len(until), until.shape[1] + 1), dtype=np.int64)
        np.cumsum(self._bit[order], axis=1, out=free[:, 1:])
        # What is over by now is free from the start.
        free |= ((until <= now) @ self._bit)[:, None]
        return free, counts[:, :-1] - counts[:, 1:]

    @staticmethod
    def _key(lost: Floats, free: Ints, gpu: Ints, start: int) -> Ints:
        """The order of worth_mig.ranked as one number."""
        steps = np.rint(lost / STEP).astype(np.int64)
        key: Ints = ((steps * 64 + np.bitwise_count(free)) * 1024 + gpu) * 16 + start
        return key


#: Beyond every key.
_NEVER = np.iinfo(np.int64).max
