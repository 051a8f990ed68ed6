"""Asks for MIG slices as they arrive, and what first fit, best fit and the policy of booking make of them.

Poisson arrivals, exponential durations, one slice each; who finds no room is turned
away for good, and nobody is turned away who would fit.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from pool.core.mig import Media, Model, Profile
from pool.core.mix import Form, Kind, Mix
from pool.core.selfplay_mig import choose_slices
from pool.core.worth_mig import SliceWorth, Taken, masks, ranked, stretches

#: How long slices are asked for in the mean, in the unit of the streams (an hour in microseconds).
LASTING = 3_600_000_000
#: How often slices of 1, 2, 3, 4 and 7 compute slices are asked for.
MIXES: dict[str, tuple[float, ...]] = {
    "uniform": (0.2, 0.2, 0.2, 0.2, 0.2),
    "small": (0.45, 0.3, 0.15, 0.07, 0.03),
    "big": (0.05, 0.1, 0.2, 0.3, 0.35),
    "bimodal": (0.4, 0.1, 0.05, 0.05, 0.4),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody wants a slice of `kind` (index into the profiles) over [start, end)."""

    kind: int
    start: int
    end: int

    @property
    def lasts(self) -> int:
        return self.end - self.start


#: (GPU, start) where a request goes.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class World:
    """GPUs of one model, and how often each of its profiles is asked for."""

    model: Model
    profiles: tuple[Profile, ...]
    weights: tuple[float, ...]
    gpus: int

    @classmethod
    def of(cls, model: Model, mix: str, gpus: int) -> World:
        """Of each number of compute slices the plain profile with the least memory.

        A model with fewer than five has those of a mix that lie evenly in it.
        """
        least: dict[int, Profile] = {}
        for profile in sorted(model.profiles, key=lambda p: p.size, reverse=True):
            if profile.media is Media.DEFAULT and not profile.gfx:
                least[profile.compute_slices] = profile
        profiles = tuple(least[slices] for slices in sorted(least))
        shares = MIXES[mix]
        step = (len(shares) - 1) / max(1, len(profiles) - 1)
        raw = [shares[round(number * step)] for number in range(len(profiles))]
        return cls(model, profiles, tuple(weight / sum(raw) for weight in raw), gpus)

    @property
    def mix(self) -> Mix:
        kinds = tuple(Kind(Form.MIG, profile=profile.name) for profile in self.profiles)
        return Mix(kinds, self.weights)

    def stream(self, requests: int, load: float, seed: int) -> list[Request]:
        """`load`: the slices that are asked for at once in the mean, as a multiple of those there are."""
        chance = random.Random(seed)
        size = sum(w * p.size for w, p in zip(self.weights, self.profiles, strict=True))
        rate = load * self.gpus * self.model.grid / size
        now, found = 0.0, []
        for _ in range(requests):
            now += chance.expovariate(rate)
            lasts = chance.expovariate(1.0)
            kind = chance.choices(range(len(self.profiles)), self.weights)[0]
            start = round(now * LASTING)
            found.append(Request(kind, start, start + max(1, round(lasts * LASTING))))
        return found

    def places(self, kind: int) -> list[tuple[int, int]]:
        """(start, mask) of each place of a kind on a GPU."""
        profile = self.profiles[kind]
        starts = sorted(start for start in profile.starts if start + profile.size <= self.model.grid)
        return list(zip(starts, masks(profile.size, profile.starts, self.model.grid), strict=True))


@dataclass(slots=True)
class State:
    """What runs where: on each GPU the mask that is free, and (mask, kind, start, end) of each slice."""

    world: World
    free: list[int] = field(default_factory=list)
    live: list[list[tuple[int, int, int, int]]] = field(default_factory=list)
    _ends: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [(1 << self.world.model.grid) - 1] * self.world.gpus
        self.live = [[] for _ in range(self.world.gpus)]

    def at(self, now: int) -> None:
        """What has ended by now is gone."""
        while self._ends and self._ends[0][0] <= now:
            end, gpu, mask, kind, start = heapq.heappop(self._ends)
            self.live[gpu].remove((mask, kind, start, end))
            self.free[gpu] |= mask

    def put(self, request: Request, gpu: int, mask: int) -> None:
        self.free[gpu] &= ~mask
        self.live[gpu].append((mask, request.kind, request.start, request.end))
        heapq.heappush(self._ends, (request.end, gpu, mask, request.kind, request.start))

    def options(self, kind: int) -> list[Place]:
        """Where a slice of this kind fits now."""
        places = self.world.places(kind)
        return [(gpu, start) for gpu, free in enumerate(self.free) for start, m in places if m & free == m]


#: Chooses one of the options, of which there is at least one.
Policy = Callable[[State, Request, Sequence[Place]], Place]


def first_fit(state: State, request: Request, options: Sequence[Place]) -> Place:
    """The first GPU, and on it the lowest start."""
    return options[0]


def best_fit(state: State, request: Request, options: Sequence[Place]) -> Place:
    """The GPU with the fewest free slices, the first of them; and on it the lowest start."""
    return min(options, key=lambda place: (state.free[place[0]].bit_count(), place))


@cache
def worth_of(world: World) -> SliceWorth:
    """As booking has it, with the mix known beforehand and the parameters chosen for it by self-play."""
    model = world.model
    mix = choose_slices(world.mix, model.name, model.grid, world.profiles, world.gpus)
    return SliceWorth(mix, model.name, model.grid, world.profiles)


def gpupool(world: World) -> Policy:
    """What booking does."""
    worth = worth_of(world)
    lasting = worth.parameters.horizon * LASTING
    full = (1 << world.model.grid) - 1

    def choose(state: State, request: Request, options: Sequence[Place]) -> Place:
        gpus = sorted({gpu for gpu, _ in options})
        live = [(row, m, s, e) for row, gpu in enumerate(gpus) for m, _, s, e in state.live[gpu]]
        columns = np.array(live, dtype=np.int64).reshape(-1, 4).T
        whole = np.full(len(gpus), full)
        seen = stretches(whole, Taken(*columns), request.start, request.end, lasting)
        profile = world.profiles[request.kind]
        rows, numbers = ranked(worth.loss(profile, seen), seen)
        return gpus[rows[0]], sorted(profile.starts)[numbers[0]]

    return choose


def blind(world: World) -> Policy:
    """What booking would do if it knew no ends: only what is free now counts."""
    worth = worth_of(world)

    def choose(state: State, request: Request, options: Sequence[Place]) -> Place:
        gpus = sorted({gpu for gpu, _ in options})
        none = np.zeros(0, dtype=np.int64)
        whole = np.array([state.free[gpu] for gpu in gpus], dtype=np.int64)
        seen = stretches(whole, Taken(none, none, none, none), 0, 1, 1.0)
        profile = world.profiles[request.kind]
        rows, numbers = ranked(worth.loss(profile, seen), seen)
        return gpus[rows[0]], sorted(profile.starts)[numbers[0]]

    return choose


@dataclass(frozen=True, slots=True)
class Result:
    """What was served: requests of all, and slice-time (slices times time) of all that was asked."""

    served: int
    asked: int
    slice_time: int
    asked_slice_time: int


def play(world: World, requests: Sequence[Request], policy: Policy) -> tuple[Result, list[Place | None]]:
    """One stream under one policy, and where each request went."""
    state = State(world)
    went: list[Place | None] = []
    for request in requests:
        state.at(request.start)
        options = state.options(request.kind)
        place = policy(state, request, options) if options else None
        if place is not None:
            state.put(request, place[0], dict(world.places(request.kind))[place[1]])
        went.append(place)
    return result(world, requests, went), went


def result(world: World, requests: Sequence[Request], went: Sequence[Place | None]) -> Result:
    costs = [world.profiles[r.kind].size * r.lasts for r in requests]
    served = [place is not None for place in went]
    won = sum(cost for cost, yes in zip(costs, served, strict=True) if yes)
    return Result(sum(served), len(requests), won, sum(costs))
