"""What each place that fits costs: the loss to the asks that are usual, and what comes on top.

Columns over the spots of a field. Which spots are taken is decided in
placement_choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pool.core import shares
from pool.core.fleet import NEVER, Fleet, Ints
from pool.core.mig import Media, Profile
from pool.core.placement_field import Field, Sort, has_media_gone
from pool.core.placement_gaps import around, fullness, outlasting, switching
from pool.core.placement_policy import MODE_CHANGE, STEP, Policy, Why, models_of
from pool.core.placement_room import slots, use_for
from pool.core.quota import WHOLE, charge_milli
from pool.core.shares import Portion
from pool.core.usual import Floats
from pool.core.worth import Nodes, Worth
from pool.core.worth_mig import Stretches, Taken, stretches


@dataclass(frozen=True, slots=True, eq=False)
class Spots:
    """Where one piece could go, flat: on the GPU at `place`, from slice `start`.

    `rank` 0 is the strongest isolation; `charge` in thousandths; `crowd` how much is free on the
    GPU, in slices; the costs in GPUs.
    """

    place: Ints
    start: Ints
    mask: Ints
    rank: Ints
    charge: Ints
    crowd: Ints
    loss: Floats
    pressure: Floats
    gaps: Floats
    mode: Floats
    stays: Ints

    @property
    def cost(self) -> Ints:
        """In steps of STEP."""
        return np.rint((self.loss + self.pressure + self.gaps + self.mode) / STEP).astype(np.int64)

    @property
    def standing(self) -> Ints:
        """How far back each stands, in one number: the terms by which they are ordered, side by side."""
        standing = 1 - self.stays
        for term, bits in ((self.rank, 2), (self.charge, 10), (self.cost + _FLOOR, 26), (self.crowd, 5)):
            standing = standing << bits | np.clip(term, 0, (1 << bits) - 1)
        return standing << _PLACE | np.minimum(self.place, (1 << _PLACE) - 1)

    def order(self, first: int | None = None) -> Ints:
        """The numbers of the spots, the best first; only the `first` of them where that is given."""
        standing = self.standing
        some = np.arange(len(standing))
        if first is not None and first < len(standing):
            # On one GPU several may stand alike: they are not to be cut apart.
            some = np.flatnonzero(standing <= np.partition(standing, first - 1)[first - 1])
        return some[np.lexsort((-self.start[some], standing[some]))]

    def only(self, which: Ints | list[int] | slice) -> Spots:
        return Spots(**{name: getattr(self, name)[which] for name in Spots.__dataclass_fields__})

    def whys(self) -> list[Why]:
        """Of each spot."""
        terms = (self.loss, self.pressure, self.gaps, self.mode)
        columns = [np.rint(term * WHOLE).astype(np.int64).tolist() for term in terms]
        return [Why(*row) for row in zip(*columns, (self.stays > 0).tolist(), strict=True)]

    def why(self, which: Ints) -> Why:
        """Of these spots together."""
        terms = (self.loss, self.pressure, self.gaps, self.mode)
        loss, pressure, gaps, mode = (round(float(term[which].sum()) * WHOLE) for term in terms)
        return Why(loss, pressure, gaps, mode, bool(len(which)) and bool(self.stays[which].all()))


#: What costs may be below 0 (a gap that is filled), in steps; and the bits of a place.
_FLOOR, _PLACE = 1 << 22, 19
#: What is free of a GPU for shares, as crowd: in so many parts.
_CROWD = 31
#: (GPU id, first slice, slices): where somebody is already.
Own = Collection[tuple[int, int, int]]


def rated(rates: Rates, own: Own = ()) -> Spots:
    """All spots of a field, each with what one piece there costs."""
    found = [rates.of(sort, places) for sort, places in rates.field.fitting]
    if not found:
        nothing: Any = np.empty(0, dtype=np.int64)
        return Spots(**dict.fromkeys(Spots.__dataclass_fields__, nothing))
    columns = {name: np.concatenate([getattr(p, name) for p in found]) for name in Spots.__dataclass_fields__}
    return _staying(rates.field.fleet, Spots(**columns), own)


def _staying(fleet: Fleet, all_of_them: Spots, own: Own) -> Spots:
    stays = all_of_them.stays.copy()
    for gpu_id, start, size in own:
        place = fleet.place(gpu_id)
        if place is not None:
            mask = ((1 << size) - 1) << start
            stays[(all_of_them.place == place) & (all_of_them.mask == mask)] = 1
    return replace(all_of_them, stays=stays)


class Rates:
    """What the spots of one field cost by one policy."""

    def __init__(self, field: Field, policy: Policy) -> None:
        self.field = field
        self.policy = policy
        self.use = use_for(field.ask)
        models = field.fleet.fact(models_of)
        self.worth: Worth = policy.worth(self.use, models)
        self.pressure = np.zeros(len(models))
        possible = {sort.gpu.model for sort in field.sorts if sort.why is None}
        if len(possible) > 1 and self.worth.pressure(0.0).any():
            self.pressure = self.worth.pressure(fullness(field))
        self.switches = switching(field)
        #: [places] what a change of mode costs there, in GPUs.
        self.mode: Floats = np.where(self.switches, MODE_CHANGE, 0.0)
        self._steps: dict[int, Callable[[int], int]] = {}
        self._lasting = policy.lasting * policy.mix.slices.horizon
        #: What the weights of a GPU's stretches sum to (worth_mig.stretches), so that losses are in GPUs.
        self._weight = 1 - np.exp((field.window.start - float(field.window.end)) / self._lasting)

    def of(self, sort: Sort, places: Ints) -> Spots:
        """The spots on these GPUs of one sort."""
        if isinstance(sort.fit, Profile):
            return self._slices(sort, sort.fit, places)
        if isinstance(sort.fit, Portion):
            return self._shares(sort, sort.fit, places)
        loss = Standing(self.field, places).loss(self.worth, 1)
        gaps = around(self.field, places, self.policy.lasting)
        return self._spots(places, loss, gaps=gaps, charge=WHOLE)

    def slice_worth(self, place: int) -> Callable[[int], int] | None:
        """What free slices of this GPU are worth, in steps of STEP; None where taking any loses nothing."""
        if has_media_gone(self.field.window, np.array([place]))[0]:
            return None
        sort = int(self.field.kind[place])
        if sort not in self._steps:
            gpu = self.field.sorts[sort].gpu
            self._steps[sort] = self.policy.steps(gpu.model, gpu.grid, gpu.profiles)
        return self._steps[sort]

    def _spots(self, places: Ints, loss: Floats, *, charge: int, gaps: Floats, rank: int = 0) -> Spots:
        """One spot on each GPU, on the whole of its grid."""
        fleet, none = self.field.fleet, np.zeros(len(places), dtype=np.int64)
        return Spots(
            place=places,
            start=none,
            mask=fleet.full[places],
            rank=none + rank,
            charge=none + charge,
            crowd=none,
            loss=loss,
            pressure=self.pressure[fleet.model[places]] * charge / WHOLE,
            gaps=gaps,
            mode=self.mode[places],
            stays=none,
        )

    def _slices(self, sort: Sort, profile: Profile, places: Ints) -> Spots:
        grid, window, fleet = sort.gpu.grid, self.field.window, self.field.fleet
        worth = self.policy.slices(sort.gpu.model, grid, sort.gpu.profiles)
        loss = worth.loss(profile, self._stretches_of(places)) / self._weight
        free = window.free[places]
        if profile.media is Media.ALL:
            loss = np.where(np.isfinite(loss), worth.of(free)[:, None], np.inf)
        loss[has_media_gone(window, places)[:, None] & np.isfinite(loss)] = 0.0
        row, column = np.nonzero(np.isfinite(loss))
        start = np.array([s for s, _ in slots(profile.size, profile.starts, grid)], dtype=np.int64)[column]
        place, none = places[row], np.zeros(len(row), dtype=np.int64)
        charge = charge_milli(profile.size, grid)
        return Spots(
            place=place,
            start=start,
            mask=((1 << profile.size) - 1) << start,
            rank=none,
            charge=none + charge,
            crowd=np.bitwise_count(free[row]).astype(np.int64),
            loss=loss[row, column],
            pressure=self.pressure[fleet.model[place]] * charge / WHOLE,
            gaps=np.zeros(len(row)),
            mode=self.mode[place],
            stays=none,
        )

    def _stretches_of(self, places: Ints) -> Stretches:
        """What is free of these GPUs of one sort while the ask would last."""
        every, row, first = self._stretches
        a, b = row[places[0]], row[places[-1]] + 1
        part = slice(int(first[a]), int(first[b]))
        return Stretches(every.row[part] - a, every.free[part], every.weight[part])

    @cached_property
    def _stretches(self) -> tuple[Stretches, Ints, Ints]:
        """Of all GPUs with room, sort after sort; the row of each place, and where each row begins."""
        window, number = self.field.window, len(self.field.fleet.id)
        places = np.concatenate([places for _, places in self.field.fitting])
        row = np.full(number, -1, dtype=np.int64)
        row[places] = np.arange(len(places))
        there = np.flatnonzero(row[window.at] >= 0)
        taken = Taken(row[window.at[there]], window.mask[there], window.starts[there], window.ends[there])
        full = self.field.fleet.full[places]
        every = stretches(full, taken, window.start, window.end, self._lasting)
        return every, row, np.searchsorted(every.row, np.arange(len(places) + 1))

    def _shares(self, sort: Sort, portion: Portion, places: Ints) -> Spots:
        ledgers, window = sort.gpu.ledgers, self.field.window
        memory = -(-WHOLE * portion.memory_mib // ledgers.memory_mib)
        compute = WHOLE * portion.compute_pct // ledgers.compute_pct
        taken = (peak[places] for peak in window.share_peaks)
        # Rounding must not make a share too large that fits to the last MiB.
        left_memory = np.maximum(WHOLE - -(-WHOLE * next(taken) // ledgers.memory_mib), memory)
        left_compute = np.maximum(WHOLE - WHOLE * next(taken) // ledgers.compute_pct, compute)
        standing = Standing(self.field, places, left_memory, left_compute)
        loss = standing.share_loss(self.worth, memory, compute)
        charge = shares.charge_milli(portion, ledgers.memory_mib)
        gaps = outlasting(self.field, places) * charge / WHOLE
        rank = shares.ORDER.index(sort.gpu.sharing) if sort.gpu.sharing else len(shares.ORDER)
        spots = self._spots(places, loss, charge=charge, gaps=gaps, rank=rank)
        return replace(spots, crowd=left_memory * _CROWD // WHOLE)


class Standing:
    """GPUs as the rows of worth.Nodes: a row for each node and model. `row`, `slot`: where each place is."""

    def __init__(
        self, field: Field, places: Ints, memory: Ints | None = None, compute: Ints | None = None
    ) -> None:
        fleet = field.fleet
        self.ask = field.ask
        self.places = places
        key = fleet.node[places] * len(fleet.models) + fleet.model[places]
        keys, self.row = np.unique(key, return_inverse=True)
        order = np.argsort(self.row, kind="stable")
        first = np.searchsorted(self.row[order], np.arange(len(keys)))
        self.slot = np.empty(len(places), dtype=np.int64)
        self.slot[order] = np.arange(len(places)) - first[self.row[order]]
        shape = (len(keys), int(self.slot.max(initial=0)) + 1)
        node = keys // max(1, len(fleet.models))
        # A node may have become smaller than what is booked there: then it has nothing left, not less.
        left = (np.where(free == NEVER, np.inf, np.maximum(free, 0)) for free in field.window.node_free)
        cpu, ram = (free[node] for free in left)
        self.nodes = Nodes(
            self._filled(shape, memory),
            keys % max(1, len(fleet.models)),
            cpu,
            ram,
            None if compute is None else self._filled(shape, compute),
        )

    def _filled(self, shape: tuple[int, int], values: Ints | None) -> Ints:
        filled = np.zeros(shape, dtype=np.int64)
        filled[self.row, self.slot] = WHOLE if values is None else values
        return filled

    def loss(self, worth: Worth, gpus: int) -> Floats:
        """[places] what is lost by taking so many whole GPUs of the row in which the place is."""
        return self.row_loss(worth, gpus)[self.row]

    def row_loss(self, worth: Worth, gpus: int) -> Floats:
        cpu, ram = float(gpus * self.ask.node_cpu_milli), float(gpus * self.ask.node_memory_mib)
        return worth.whole(self.nodes, gpus, cpu, ram)

    def share_loss(self, worth: Worth, memory: int, compute: int) -> Floats:
        """[places] what is lost by one share there."""
        cpu, ram = float(self.ask.node_cpu_milli), float(self.ask.node_memory_mib)
        return worth.share(self.nodes, memory, compute, cpu, ram)[self.row, self.slot]
