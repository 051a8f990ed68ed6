"""The GPUs of a pool and their nodes, one card each, and the same in columns; not what is on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pool.core.fleet_rows import NEVER
from pool.core.mig import Profile
from pool.core.placement_room import Use
from pool.core.shapes import Sharing

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T", bound=Hashable)
F = TypeVar("F")

#: What the codes in `Inventory.use` and `Inventory.sharing` mean; -1 in `sharing`: no shares.
USES: tuple[Use, ...] = tuple(Use)
SHARINGS: tuple[Sharing, ...] = tuple(Sharing)

#: A grid and the profiles that are offered on it.
Geometry = tuple[int, tuple[Profile, ...]]


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node as placement knows it. `cpu_milli` and `memory_mib` None: not known. `imex`: as reported."""

    id: int
    name: str
    block: str = ""
    cpu_milli: int | None = None
    memory_mib: int | None = None
    imex: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU without what is on it. `why` is what makes it unusable, "" nothing (see GpuView).

    `mig_now`: the mode in which it was last seen, `mig_capable` what it can (None: not known).
    `domain` names its NVLink domain: cluster and clique, or its node where the cluster
    is all zero or unknown. `links` are (UUID of a GPU, or "" for a switch; number of NVLinks).
    """

    id: int
    uuid: str
    node: NodeCard
    index: int
    model: str
    memory_mib: int | None
    use: Use
    grid: int
    profiles: tuple[Profile, ...]
    why: str = ""
    sharing: Sharing | None = None
    mig_now: bool | None = None
    mig_capable: bool | None = None
    domain: str = ""
    numa: int | None = None
    links: tuple[tuple[str, int], ...] = ()

    @property
    def order(self) -> tuple[str, int, int]:
        return (self.node.name, self.index, self.id)


@dataclass(frozen=True, eq=False)
class Inventory:
    """Cards in the order of node name, index, id: the place of a GPU is its number in it.

    Columns over the places: `id`; `node`, `model`, `domain`, `block`, `geometry` (numbers in
    `nodes`, `models`, `domains`, `blocks`, `geometries`, each in the order of its names); `memory`
    (MiB, 0: not known); `grid`; `full` (the mask of the whole grid); `use` and `sharing` (numbers in
    USES and SHARINGS); `ready` (nothing in the inventory makes it unusable).
    """

    cards: tuple[Card, ...]
    nodes: tuple[NodeCard, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]
    blocks: tuple[str, ...]
    geometries: tuple[Geometry, ...]
    places: dict[int, int]
    id: Ints
    node: Ints
    model: Ints
    domain: Ints
    block: Ints
    geometry: Ints
    memory: Ints
    grid: Ints
    full: Ints
    use: Ints
    sharing: Ints
    ready: Bools
    #: What is known by `fact`; with the cards it goes on from fleet to fleet.
    facts: dict[Any, Any] = field(default_factory=dict, kw_only=True, repr=False)

    def fact(self, of: Callable[[Inventory], F]) -> F:
        """What this function says, which may look at the inventory only. Kept: every decision asks it."""
        if of not in self.facts:
            self.facts[of] = of(self)
        known: F = self.facts[of]
        return known

    def place(self, gpu_id: int) -> int | None:
        """The place of a GPU; None when it is not in the pool."""
        return self.places.get(gpu_id)


def inventory(cards: Iterable[Card]) -> Inventory:
    """Of these cards. A node is as the first card of its GPUs says."""
    known = tuple(sorted(cards, key=lambda card: card.order))
    nodes: dict[int, NodeCard] = {}
    for card in known:
        nodes.setdefault(card.node.id, card.node)
    node_at = {pk: n for n, pk in enumerate(nodes)}
    models, model = _numbered([card.model for card in known])
    domains, domain = _numbered([card.domain for card in known])
    blocks, block = _numbered([card.node.block for card in known])
    geometries, geometry = _geometries(known)
    return Inventory(
        cards=known,
        nodes=tuple(nodes.values()),
        models=models,
        domains=domains,
        blocks=blocks,
        geometries=geometries,
        places={card.id: place for place, card in enumerate(known)},
        id=_ints([card.id for card in known]),
        node=_ints([node_at[card.node.id] for card in known]),
        model=model,
        domain=domain,
        block=block,
        geometry=geometry,
        **_own(known),
    )


def node_resources(known: Inventory) -> tuple[Ints, Ints]:
    """Per node: its cpu (thousandths) and memory (MiB), NEVER where it is not known."""
    cpu = [NEVER if node.cpu_milli is None else node.cpu_milli for node in known.nodes]
    return _ints(cpu), _ints([NEVER if node.memory_mib is None else node.memory_mib for node in known.nodes])


def with_cards(old: Inventory, cards: Sequence[Card], gone: Collection[int] = ()) -> Inventory:
    """The inventory in which these GPUs are as the cards say, and those of `gone` are not; else `old`."""
    places = [old.places.get(card.id) for card in cards]
    changed = [
        (place, card)
        for place, card in zip(places, cards, strict=True)
        if place is None or (old.cards[place] is not card and old.cards[place] != card)
    ]
    lost = old.places.keys() & set(gone)
    if not changed and not lost:
        return old
    patched = None if lost else _patched(old, changed)
    if patched is not None:
        return patched
    kept = {card.id: card for card in old.cards if card.id not in lost}
    return inventory((kept | {card.id: card for card in cards}).values())


def _patched(old: Inventory, changed: Sequence[tuple[int | None, Card]]) -> Inventory | None:
    """With these cards at the places that they have; None when more than their own columns is another."""
    cards = list(old.cards)
    at = []
    for place, card in changed:
        if place is None or _shared(cards[place]) != _shared(card) or cards[place].profiles != card.profiles:
            return None
        cards[place] = card
        at.append(place)
    columns: dict[str, Any] = {}
    for name, values in _own([cards[place] for place in at]).items():
        column = getattr(old, name).copy()
        column[at] = values
        columns[name] = column
    return replace(old, cards=tuple(cards), facts={}, **columns)


def _shared(card: Card) -> tuple[object, ...]:
    """What of a card other columns, or the order of all, depend on; its profiles apart."""
    return card.order, card.node, card.model, card.domain, card.grid


def _own(cards: Sequence[Card]) -> dict[str, Any]:
    """The columns that depend on each card alone."""
    grid = _ints([card.grid for card in cards])
    use = {kind: number for number, kind in enumerate(USES)}
    sharing: dict[Sharing | None, int] = {kind: number for number, kind in enumerate(SHARINGS)}
    sharing[None] = -1
    return {
        "memory": _ints([card.memory_mib or 0 for card in cards]),
        "grid": grid,
        "full": (np.uint64(2**64 - 1) >> (64 - grid).astype(np.uint64)).view(np.int64),
        "use": _ints([use[card.use] for card in cards]),
        "sharing": _ints([sharing[card.sharing] for card in cards]),
        "ready": np.array([not card.why for card in cards], dtype=np.bool_),
    }


def _numbered(values: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    names = sorted(set(values))
    number = {name: n for n, name in enumerate(names)}
    return tuple(names), _ints([number[value] for value in values])


def _geometries(cards: Sequence[Card]) -> tuple[tuple[Geometry, ...], Ints]:
    """Alike profiles are mostly the same object; comparing all of thousands of them would take long."""
    same: dict[tuple[int, int], int] = {}
    found: dict[Geometry, int] = {}
    numbers = []
    for card in cards:
        key = (card.grid, id(card.profiles))
        if key not in same:
            same[key] = found.setdefault((card.grid, card.profiles), len(found))
        numbers.append(same[key])
    return tuple(found), _ints(numbers)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
