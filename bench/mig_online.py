"""The best that anybody could do online who sees no ends and turns nobody away who fits, by value iteration.

Ends are exponential, so what matters is which slices run on each GPU. GPUs are alike:
a state is the sorted layouts of all. For two GPUs of eight slices that is 44,551 states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from bench.mig_streams import Place, Policy, Request, State, World

#: A layout: (kind, mask) of each slice that runs on one GPU, in order.
Layout = tuple[tuple[int, int], ...]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: More states than this are not tried.
MOST_STATES = 200_000
#: The values are taken as found when no state's gain differs from another's by more than this part of it.
CLOSE = 1e-5


class TooLargeError(Exception):
    """More states than can be looked at."""


class Online:
    """The optimum of one world at one load, for requests served in the long run."""

    def __init__(self, world: World, load: float) -> None:
        self.world = world
        self.layouts = layouts(world)
        self._number = {layout: number for number, layout in enumerate(self.layouts)}
        size = sum(w * p.size for w, p in zip(world.weights, world.profiles, strict=True))
        #: Arrivals while one slice lasts in the mean.
        self.rate = load * world.gpus * world.model.grid / size
        count = 1
        for gpu in range(world.gpus):
            count = count * (len(self.layouts) + gpu) // (gpu + 1)
        if count > MOST_STATES:
            raise TooLargeError(f"{count} states")
        self.states = list(combinations_with_replacement(range(len(self.layouts)), world.gpus))
        self._at = {state: number for number, state in enumerate(self.states)}

    @property
    def values(self) -> Floats:
        """[states] what each is worth against the first, in requests served later."""
        return self._solved[0]

    @property
    def served(self) -> float:
        """The part (0..1) of all requests that is served in the long run."""
        return self._solved[1]

    @cached_property
    def _solved(self) -> tuple[Floats, float]:
        ends, weights = self._ends
        arrivals = [self._arrivals(kind) for kind in range(len(self.world.profiles))]
        # One clock for all states: at each tick an arrival, an end, or nothing.
        clock = self.rate + max(len(layout) for layout in self.layouts) * self.world.gpus
        idle = 1.0 - (self.rate + weights.sum(1)) / clock
        value = np.zeros(len(self.states))
        while True:
            padded = np.append(value, -np.inf)
            new = idle * value + (weights * value[ends]).sum(1) / clock
            for kind, then in enumerate(arrivals):
                best = padded[then].max(1)
                got = np.where(np.isfinite(best), 1.0 + best, value)
                new += self.rate / clock * self.world.weights[kind] * got
            gain = new - value
            value = new - new[0]
            if gain.max() - gain.min() < CLOSE * gain.max():
                return value, float(gain.max()) * clock / self.rate

    @property
    def _ends(self) -> tuple[Ints, Floats]:
        """[states, slices] where each end leads, and its rate: 1, or 0 where there is no such slice."""
        most = max(len(layout) for layout in self.layouts) * self.world.gpus
        ends = np.zeros((len(self.states), most), dtype=np.int64)
        rates = np.zeros((len(self.states), most))
        for number, state in enumerate(self.states):
            column = 0
            for gpu, layout in enumerate(state):
                for slice_ in self.layouts[layout]:
                    left = tuple(other for other in self.layouts[layout] if other != slice_)
                    ends[number, column] = self._moved(state, gpu, self._number[left])
                    rates[number, column] = 1.0
                    column += 1
        return ends, rates

    def _arrivals(self, kind: int) -> Ints:
        """[states, places] where each place leads; one past the states where it is taken."""
        places = self.world.places(kind)
        then = np.full((len(self.states), self.world.gpus * len(places)), len(self.states), dtype=np.int64)
        for number, state in enumerate(self.states):
            for gpu, layout in enumerate(state):
                for place, (_, mask) in enumerate(places):
                    after = self._with(layout, kind, mask)
                    if after is not None:
                        then[number, gpu * len(places) + place] = self._moved(state, gpu, after)
        return then

    def _with(self, layout: int, kind: int, mask: int) -> int | None:
        """The layout with one slice more; None where it does not fit."""
        there = self.layouts[layout]
        if any(mask & taken for _, taken in there):
            return None
        return self._number[tuple(sorted([*there, (kind, mask)]))]

    def _moved(self, state: Sequence[int], gpu: int, layout: int) -> int:
        after = [*state[:gpu], layout, *state[gpu + 1 :]]
        return self._at[tuple(sorted(after))]

    def policy(self) -> Policy:
        """Where the value afterwards is greatest."""
        values = self.values

        def choose(state: State, request: Request, options: Sequence[Place]) -> Place:
            now = [self._number[tuple(sorted((kind, mask) for mask, kind, _, _ in on))] for on in state.live]
            masks = dict(self.world.places(request.kind))

            def worth(place: Place) -> tuple[float, int, int]:
                gpu, start = place
                after = self._with(now[gpu], request.kind, masks[start])
                assert after is not None
                return (-round(float(values[self._moved(now, gpu, after)]), 9), gpu, start)

            return min(options, key=worth)

        return choose


def layouts(world: World) -> list[Layout]:
    """Every set of slices that one GPU can run, the empty one first."""
    places = [(kind, mask) for kind in range(len(world.profiles)) for _, mask in world.places(kind)]
    found: list[Layout] = []

    def grow(layout: Layout, taken: int, after: int) -> None:
        found.append(tuple(sorted(layout)))
        for number in range(after, len(places)):
            if not places[number][1] & taken:
                grow((*layout, places[number]), taken | places[number][1], number + 1)

    grow((), 0, 0)
    return sorted(found, key=lambda layout: (len(layout), layout))
