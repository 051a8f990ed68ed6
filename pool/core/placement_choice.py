"""From what fits and what it costs to candidates: the best places for one piece, whole plans for several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from pool.core.asks import GpuAsk
from pool.core.fleet import Ints, as_mask
from pool.core.mig import Profile
from pool.core.placement_field import Field
from pool.core.placement_gaps import slice_gaps
from pool.core.placement_policy import STEP, Policy, Why
from pool.core.placement_rate import Own, Rates, Spots, Standing, rated
from pool.core.placement_room import Slot, packed, slots
from pool.core.placement_search import Candidate, Pick, Plan, Seat, merged, pick_of, share_plans, slice_plans
from pool.core.placement_whole import Unit, whole_plans
from pool.core.quota import WHOLE
from pool.core.topology import linked

#: Alternatives of very large asks are not worth their time.
_MAX_PICKS = 2048
#: So many of the best places for one piece are looked at more closely; so many groups of places for
#: several, and of each group so many places beyond twice what is asked.
_CLOSER, _GROUPS, _SPARE = 48, 16, 24


def choose(field: Field, policy: Policy, limit: int, own: Own = ()) -> list[Candidate]:
    """Up to `limit` candidates for the ask of the field, best first; [] only where there is none."""
    if field.free < field.ask.count:
        return []
    limit = max(1, min(limit, _MAX_PICKS // field.ask.count))
    rates = Rates(field, policy)
    spots = rated(rates, own)
    if field.ask.count == 1:
        return _single(rates, spots, limit)
    return list(islice(_Several(rates, spots).candidates(), limit))


# --- One piece --------------------------------------------------------------------


def _single(rates: Rates, spots: Spots, limit: int) -> list[Candidate]:
    """One piece, which most asks are: the best spots of all."""
    best = spots.only(spots.order(max(limit, _CLOSER))[: max(limit, _CLOSER)])
    best = best.only(_worst_linked(rates.field, best) if isinstance(rates.field.ask, GpuAsk) else slice(None))
    if len(best.place) and isinstance(rates.field.sort_at(int(best.place[0])).fit, Profile):
        gaps = slice_gaps(rates.field, best.place, best.mask, rates.policy.lasting)
        best = replace(best, gaps=gaps * best.charge / WHOLE)
        best = best.only(best.order())
    best = best.only(slice(limit))
    whys = best.whys()
    return [
        Candidate((_pick(rates, place, start),), why)
        for place, start, why in zip(best.place.tolist(), best.start.tolist(), whys, strict=True)
    ]


def _worst_linked(field: Field, best: Spots) -> list[int]:
    """The order in which, of equal GPUs of one node, the worst-linked comes first."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for n, (place, cost, stays) in enumerate(zip(best.place, best.cost, best.stays, strict=True)):
        groups.setdefault((int(field.fleet.node[place]), int(cost), int(stays)), []).append(n)
    for group in groups.values():
        first = linked([field.fleet.cards[best.place[n]] for n in group], 1)[0]
        group.insert(0, group.pop(first))
    return [n for group in groups.values() for n in group]


def _pick(rates: Rates, place: int, start: int) -> Pick:
    """One allocation there."""
    field = rates.field
    sort = field.sort_at(place)
    pick = pick_of(sort.gpu, sort.fit, start)
    return _noted(rates, place, replace(pick, gpu_id=int(field.fleet.id[place])))


def _bare_seat(field: Field, place: int) -> Seat:
    fit = field.sort_at(place).fit
    profile = fit if isinstance(fit, Profile) else None
    portion = None if isinstance(fit, Profile) else fit
    return Seat(field.fleet.bare(place), profile, portion, 0, (), 0, {})


def _noted(rates: Rates, place: int, pick: Pick) -> Pick:
    """With what it takes of its node, and whether the GPU has to change its mode for it."""
    ask, switch = rates.field.ask, bool(rates.switches[place])
    if not (ask.node_cpu_milli or ask.node_memory_mib or switch):
        return pick
    return replace(pick, cpu_milli=ask.node_cpu_milli, ram_mib=ask.node_memory_mib, switch=switch)


# --- Several pieces -----------------------------------------------------------------


class _Several:
    """The search for an ask of several pieces, in those groups of places that have them."""

    def __init__(self, rates: Rates, spots: Spots) -> None:
        self.rates = rates
        self.field = rates.field
        self.spots = spots
        self.cost = spots.cost
        order = spots.order()
        #: [places] how far ahead its best spot is among all; and [spots] in the order of their places.
        self.standing = np.full(len(self.field.count), len(order), dtype=np.int64)
        self.standing[spots.place[order[::-1]]] = np.arange(len(order))[::-1]
        self.by_place = np.argsort(spots.place, kind="stable")
        self._places = spots.place[self.by_place]
        #: [places] the first spot of each; only those with room are looked at.
        self._spot = np.zeros(len(self.field.count), dtype=np.int64)
        self._spot[self._places[::-1]] = self.by_place[::-1]
        self._losses: dict[int, Ints] = {}

    def candidates(self) -> Iterator[Candidate]:
        plans = [self._plans(places) for places in self._groups()]
        return (self._candidate(plan) for plan in merged(plans))

    def _groups(self) -> list[Ints]:
        """Places that have enough together: of one model and kind of sharing where possible, else mixed."""
        reach, fleet = self.field.reach, self.field.fleet
        here = np.flatnonzero(self.field.count > 0)
        alike = (reach.key[here] * len(fleet.models) + fleet.model[here]) * 8 + fleet.sharing[here] + 1
        keys = np.full(len(reach.key), -1, dtype=np.int64)
        keys[here] = np.unique(alike, return_inverse=True)[1]
        for key in (keys, np.where(self.field.count > 0, reach.key, -1)):
            totals = replace(reach, key=key).together(self.field.count)
            enough = np.flatnonzero(totals >= self.field.ask.count)
            if len(enough):
                return self._best_groups(key, enough, totals)
        return []

    def _best_groups(self, key: Ints, enough: Ints, totals: Ints) -> list[Ints]:
        """The most promising of these groups, by the best of their places.

        Of those that need several nodes anyway first the one which is left with the least.
        """
        standing, spare = self.standing, np.zeros_like(totals)
        if isinstance(self.field.ask, GpuAsk):
            standing, on_one = self._standing_of_sets()
            spare = spare if on_one else totals
        here = np.flatnonzero((key >= 0) & np.isin(key, enough))
        best = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(best, key[here], standing[here])
        chosen = enough[np.lexsort((best[enough], spare[enough]))][:_GROUPS]
        return [self._shortlist(np.flatnonzero(key == group), standing) for group in chosen.tolist()]

    def _standing_of_sets(self) -> tuple[Ints, bool]:
        """[places] by what all pieces on one node would cost, and whether some node has them.

        Where they do not fit, those come first that have the most free.
        """
        places = np.flatnonzero(self.field.count > 0)
        stand = self._stand = Standing(self.field, places)
        loss = stand.loss(self.rates.worth, self.field.ask.count)
        loss += self.rates.pressure[self.field.fleet.model[places]] * self.field.ask.count
        size = np.bincount(stand.row)[stand.row]
        order = np.lexsort((places, -size, np.rint(loss / STEP)))
        standing = np.full(len(self.field.count), len(places), dtype=np.int64)
        standing[places[order]] = np.arange(len(places))
        return standing, bool(np.isfinite(loss).any())

    def _shortlist(self, places: Ints, standing: Ints) -> Ints:
        """The best of these places, as many as are surely enough and leave some choice."""
        wanted, reach = self.field.ask.count, self.field.reach
        if reach.cell is not None:
            return places
        ranked = places[np.argsort(standing[places], kind="stable")]
        number = 2 * wanted + _SPARE
        while number < len(ranked):
            count = np.zeros_like(self.field.count)
            count[ranked[:number]] = self.field.count[ranked[:number]]
            if replace(reach, key=np.zeros_like(reach.key)).together(count).sum() >= wanted:
                break
            number *= 2
        return np.sort(ranked[:number])

    def _plans(self, places: Ints) -> Iterator[Plan]:
        ask, reach = self.field.ask, self.field.reach
        most: dict[int, int] = {}
        if reach.most is not None:
            nodes = np.unique(self.field.fleet.node[places]).tolist()
            most = {self.field.fleet.nodes[n].id: int(reach.most[n]) for n in nodes}
        if isinstance(ask, GpuAsk):
            segment = reach.segment if reach.cell is not None else None
            return whole_plans(self._units(places), ask.count, segment, most)
        seats = [self._seat(place) for place in places.tolist()]
        plans = share_plans if seats[0].portion is not None else slice_plans
        return plans(seats, ask.count, most)

    def _seat(self, place: int) -> Seat:
        """The GPU at this place, with what its spots cost."""
        field, spots = self.field, self.spots
        seat, n = _bare_seat(field, place), self._spots_of(place)
        masks, free, worth = spots.mask[n], 0, None
        possible: tuple[Slot, ...] = ()
        if seat.profile is not None:
            free = as_mask(field.window.free[place])
            every = slots(seat.profile.size, seat.profile.starts, seat.gpu.grid)
            possible = tuple(slot for slot in every if slot[1] & free == slot[1])
            worth = self.rates.slice_worth(place)
        return replace(
            seat,
            free=free,
            slots=possible,
            count=int(field.count[place]),
            first=dict(zip(masks.tolist(), self.cost[n].tolist(), strict=True)),
            extra=round(float(spots.pressure[n[0]] + spots.mode[n[0]]) / STEP),
            worth=worth,
            rank=int(spots.rank[n[0]]),
            stays=frozenset(masks[spots.stays[n] > 0].tolist()),
            crossing=packed(possible, free) != len(possible),
        )

    def _spots_of(self, place: int) -> Ints:
        first, last = np.searchsorted(self._places, (place, place + 1))
        return self.by_place[first:last]

    def _units(self, places: Ints) -> list[Unit]:
        """These GPUs by node and model."""
        stand, fleet = self._stand, self.field.fleet
        rows: dict[int, list[int]] = {}
        at = stand.row[np.searchsorted(stand.places, places)]
        for row, place in zip(at.tolist(), places.tolist(), strict=True):
            rows.setdefault(row, []).append(place)
        cell = self.field.reach.cell
        return [
            Unit(
                node_id=fleet.nodes[fleet.node[on[0]]].id,
                cell=0 if cell is None else int(cell[on[0]]),
                seats=tuple(self._whole_seat(place) for place in on),
                cards=tuple(fleet.cards[place] for place in on),
                loss=self._loss_of(row),
            )
            for row, on in rows.items()
        ]

    def _whole_seat(self, place: int) -> Seat:
        """As `_seat`, of a whole GPU, which has one spot only."""
        field, spots, n = self.field, self.spots, int(self._spot[place])
        gaps, mask = float(spots.gaps[n]), as_mask(spots.mask[n])
        return Seat(
            gpu=field.fleet.bare(place),
            profile=None,
            portion=None,
            free=0,
            slots=(),
            count=int(field.count[place]),
            first={mask: round(gaps * WHOLE)},
            extra=round(float(spots.pressure[n] + spots.mode[n]) / STEP) + round(gaps / STEP),
            stays=frozenset((mask,)) if spots.stays[n] > 0 else frozenset(),
        )

    def _loss_of(self, row: int) -> Callable[[int], int]:
        def loss(pieces: int) -> int:
            if pieces not in self._losses:
                lost = self._stand.row_loss(self.rates.worth, pieces)
                self._losses[pieces] = np.rint(np.where(np.isfinite(lost), lost, 1e6) / STEP).astype(np.int64)
            return int(self._losses[pieces][row])

        return loss

    def _candidate(self, plan: Plan) -> Candidate:
        places = sorted(plan.places, key=lambda place: (place[0].order, place[1]))
        at = [(self.field.fleet.places[seat.gpu.id], seat, start) for seat, start in places]
        first = self._spot[[place for place, _, _ in at]]
        top = self.spots.why(first)
        total = round(plan.cost * STEP * WHOLE)
        why = Why(
            total - top.pressure - top.gaps - top.mode,
            top.pressure,
            top.gaps,
            top.mode,
            all(seat.mask(start) in seat.stays for _, seat, start in at),
        )
        return Candidate(tuple(_noted(self.rates, place, seat.pick(start)) for place, seat, start in at), why)
