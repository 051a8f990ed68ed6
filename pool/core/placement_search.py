"""The search for several slices or shares at once: whole plans, best first, for one ask.

Greedy, but it never refuses what fits: on every GPU it keeps as many places
open as are still wanted there, and of every node no more is taken than it has.
The same input gives the same output. Whole GPUs are in placement_whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pool.core import shares
from pool.core.mig import Profile
from pool.core.placement_policy import NO_COST, Why
from pool.core.placement_room import Fit, GpuView, Slot, packed
from pool.core.quota import WHOLE, charge_milli
from pool.core.shares import Portion

#: How often earlier plans took (GPU id, start): later ones avoid it, because they
#: are wanted exactly when somebody else was quicker there.
Worn = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Pick:
    """One allocation to make: a rectangle on one GPU. No `profile`: all of it, or its `portion`.

    `cpu_milli` and `ram_mib` are what it takes of its node. `switch`: before its
    time the GPU is blocked for a change of its mode (placement_mode.SWITCH).
    """

    gpu_id: int
    model: str
    profile: Profile | None
    start: int
    size: int
    charge_milli: int
    portion: Portion | None = None
    cpu_milli: int = 0
    ram_mib: int = 0
    switch: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """Everything that one ask gets, free together over its whole period, and why it stands where it does.

    `cost` is all that is in `why`, in thousandths of a GPU.
    """

    picks: tuple[Pick, ...]
    why: Why = NO_COST

    @property
    def charge_milli(self) -> int:
        return sum(p.charge_milli for p in self.picks)

    @property
    def cost(self) -> int:
        return self.why.cost


@dataclass(frozen=True, eq=False)
class Seat:
    """What one GPU has for the pieces of an ask: `count` of them fit together into `free` at `slots`.

    `first`: what the first piece costs (placement_policy.STEP), by its mask. What
    free slices are worth then tells what those after it cost, and `extra` comes on top of
    each. `rank` 0 is the strongest isolation. `stays`: masks on which the owner is already.
    """

    gpu: GpuView
    profile: Profile | None
    portion: Portion | None
    free: int
    slots: tuple[Slot, ...]
    count: int
    first: Mapping[int, int]
    extra: int = 0
    worth: Callable[[int], int] | None = None
    rank: int = 0
    stays: frozenset[int] = frozenset()
    crossing: bool = False

    @property
    def order(self) -> tuple[str, int, int]:
        return (self.gpu.node, self.gpu.index, self.gpu.id)

    def cost(self, free: int, mask: int) -> int:
        """Of taking `mask` when so much is free."""
        if free == self.free:
            return self.first[mask]
        return self.extra + (self.worth(free) - self.worth(free & ~mask) if self.worth else 0)

    def mask(self, start: int) -> int:
        """Of one piece from that slice."""
        return ((1 << (self.gpu.grid if self.profile is None else self.profile.size)) - 1) << start

    def pick(self, start: int) -> Pick:
        """One piece from that slice."""
        return pick_of(self.gpu, self.profile or self.portion, start)


def pick_of(gpu: GpuView, fit: Fit, start: int) -> Pick:
    """One piece of this GPU, from that slice where it is a slice."""
    if fit is None:
        return Pick(gpu.id, gpu.model, None, 0, gpu.grid, WHOLE)
    if isinstance(fit, Portion):
        charge = shares.charge_milli(fit, gpu.shareable_mib)
        return Pick(gpu.id, gpu.model, None, 0, gpu.grid, charge, fit)
    return Pick(gpu.id, gpu.model, fit, start, fit.size, charge_milli(fit.size, gpu.grid))


#: (seat, start) of each piece.
Places = tuple[tuple[Seat, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Places for one ask, and what they cost together."""

    cost: int
    places: Places

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Where the owner is already; the strongest isolation; the smallest charge; the least cost."""
        away = sum(seat.mask(start) not in seat.stays for seat, start in self.places)
        rank = sum(seat.rank for seat, _ in self.places)
        return (away, rank, sum(seat.pick(start).charge_milli for seat, start in self.places), self.cost)


def merged(sources: Iterable[Iterator[Plan]]) -> Iterator[Plan]:
    """The plans of all groups, the best of their heads first."""
    heap: list[tuple[tuple[int, int, int, int], int, Plan, Iterator[Plan]]] = []

    def push(order: int, source: Iterator[Plan]) -> None:
        plan = next(source, None)
        if plan is not None:
            heappush(heap, (plan.key, order, plan, source))

    for order, source in enumerate(sources):
        push(order, source)
    while heap:
        _, order, plan, source = heappop(heap)
        yield plan
        push(order, source)


def distinct(make: Callable[[Worn], Plan]) -> Iterator[Plan]:
    """Plans that differ as far as they can, until one comes again."""
    worn: Worn = defaultdict(int)
    seen: set[frozenset[tuple[tuple[int, int], int]]] = set()
    while True:
        plan = make(worn)
        counted = Counter((seat.gpu.id, start) for seat, start in plan.places)
        places = frozenset(counted.items())
        if places in seen:
            return
        seen.add(places)
        yield plan
        for place in counted:
            worn[place] += 1


class _Nodes:
    """What each node still gives; without a limit everything."""

    def __init__(self, most: Mapping[int, int]) -> None:
        self._left = dict(most)

    def left(self, seat: Seat) -> int:
        return self._left.get(seat.gpu.node_id, 1 << 30)

    def take(self, seat: Seat, pieces: int = 1) -> None:
        if seat.gpu.node_id in self._left:
            self._left[seat.gpu.node_id] -= pieces


#: What the next place of a seat costs: (not where the owner is, worn, cost, free slices, seat, -start, mask).
_Offer = tuple[bool, int, int, int, int, int, int]


def slice_plans(seats: Sequence[Seat], count: int, most: Mapping[int, int]) -> Iterator[Plan]:
    """MIG: always the place that costs least, wherever it is. `most`: pieces by node id, where limited."""
    fresh = [_offer(i, seat, seat.free, seat.count, {}) for i, seat in enumerate(seats)]

    def make(worn: Worn) -> Plan:
        touched = {gpu_id for gpu_id, _ in worn}
        heap = [
            _offer(i, seat, seat.free, seat.count, worn) if seat.gpu.id in touched else fresh[i]
            for i, seat in enumerate(seats)
        ]
        heapify(heap)
        nodes = _Nodes(most)
        free: dict[int, int] = {}
        left: dict[int, int] = {}
        total = 0
        places: list[tuple[Seat, int]] = []
        while len(places) < count:
            _, _, cost, _, i, start, mask = heappop(heap)
            seat = seats[i]
            if nodes.left(seat) < 1:
                continue
            nodes.take(seat)
            total += cost
            places.append((seat, -start))
            free[i] = free.get(i, seat.free) & ~mask
            left[i] = left.get(i, seat.count) - 1
            if left[i]:
                heappush(heap, _offer(i, seat, free[i], left[i], worn))
        return Plan(total, tuple(places))

    return distinct(make)


def _offer(i: int, seat: Seat, free: int, left: int, worn: Worn) -> _Offer:
    """The best next place of a seat that has `left` (> 0) to give, leaving room for the others of those."""
    crowd = free.bit_count()
    return min(
        (
            mask not in seat.stays,
            worn.get((seat.gpu.id, start), 0),
            seat.cost(free, mask),
            crowd,
            i,
            -start,
            mask,
        )
        for start, mask in seat.slots
        if mask & free == mask and (not seat.crossing or packed(seat.slots, free & ~mask) >= left - 1)
    )


def share_plans(seats: Sequence[Seat], count: int, most: Mapping[int, int]) -> Iterator[Plan]:
    """Shares: the strongest isolation, and of that as many as fit where the first costs least."""
    by_cost = sorted(seats, key=lambda seat: (not seat.stays, seat.rank, _cost_of_share(seat), seat.order))

    def make(worn: Worn) -> Plan:
        nodes = _Nodes(most)
        places: list[tuple[Seat, int]] = []
        for seat in sorted(by_cost, key=lambda seat: worn.get((seat.gpu.id, 0), 0)):
            pieces = min(seat.count, nodes.left(seat), count - len(places))
            nodes.take(seat, pieces)
            places += [(seat, 0)] * pieces
            if len(places) == count:
                break
        return Plan(sum(_cost_of_share(seat) for seat, _ in places), tuple(places))

    return distinct(make)


def _cost_of_share(seat: Seat) -> int:
    return next(iter(seat.first.values()))
