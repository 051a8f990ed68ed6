"""The search for placements: whole candidates, best first, for one ask.

Greedy, but it never refuses what fits: on every GPU it keeps as many places
open as are still wanted there. Everything is decided by (charge, what is
spoilt, node, index), so that the same input gives the same output.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain

from pool.core import shares
from pool.core.mig import Profile
from pool.core.placement_room import Room, packed
from pool.core.quota import WHOLE, charge_milli
from pool.core.shares import Portion

#: Alternatives of very large asks are not worth their time.
_MAX_PICKS = 2048

#: How often earlier candidates took (GPU id, start): later ones avoid it, because
#: they are wanted exactly when somebody else was quicker there.
_Taken = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Pick:
    """One allocation to make: a rectangle on one GPU. No `profile`: all of it, or its `portion`."""

    gpu_id: int
    model: str
    profile: Profile | None
    start: int
    size: int
    charge_milli: int
    portion: Portion | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Everything that one ask gets, free together over its whole period."""

    picks: tuple[Pick, ...]

    @property
    def charge_milli(self) -> int:
        return sum(p.charge_milli for p in self.picks)


@dataclass(frozen=True, slots=True)
class _Plan:
    spoilt: int
    places: tuple[tuple[Room, int], ...]

    @property
    def charge(self) -> int:
        return sum(_pick(room, start).charge_milli for room, start in self.places)


def search(rooms: Sequence[Room], count: int, same_node: bool, limit: int) -> list[Candidate]:
    """Up to `limit` candidates of `count` picks in these rooms; [] only when none exists.

    All of one GPU model, and shares of one kind, where that is possible, else mixed.
    """
    rooms = sorted((r for r in rooms if r.count), key=lambda r: r.order)
    groups = _groups(
        rooms, count, lambda r: (r.gpu.node_id if same_node else None, r.gpu.model, r.gpu.sharing)
    )
    if not groups:
        groups = _groups(rooms, count, lambda r: r.gpu.node_id if same_node else None)
    plans = [_plans(group, count) for group in groups]
    limit = max(1, min(limit, _MAX_PICKS // count))
    return [_candidate(plan) for _, plan in zip(range(limit), _merge(plans), strict=False)]


def _groups(rooms: Iterable[Room], count: int, key: Callable[[Room], object]) -> list[list[Room]]:
    """The rooms that may serve one candidate together, where they are enough."""
    found: dict[object, list[Room]] = defaultdict(list)
    for r in rooms:
        found[key(r)].append(r)
    return [group for group in found.values() if sum(r.count for r in group) >= count]


def _merge(sources: Iterable[Iterator[_Plan]]) -> Iterator[_Plan]:
    """The plans of all groups, the best of their heads first."""
    heap: list[tuple[int, int, int, _Plan, Iterator[_Plan]]] = []

    def push(order: int, source: Iterator[_Plan]) -> None:
        plan = next(source, None)
        if plan is not None:
            heappush(heap, (plan.charge, plan.spoilt, order, plan, source))

    for order, source in enumerate(sources):
        push(order, source)
    while heap:
        _, _, order, plan, source = heappop(heap)
        yield plan
        push(order, source)


def _distinct(make: Callable[[_Taken], _Plan]) -> Iterator[_Plan]:
    """Plans that differ as far as they can, until one comes again."""
    taken: _Taken = defaultdict(int)
    seen: set[frozenset[tuple[tuple[int, int], int]]] = set()
    while True:
        plan = make(taken)
        counted = Counter((r.gpu.id, start) for r, start in plan.places)
        places = frozenset(counted.items())
        if places in seen:
            return
        seen.add(places)
        yield plan
        for place in counted:
            taken[place] += 1


#: What the next place in a room costs: (taken before, spoilt, slices free there, room, start, mask).
_Offer = tuple[int, int, int, int, int, int]


def _plans(rooms: Sequence[Room], count: int) -> Iterator[_Plan]:
    """All rooms of one ask are of one kind."""
    if rooms[0].portion is not None:
        return _share_plans(rooms, count)
    if rooms[0].profile is None:
        return _whole_plans(rooms, count)
    return _slice_plans(rooms, count) if count > 1 else _single_plans(rooms)


def _single_plans(rooms: Sequence[Room]) -> Iterator[_Plan]:
    """One slice, which most asks are: what `_slice_plans` gives, by looking at each place once."""
    offers = (offer for i, r in enumerate(rooms) for offer in _offers(i, r, r.free, r.count, {}))
    for _, spoilt, _, i, start, _ in sorted(offers):
        yield _Plan(spoilt, ((rooms[i], start),))


def _slice_plans(rooms: Sequence[Room], count: int) -> Iterator[_Plan]:
    """MIG: always the place that spoils least, wherever it is."""
    fresh = [_offer(i, r, r.free, r.count, {}) for i, r in enumerate(rooms)]

    def make(taken: _Taken) -> _Plan:
        touched = {gpu_id for gpu_id, _ in taken}
        heap = [
            _offer(i, r, r.free, r.count, taken) if r.gpu.id in touched else fresh[i]
            for i, r in enumerate(rooms)
        ]
        heapify(heap)
        free: dict[int, int] = {}
        left: dict[int, int] = {}
        spoilt = 0
        places = []
        for _ in range(count):
            _, cost, _, i, start, mask = heappop(heap)
            r = rooms[i]
            spoilt += cost
            places.append((r, start))
            free[i] = free.get(i, r.free) & ~mask
            left[i] = left.get(i, r.count) - 1
            if left[i]:
                heappush(heap, _offer(i, r, free[i], left[i], taken))
        return _Plan(spoilt, tuple(places))

    return _distinct(make)


def _offer(i: int, r: Room, free: int, left: int, taken: _Taken) -> _Offer:
    """The best next place in a room that has `left` (> 0) to give."""
    return min(_offers(i, r, free, left, taken))


def _offers(i: int, r: Room, free: int, left: int, taken: _Taken) -> Iterator[_Offer]:
    """Every next place that leaves room for the others of those `left`."""
    crowd = free.bit_count()
    return (
        (taken.get((r.gpu.id, start), 0), r.spoilt(free, mask), crowd, i, start, mask)
        for start, mask in r.slots
        if mask & free == mask and (not r.crossing or packed(r.slots, free & ~mask) >= left - 1)
    )


def _whole_plans(rooms: Sequence[Room], count: int) -> Iterator[_Plan]:
    """Whole GPUs: on one node that is left with the fewest free, else on the fewest nodes."""
    nodes: dict[int, list[Room]] = defaultdict(list)
    for r in rooms:
        nodes[r.gpu.node_id].append(r)

    def make(taken: _Taken) -> _Plan:
        def worn(r: Room) -> int:
            return taken.get((r.gpu.id, 0), 0)

        waiting = list(nodes.values())
        if taken:
            waiting = [sorted(free, key=worn) for free in waiting]
        places: list[Room] = []
        spoilt = 0
        while len(places) < count:
            need = count - len(places)
            costs = [_node_cost(free, need, worn) for free in waiting]
            node = waiting.pop(costs.index(min(costs)))
            places += node[:need]
            spoilt += WHOLE + max(0, len(node) - need)
        return _Plan(spoilt, tuple((r, 0) for r in places))

    return _distinct(make)


def _node_cost(
    free: Sequence[Room], need: int, worn: Callable[[Room], int]
) -> tuple[bool, int, int, tuple[str, int, int]]:
    """A node that serves the whole need before others; then unworn; then the closest fit."""
    spare = len(free) - need
    return (spare < 0, sum(map(worn, free[:need])), abs(spare), free[0].order)


def _share_plans(rooms: Sequence[Room], count: int) -> Iterator[_Plan]:
    """Shares: the strongest isolation, and of that the GPU which is left with the least."""
    by_cost = sorted(rooms, key=lambda r: (_share_cost(r), r.order))

    def make(taken: _Taken) -> _Plan:
        fresh = (r for r in by_cost if (r.gpu.id, 0) not in taken)
        worn = sorted((r for r in by_cost if (r.gpu.id, 0) in taken), key=lambda r: taken[r.gpu.id, 0])
        places: list[tuple[Room, int]] = []
        for r in chain(fresh, worn):
            places += [(r, 0)] * min(r.count, count - len(places))
            if len(places) == count:
                break
        return _Plan(sum(_share_cost(r) for r, _ in places), tuple(places))

    return _distinct(make)


def _share_cost(r: Room) -> int:
    """No amount of room makes up for a weaker isolation."""
    rank = shares.ORDER.index(r.gpu.sharing) if r.gpu.sharing else len(shares.ORDER)
    return 4 * WHOLE * rank + r.spare


def _pick(r: Room, start: int) -> Pick:
    if r.portion is not None:
        charge = shares.charge_milli(r.portion, r.gpu.shareable_mib)
        return Pick(r.gpu.id, r.gpu.model, None, 0, r.gpu.grid, charge, r.portion)
    if r.profile is None:
        return Pick(r.gpu.id, r.gpu.model, None, 0, r.gpu.grid, WHOLE)
    size = r.profile.size
    return Pick(r.gpu.id, r.gpu.model, r.profile, start, size, charge_milli(size, r.gpu.grid))


def _candidate(plan: _Plan) -> Candidate:
    places = sorted(plan.places, key=lambda place: (place[0].order, place[1]))
    return Candidate(tuple(_pick(r, start) for r, start in places))
