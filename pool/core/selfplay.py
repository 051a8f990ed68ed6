"""Chooses the parameters of a mix by playing: arrivals drawn from the mix fill a small copy of the pool.

A portfolio is thinned out stream by stream, then the best of it is varied. Off the
decision path: seconds to minutes, but never cut short by a clock, so that the same
mix, pool and seed give the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from pool.core.filling import Filling
from pool.core.mix import Form, Kind, Mix, Parameters
from pool.core.usual import Model, asked_milli, piece
from pool.core.worth import Nodes, Worth

#: Rows of the small copy: enough for its ranking of parameters to be that of a large pool.
ROWS = 300
#: So much of the copy is asked for in the end, and from where on counts what was given.
FLOOD, FROM = 1.1, 0.8
#: (least, most, usual step) of each parameter; steps are factors but for gamma, which is negative.
RANGES = {
    "gamma": (-4.0, 0.0, 0.3),
    "alpha": (0.05, 3.0, 0.25),
    "slack": (0.8, 4.0, 0.15),
    "balance": (0.02, 2.0, 0.4),
    "pressure": (0.02, 3.0, 0.4),
    "fade": (0.5, 1.5, 0.08),
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How many of the portfolio begin, are left after each stream; how many variants follow."""

    portfolio: int
    left: tuple[int, ...]
    variants: int


EFFORTS = (Effort(16, (5,), 0), Effort(24, (8, 4), 32), Effort(64, (24, 12, 8), 96))


def choose(mix: Mix, nodes: Nodes, models: Sequence[Model], seed: int = 0, effort: int = 1) -> Mix:
    """`mix` with the parameters that gave away most to asks of it; `nodes` is the pool when empty.

    `effort` 0 looks at a few, 1 is thorough, 2 takes several times as long.
    """
    played = _playable(mix, models)
    if not played.kinds or not nodes.memory.any():
        return mix
    chosen = EFFORTS[effort]
    field_ = _Field(played, nodes, models, seed, 1 + len(chosen.left))
    best = field_.thin(portfolio(mix.parameters, chosen.portfolio), chosen.left)
    best = field_.vary(best, chosen.variants)
    return replace(mix, parameters=best)


def portfolio(first: Parameters, count: int) -> list[Parameters]:
    """So many parameters that differ widely; `first` and the plain ones lead."""
    chance = np.random.default_rng(count)
    found = list(dict.fromkeys((first, Parameters())))
    while len(found) < count:
        found.append(_varied(Parameters(), chance, 1.5))
    return found[:count]


def play(mix: Mix, nodes: Nodes, models: Sequence[Model], stream: Iterable[Kind]) -> float:
    """How full the pool is while `stream` arrives, 0..1: the mean from 80 % asked on."""
    filling = Filling(nodes, models, Worth(mix, models))
    size = {kind: asked_milli(kind, models) for kind in mix.kinds}
    asked = told = weight = 0.0
    for kind in stream:
        asked += size[kind]
        place = filling.choose(kind)
        if place is not None:
            filling.take(kind, place)
        if asked >= FROM * filling.total:
            told += size[kind] * filling.fullness
            weight += size[kind]
    return told / weight if weight else filling.fullness


def drawn(mix: Mix, models: Sequence[Model], total: float, chance: np.random.Generator) -> list[Kind]:
    """Asks of the mix, in the order of chance, until `total` thousandths would be passed."""
    sizes = [asked_milli(kind, models) for kind in mix.kinds]
    stream: list[Kind] = []
    asked = 0.0
    while True:
        for number in chance.choice(len(mix.kinds), size=512, p=mix.weights):
            asked += sizes[int(number)]
            if asked > total:
                return stream
            stream.append(mix.kinds[int(number)])


def small(nodes: Nodes, models: Sequence[Model], rows: int = ROWS) -> tuple[Nodes, list[Model]]:
    """So many rows, evenly in the order of what they are, so that all kinds of nodes keep their part."""
    if len(nodes.model) > rows:
        order = np.lexsort((nodes.ram, nodes.cpu, nodes.memory.sum(1), nodes.model))
        nodes = nodes.rows(np.sort(order[np.linspace(0, len(order) - 1, rows).round().astype(int)]))
    gpus = np.bincount(nodes.model, (nodes.memory > 0).sum(1), len(models))
    return nodes, [replace(model, gpus=int(there)) for model, there in zip(models, gpus, strict=True)]


@dataclass(slots=True)
class _Field:
    """Where parameters compete: all on the same streams, so that chance favours none."""

    mix: Mix
    nodes: Nodes
    models: Sequence[Model]
    seed: int
    streams: int
    _drawn: list[list[Kind]] = field(default_factory=list)
    _known: dict[tuple[Parameters, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes, self.models = small(self.nodes, self.models)
        total = FLOOD * float(self.nodes.memory.sum())
        self._drawn = [
            drawn(self.mix, self.models, total, np.random.default_rng((self.seed, number)))
            for number in range(self.streams)
        ]

    def score(self, parameters: Parameters, number: int) -> float:
        """How full these parameters keep the pool on that stream."""
        key = (parameters, number)
        if key not in self._known:
            mix = replace(self.mix, parameters=parameters)
            self._known[key] = play(mix, self.nodes, self.models, self._drawn[number])
        return self._known[key]

    def mean(self, parameters: Parameters, streams: int) -> float:
        return sum(self.score(parameters, number) for number in range(streams)) / streams

    def thin(self, found: list[Parameters], left: Sequence[int]) -> Parameters:
        """The best after all streams; after each only the better ones go on. The earlier wins a tie."""
        for streams, most in enumerate((*left, 1), 1):
            found = sorted(found, key=lambda one: -self.mean(one, streams))[:most]
        return found[0]

    def vary(self, best: Parameters, variants: int) -> Parameters:
        """Goes from variant to variant, in smaller and smaller steps, as long as it gets better."""
        chance = np.random.default_rng((self.seed, self.streams))
        for number in range(variants):
            variant = _varied(best, chance, 1.0 - 0.7 * number / variants)
            if self._beats(variant, best):
                best = variant
        return best

    def _beats(self, variant: Parameters, best: Parameters) -> bool:
        """Better over all streams; one that is behind after some of them is given up."""
        ahead = 0.0
        for number in range(self.streams):
            ahead += self.score(variant, number) - self.score(best, number)
            if ahead <= 0:
                return False
        return True


def _playable(mix: Mix, models: Sequence[Model]) -> Mix:
    """The kinds that can be played on nodes with these models: MIG slices are not."""
    pairs = [
        (kind, weight)
        for kind, weight in map(piece, mix.kinds, mix.weights)
        if kind.form is Form.CPU or asked_milli(kind, models)
    ]
    if all(kind.form is Form.CPU for kind, _ in pairs):
        return Mix((), (), mix.parameters)
    total = sum(weight for _, weight in pairs)
    return Mix(tuple(kind for kind, _ in pairs), tuple(weight / total for _, weight in pairs), mix.parameters)


def _varied(one: Parameters, chance: np.random.Generator, width: float) -> Parameters:
    """Every parameter some usual steps away, `width` times as far as usual, within its range."""
    values = {}
    for name in (f.name for f in fields(Parameters) if f.name in RANGES):
        least, most, step = RANGES[name]
        move = float(chance.normal()) * step * width
        value = getattr(one, name)
        value = value + move if least < 0 else value * float(np.exp(move))
        values[name] = round(min(most, max(least, value)), 3)
    return replace(one, **values)
