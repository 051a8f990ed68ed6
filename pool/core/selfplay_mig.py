"""Chooses the parameters of a mix for MIG slices by playing: asks drawn from it fill a copy of the pool.

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

#: GPUs of the copy at most: what is best there is good for larger pools, too.
MOST_GPUS = 24
#: Requests to each GPU in one stream, from the empty pool on, and how many each candidate is tried on.
EACH, DECISIONS = 40, 12_000
#: Slices asked for at once, as a multiple of those there are: where nothing is short, nothing is learnt.
LOAD = 1.2
#: What a point of slice-time is worth against a point of requests served.
SLICE_TIME = 0.1
#: The evolution: generations, candidates in each, how many of them are followed, the first step.
GENERATIONS, CANDIDATES, FOLLOWED, FIRST_STEP = 12, 14, 5, 0.3
#: Climbs, by different chance; the last centres of each; how many times the requests they are proven on.
CLIMBS, LAST, PROOF = 2, 4, 4
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

    @property
    def places(self) -> Ints:
        """[places] the masks of all kinds' places, one kind after the other."""
        return np.array([place for kind in self.kinds for place in kind.places], dtype=np.int64)

    def spoilt(self, power: Floats, weights: Floats) -> Floats:
        """[candidates, places, masks] what is lost of free slices with each place."""
        every = np.arange(1 << self.grid)
        left = np.array([left_of(kind.places, every) for kind in self.kinds])
        worth = np.einsum("ck,ckm->cm", weights, left[None] ** power[:, None, None])
        return np.stack([worth - worth[:, every & ~place] for place in self.places], axis=1)


def choose_slices(
    mix: Mix, model: str, grid: int, profiles: Sequence[Profile], gpus: int = MOST_GPUS, seed: int = 0
) -> Mix:
    """`mix` with the parameters for slices that served most on so many GPUs of this geometry.

    The mix as it is where there is nothing to choose: fewer than two kinds of slices, or
    a grid beyond all known ones.
    """
    kinds = kinds_of(mix, model, grid, profiles)
    if len(kinds) < 2 or grid > LARGEST_TABLE:
        return mix
    table = Table(grid, tuple(kinds))
    dice = np.random.default_rng(seed)
    gpus = max(1, min(gpus, MOST_GPUS))
    by_rule = np.array(list(weighed(kinds, grid, replace(mix.slices, weights=())).values()))
    # Weights are looked for as parts of the largest, so that one step suits all.
    begin = np.array([np.log(mix.slices.power), np.log(mix.slices.horizon), *(by_rule / by_rule.max())])
    found = [begin]
    for _ in range(CLIMBS):
        found += _climb(table, begin, gpus, dice)
    best = _best(table, np.array(found), gpus, dice)
    weights = best[2:] / np.abs(best[2:]).max()
    names = (kind.name for kind in kinds)
    chosen = sorted((name, round(float(weight), 4)) for name, weight in zip(names, weights, strict=True))
    slices = replace(
        mix.slices,
        power=round(float(np.exp(best[0])), 4),
        horizon=round(float(np.exp(best[1])), 4),
        weights=tuple(chosen),
    )
    return replace(mix, slices=slices)


def _climb(table: Table, at: Floats, gpus: int, dice: np.random.Generator) -> list[Floats]:
    """An evolution strategy: the next generation is spread about the best of the last. Its last centres.

    Each generation sees streams of its own, so that what suited some by chance is lost again.
    """
    step = np.full(len(at), FIRST_STEP)
    pull = np.log(FOLLOWED + 1) - np.log(np.arange(1, FOLLOWED + 1))
    pull /= pull.sum()
    centres = []
    for _ in range(GENERATIONS):
        field = at + dice.standard_normal((CANDIDATES, len(at))) * step
        won = _won(table, field, DECISIONS, gpus, dice)
        best = field[np.argsort(-won, kind="stable")[:FOLLOWED]]
        step = np.sqrt(KEEPS * step**2 + (1 - KEEPS) * (pull @ (best - at) ** 2))
        at = pull @ best
        centres.append(at)
    return centres[-LAST:]


def _best(table: Table, field: Floats, gpus: int, dice: np.random.Generator) -> Floats:
    """The best of all, on many more requests than any was chosen on."""
    best: Floats = field[_won(table, field, PROOF * DECISIONS, gpus, dice).argmax()]
    return best


def _won(table: Table, field: Floats, decisions: int, gpus: int, dice: np.random.Generator) -> Floats:
    """[candidates] what each wins on new streams: requests and slice-time served."""
    requests = gpus * EACH
    asks = table.draw(dice, gpus, max(1, round(decisions / requests)), requests)
    served, slice_time = play(table, asks, np.exp(field[:, 0]), np.exp(field[:, 1]), field[:, 2:], gpus)
    return served + SLICE_TIME * slice_time


def play(
    table: Table, asks: Asks, power: Floats, horizon: Floats, weights: Floats, gpus: int
) -> tuple[Floats, Floats]:
    """(requests served, slice-time served) of all that was asked, a part of 1 for each candidate.

    `power` and `horizon` [candidates], `weights` [candidates, kinds].
    """
    weights = weights / np.abs(weights).sum(1, keepdims=True)
    games = _Games(table, table.spoilt(power, weights), horizon, len(asks.kind), gpus)
    served = np.zeros(len(power))
    slice_time = np.zeros(len(power))
    sizes = np.array([kind.places[0].bit_count() for kind in table.kinds])
    costs = sizes[asks.kind] * asks.lasts
    for number in range(asks.kind.shape[1]):
        yes = games.ask(asks.kind[:, number], asks.start[:, number], asks.lasts[:, number])
        served += yes.sum(1)
        slice_time += yes @ costs[:, number]
    return served / asks.kind.size, slice_time / costs.sum()


class _Games:
    """What runs in all games: until when each slice is taken, [candidates, streams, GPUs, slices]."""

    def __init__(self, table: Table, spoilt: Floats, horizon: Floats, streams: int, gpus: int) -> None:
        self._shape = (len(horizon), streams, gpus)
        self._until = np.zeros((*self._shape, table.grid))
        self._bit = 1 << np.arange(table.grid)
        self._spoilt = spoilt.reshape(-1)
        self._horizon = horizon
        self._places = table.places
        counts = np.array([len(kind.places) for kind in table.kinds])
        self._count = counts
        self._first = np.cumsum(counts) - counts

    def ask(self, kind: Ints, now: Floats, lasts: Floats) -> NDArray[np.bool_]:
        """[candidates, streams] whether each had room for its stream's slice, which it then has."""
        candidates, streams, gpus = self._shape
        most = int(self._count[kind].max())
        # Where a kind has fewer places than another, the last of its own stands in for what it lacks.
        number = np.minimum(np.arange(most), self._count[kind][:, None] - 1)
        place = self._first[kind][:, None] + number
        mask = self._places[place]
        free = (self._until <= now[None, :, None, None]) @ self._bit
        fits = (free[..., None] & mask[None, :, None]) == mask[None, :, None]
        rows = np.nonzero(fits.any(3))
        key = np.full((candidates, streams, gpus, most), _NEVER)
        key[rows] = self._keys(rows, place, now, lasts)
        key[~fits] = _NEVER
        order = key.reshape(candidates, streams, -1)
        best = order.argmin(2)
        yes: NDArray[np.bool_] = np.take_along_axis(order, best[..., None], 2)[..., 0] < _NEVER
        of, stream = np.nonzero(yes)
        gpu, number_there = best[of, stream] // most, best[of, stream] % most
        takes = (mask[stream, number_there][:, None] & self._bit) > 0
        ends = (now + lasts)[stream][:, None]
        self._until[of, stream, gpu] = np.where(takes, ends, self._until[of, stream, gpu])
        return yes

    def _keys(self, rows: tuple[Ints, ...], place: Ints, now: Floats, lasts: Floats) -> Ints:
        """[rows, places] the order of worth_mig.ranked as one number."""
        of, stream, gpu = rows
        until = self._until[rows]
        free, weight = _stretches(until, self._bit, self._horizon[of], now[stream], lasts[stream])
        base = of * len(self._places)
        keys = np.empty((len(of), place.shape[1]), dtype=np.int64)
        crowd = np.bitwise_count(free[:, 0])
        for number in range(place.shape[1]):
            at = ((base + place[stream, number]) * (1 << len(self._bit)))[:, None] + free
            lost = np.einsum("rs,rs->r", self._spoilt[at], weight)
            steps = np.rint(lost / STEP).astype(np.int64)
            keys[:, number] = ((steps * 64 + crowd) * 1024 + gpu) * 16 + place.shape[1] - 1 - number
        return keys


def _stretches(until: Floats, bit: Ints, horizon: Floats, now: Floats, lasts: Floats) -> tuple[Ints, Floats]:
    """[rows, stretches] what is free, and how much each counts; the first is now."""
    order = until.argsort(1)
    ends = np.clip(np.take_along_axis(until, order, 1) - now[:, None], 0.0, lasts[:, None])
    counts = np.empty((len(until), len(bit) + 2))
    counts[:, 0] = 1.0
    counts[:, 1:-1] = np.exp(-ends / horizon[:, None])
    counts[:, -1] = np.exp(-lasts / horizon)
    free = np.zeros((len(until), len(bit) + 1), dtype=np.int64)
    np.cumsum(bit[order], axis=1, out=free[:, 1:])
    # What is over by now is free from the start.
    free |= ((until <= now[:, None]) @ bit)[:, None]
    return free, counts[:, :-1] - counts[:, 1:]


#: Beyond every key.
_NEVER = np.iinfo(np.int64).max
