"""Where GPUs stand: nodes, NVLink domains, the tree of blocks; which of them may serve one ask together.

Columns over the places of a fleet. The rules for blocks and segments are those of
Slurm's topology/block, counted in pieces of the ask: an ask that fits one block
never crosses, a larger one takes the smallest aggregate that holds it, and with
segments each lies in one block, wherever the others are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from pool.core.asks import Ask, GpuAsk
from pool.core.fleet_cards import Bools, Card, Ints, Inventory

#: What nvidia-imex-ctl says where memory of other nodes can be used.
READY = "READY"
#: Beyond so many choices among the GPUs of a node they are taken one by one.
_MOST_CHOICES = 2000


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Which places may serve one ask together.

    Places of one `key` may (-1: none may). With `segment`, what is in one `cell`
    serves whole segments of so many pieces only. `most` is how many pieces a node
    gives at all, [nodes]; None: no limit. `node` is the node of each place.
    """

    key: Ints
    node: Ints
    most: Ints | None = None
    cell: Ints | None = None
    segment: int = 1

    def together(self, count: Ints) -> Ints:
        """[keys] how many pieces each group gives, where each place alone gives `count`."""
        keys = int(self.key.max(initial=-1)) + 1
        here = np.flatnonzero((self.key >= 0) & (count > 0))
        key, pieces = self.key[here], count[here]
        if self.most is None and self.cell is None:
            return _summed(key, pieces, keys)
        cell = np.zeros(len(here), dtype=np.int64) if self.cell is None else self.cell[here]
        if self.most is not None:
            (key, cell, node), pieces = _by(pieces, key, cell, self.node[here])
            pieces = np.minimum(pieces, self.most[node])
        if self.cell is not None:
            (key, _), pieces = _by(pieces, key, cell)
            pieces = pieces // self.segment * self.segment
        return _summed(key, pieces, keys)


def _summed(group: Ints, values: Ints, groups: int) -> Ints:
    return np.bincount(group, values, groups).astype(np.int64)


def _by(values: Ints, *columns: Ints) -> tuple[tuple[Ints, ...], Ints]:
    """The different rows of the columns, and the sum of the values of each."""
    order = np.lexsort(columns[::-1])
    sorted_columns = [column[order] for column in columns]
    new = np.zeros(len(order), dtype=np.bool_)
    for column in sorted_columns:
        new[1:] |= column[1:] != column[:-1]
    if not len(order):
        return columns, values
    new[0] = True
    first = np.flatnonzero(new)
    return tuple(column[first] for column in sorted_columns), np.add.reduceat(values[order], first)


def reach(ask: Ask, known: Inventory, offered: Ints, most: Ints | None, sizes: Sequence[int] = ()) -> Reach:
    """Which places may serve `ask` together.

    `offered` [places]: the pieces that each holds when nothing is booked, by which it is
    judged what fits a block. `most` [nodes]: the pieces for which a node has cpu and
    memory. `sizes`: nodes of an aggregate of each level, smallest first (Pool.block_sizes).
    """
    if ask.spread is not None:
        most = np.ones(len(known.nodes), dtype=np.int64) if most is None else np.minimum(most, 1)
    if ask.same_node:
        return Reach(known.node, known.node, most)
    if not isinstance(ask, GpuAsk):
        return Reach(np.zeros_like(known.node), known.node, most)
    key = _domains(known) if ask.same_nvlink_domain else np.zeros_like(known.node)
    blocks = blocks_of(known)
    if blocks is not None and ask.segment is not None:
        segment = min(ask.segment, ask.count)
        return Reach(key, known.node, most, blocks, segment)
    if blocks is not None and ask.count > 1 and not ask.same_nvlink_domain:
        for level in levels(known, blocks, sizes):
            within = Reach(level, known.node, most)
            if within.together(offered).max(initial=0) >= ask.count:
                return within
    return Reach(key, known.node, most)


def blocks_of(known: Inventory) -> Ints | None:
    """The block of each place, in the order of their names; None where the pool has no blocks.

    A node of which nobody has said where it stands is a block of its own.
    """
    named = [number for number, name in enumerate(known.blocks) if name]
    if not named:
        return None
    rank = np.full(len(known.blocks), -1, dtype=np.int64)
    rank[named] = np.arange(len(named))
    block = rank[known.block]
    return np.where(block >= 0, block, len(named) + known.node)


def levels(known: Inventory, blocks: Ints, sizes: Sequence[int]) -> list[Ints]:
    """The aggregates of each place, level by level from the blocks on. Blocks go together in their order."""
    named = sum(1 for name in known.blocks if name)
    found = [blocks]
    base = sizes[0] if sizes else 0
    for size in sizes[1:]:
        if base and size % base == 0:
            found.append(np.where(blocks < named, blocks // (size // base), blocks))
    return found


def _domains(known: Inventory) -> Ints:
    """The NVLink domain of each place; a node without IMEX reaches no other, so it is one of its own."""
    ready = np.array([node.imex == READY for node in known.nodes], dtype=np.bool_)
    alone = len(known.domains) + known.node
    return np.where(ready[known.node], known.domain, alone) if len(known.nodes) else known.domain


def without_imex(known: Inventory) -> Bools:
    """The places in an NVLink domain of several nodes whose own node cannot be used across nodes."""
    nodes_of: dict[int, set[int]] = {}
    for domain, node in set(zip(known.domain.tolist(), known.node.tolist(), strict=True)):
        nodes_of.setdefault(domain, set()).add(node)
    several = np.array([len(nodes_of.get(n, ())) > 1 for n in range(len(known.domains))], dtype=np.bool_)
    ready = np.array([node.imex == READY for node in known.nodes], dtype=np.bool_)
    if not len(known.nodes):
        return several
    return np.asarray(several[known.domain] & ~ready[known.node])


def channel(taken: Collection[int]) -> int:
    """The IMEX channel of a reservation on several nodes: the lowest that no other there has meanwhile."""
    return next(number for number in range(len(taken) + 1) if number not in set(taken))


# --- Links ------------------------------------------------------------------------


def linked(cards: Sequence[Card], wanted: int) -> list[int]:
    """Which `wanted` of these free GPUs of one node are taken, as numbers in `cards`.

    Those with the most NVLinks among themselves; of equal ones those that leave the most
    links among the rest (so that one alone is the worst-linked), then close to one
    CPU, then the first.
    """
    if wanted >= len(cards):
        return list(range(len(cards)))
    links = _links(cards)
    if not links.any() and len({card.numa for card in cards}) == 1:
        return list(range(wanted))
    if comb(len(cards), wanted) > _MOST_CHOICES:
        return _one_by_one(links, wanted)
    every = combinations(range(len(cards)), wanted)
    return list(max(every, key=lambda some: _linkage(cards, links, tuple(some))))


def _linkage(cards: Sequence[Card], links: Ints, some: tuple[int, ...]) -> tuple[int, int, int, list[int]]:
    rest = [n for n in range(len(cards)) if n not in some]
    numas = len({cards[n].numa for n in some})
    inside, outside = (int(links[np.ix_(part, part)].sum()) for part in (list(some), rest))
    return inside, outside, -numas, [-n for n in some]


def _one_by_one(links: Ints, wanted: int) -> list[int]:
    """Always the one with the most links to those that are taken; for nodes with very many GPUs."""
    taken = [int(links.sum(axis=1).argmin() if wanted == 1 else links.sum(axis=1).argmax())]
    while len(taken) < wanted:
        more = links[:, taken].sum(axis=1)
        more[taken] = -1
        taken.append(int(more.argmax()))
    return sorted(taken)


def _links(cards: Sequence[Card]) -> Ints:
    """[cards, cards] NVLinks between each two; through switches as many as the one that has fewer."""
    number = {card.uuid: n for n, card in enumerate(cards)}
    links = np.zeros((len(cards), len(cards)), dtype=np.int64)
    switched = np.zeros(len(cards), dtype=np.int64)
    for n, card in enumerate(cards):
        for peer, count in card.links:
            if not peer:
                switched[n] += count
            elif peer in number:
                links[n, number[peer]] += count
    links += np.minimum.outer(switched, switched)
    np.fill_diagonal(links, 0)
    return links
