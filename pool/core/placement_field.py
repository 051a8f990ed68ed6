"""On which GPUs of a fleet an ask fits over a period, with how many pieces, why not elsewhere: in columns.

What `chosen`, `unfit` and `room` say of one GPU (placement_room), of all of them
at once. Which of them is taken is decided in placement_choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from uuid import UUID

import numpy as np

from pool.core import shares
from pool.core.asks import Ask
from pool.core.fleet import MEDIA, USES, Bools, Fleet, Ints, as_mask, micros
from pool.core.fleet_cards import Inventory, node_resources
from pool.core.fleet_window import Window, peaks
from pool.core.mig import Media, Profile, media_clash, most, takes_media
from pool.core.period import Period
from pool.core.placement_mode import wide
from pool.core.placement_room import Fit, GpuView, Use, chosen, packed, slots, unfit, use_for
from pool.core.shares import Portion
from pool.core.topology import Reach, reach

#: Grids up to this have a table over all their masks.
_TABLE_GRID = 12
_AUTO = USES.index(Use.AUTO)


@dataclass(frozen=True, slots=True)
class Sort:
    """GPUs that nothing tells apart but where they are and what is on them.

    `fit` is what the ask gets there, `why` what makes them out of the question, `gpu` one of them, bare.
    """

    places: Ints
    gpu: GpuView
    fit: Fit
    why: str | None


@dataclass(frozen=True, eq=False)
class Field:
    """One ask over one period on a fleet. `words` are what the codes in `why` mean (0: it has room).

    `kind` [places]: its number in `sorts`; `count` [places]: the pieces that fit there together;
    `offered`: those that do when nothing is booked.
    `reach`: which places may serve together, as nodes are now and when nothing is booked.
    """

    fleet: Fleet
    ask: Ask
    period: Period
    now: int
    window: Window
    sorts: tuple[Sort, ...]
    kind: Ints
    count: Ints
    offered: Ints
    why: Ints
    words: tuple[str, ...]
    reach: Reach
    reach_when_empty: Reach

    @cached_property
    def together(self) -> Ints:
        """[groups of `reach`] the pieces that each gives."""
        return self.reach.together(self.count)

    @property
    def free(self) -> int:
        """The most pieces that can be had together."""
        return int(self.together.max(initial=0))

    def sort_at(self, place: int) -> Sort:
        return self.sorts[int(self.kind[place])]

    @cached_property
    def fitting(self) -> list[tuple[Sort, Ints]]:
        """The sorts with room, and which of their places have it."""
        room = self.count > 0
        found = ((sort, sort.places[room[sort.places]]) for sort in self.sorts if sort.why is None)
        return [(sort, places) for sort, places in found if len(places)]


class _Why:
    """The words of a field as they are given, and the code of each."""

    def __init__(self, places: int) -> None:
        self.codes = np.zeros(places, dtype=np.int64)
        self._number = {"room": 0}

    def say(self, which: Ints | Bools | int, word: str) -> None:
        self.codes[which] = self._number.setdefault(word, len(self._number))

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self._number)


def field(
    fleet: Fleet,
    ask: Ask,
    period: Period,
    now: datetime,
    *,
    account: str | None = None,
    without: UUID | None = None,
    clean: bool = False,
    window: Window | None = None,
    avoid: Collection[str] = (),
    barred: Bools | None = None,
) -> Field:
    """Of this ask. `account` and from `without` to `barred`: see placement.candidates and Fleet.window.

    `window` is what Fleet.window gives for them, where that is known.
    """
    window = window or fleet.window(period, now, without=without, clean=clean)
    count, offered, kind = np.zeros((3, len(fleet.id)), dtype=np.int64)
    why = _Why(len(fleet.id))
    sorts = tuple(_sorts(fleet, ask, account, avoid))
    for n, sort in enumerate(sorts):
        kind[sort.places] = n
        if sort.why is not None:
            why.say(sort.places, sort.why)
            continue
        offered[sort.places] = _when_empty(sort)
        count[sort.places] = _counts(window, sort, account, why)
    if fleet.fact(has_auto):
        _modes(fleet.window(wide(period), now, without=without), ask, count, why)
    _nowhere(fleet, ask, count, offered, why)
    _kept_for_others(barred, count, why)
    left, in_all = _node_limits(window, ask)
    if left is not None:
        full = (left[fleet.node] < 1) & (count > 0)
        why.say(full, "node_full")
        count[full] = 0
    empty = reach(ask, fleet, offered, in_all, fleet.block_sizes)
    there, told = replace(empty, most=_least(empty.most, left)), (why.codes, why.words)
    return Field(fleet, ask, period, micros(now), window, sorts, kind, count, offered, *told, there, empty)


def free_again(
    here: Field, window: Window, places: Bools, *, near: Window | None = None, account: str | None = None
) -> int:
    """`Field.free` when on these places there is only what is in `window`; `near` it, on GPUs of any use.

    Where the ask takes cpu or memory of nodes, `places` have to be all.
    """
    count, why = np.where(places, 0, here.count), _Why(len(here.count))
    for sort in here.sorts:
        some = sort.places[places[sort.places]]
        if sort.why is None and len(some):
            count[some] = _counts(window, replace(sort, places=some), account, why)
    if near is not None:
        _modes(near, here.ask, count, why)
    count[here.offered == 0] = 0
    left, _ = _node_limits(window, here.ask)
    reach_now = replace(here.reach_when_empty, most=_least(here.reach_when_empty.most, left))
    return int(reach_now.together(count).max(initial=0))


def _sorts(fleet: Fleet, ask: Ask, account: str | None, avoid: Collection[str]) -> Iterator[Sort]:
    """All GPUs of the fleet by sort, with what the ask gets there."""
    for places in fleet.fact(sorts_of):
        gpu = fleet.bare(int(places[0]))
        fit = chosen(gpu, ask, account)
        why = "no_such_model" if gpu.model in avoid else unfit(gpu, ask, fit)
        yield Sort(places, gpu, fit, why)


def has_auto(known: Inventory) -> bool:
    """Whether some GPU is given for whatever is asked."""
    return bool((known.use == _AUTO).any())


def sorts_of(known: Inventory) -> list[Ints]:
    """The places by all that `chosen` and `unfit` look at."""
    if not len(known.id):
        return []
    kind = (known.model << 16 | known.geometry) << 6 | known.use << 3 | (known.sharing + 1)
    if has_auto(known):
        capable = np.array([bool(card.mig_capable) for card in known.cards], dtype=np.int64)
        kind = kind << 1 | capable
    # Neighbours are mostly alike, so only the first of each run is sorted.
    new = np.ones(len(kind), dtype=np.bool_)
    new[1:] = (kind[1:] != kind[:-1]) | (known.memory[1:] != known.memory[:-1])
    runs = np.flatnonzero(new)
    found, number = np.unique(np.stack([kind[runs], known.memory[runs]]), axis=1, return_inverse=True)
    sort = number.ravel()[np.cumsum(new) - 1].astype(np.int16)
    order = np.argsort(sort, kind="stable")
    return np.split(order, np.searchsorted(sort[order], np.arange(1, found.shape[1])))


# --- Counts -----------------------------------------------------------------------


def _counts(window: Window, sort: Sort, account: str | None, why: _Why) -> Ints:
    if isinstance(sort.fit, Profile):
        return _slices(window, sort, sort.fit, why)
    if isinstance(sort.fit, Portion):
        return _shares(window, sort, sort.fit, account, why)
    empty = window.empty[sort.places]
    why.say(sort.places[~empty], "busy")
    return empty.astype(np.int64)


def _slices(window: Window, sort: Sort, profile: Profile, why: _Why) -> Ints:
    """placement_room.room of slices, of many GPUs at once."""
    count = fits(profile, sort.gpu.grid, window.free[sort.places])
    why.say(sort.places[count == 0], "busy")
    media = window.media[sort.places]
    clash = (media & _clashing(profile)) != 0
    why.say(sort.places[clash], "media")
    count[clash] = 0
    if takes_media(profile):
        np.minimum(count, 1, out=count)
    _limit(window, sort.places, profile, count, why)
    return count


def _limit(window: Window, places: Ints, profile: Profile, count: Ints, why: _Why) -> None:
    """No more instances of the profile than a GPU may have at one time."""
    same = np.flatnonzero(window.of("profile") == profile.profile_id)
    number = np.bincount(window.at[same], minlength=len(window.fleet.id))
    near = places[(count > 0) & (number[places] + count > profile.max_instances)]
    if not len(near):
        return
    row = np.full(len(window.fleet.id), -1, dtype=np.int64)
    row[near] = np.arange(len(near))
    same = same[row[window.at[same]] >= 0]
    starts = np.maximum(window.starts[same], window.start)
    there = peaks(row[window.at[same]], starts, window.ends[same], np.ones(len(same), np.int64), len(near))
    left = np.full(len(window.fleet.id), profile.max_instances, dtype=np.int64)
    left[near] -= there
    left = np.maximum(left[places], 0)
    why.say(places[(left == 0) & (count > 0)], "limit")
    np.minimum(count, left, out=count)


def fits(profile: Profile, grid: int, free: Ints) -> Ints:
    """How many of the profile fit into each of these masks of free slices together."""
    places = slots(profile.size, profile.starts, grid)
    if grid <= _TABLE_GRID:
        return _table(profile.size, profile.starts, grid)[free]
    masks, back = np.unique(free, return_inverse=True)
    return np.array([packed(places, as_mask(mask)) for mask in masks], dtype=np.int64)[back]


@lru_cache(maxsize=1024)
def _table(size: int, starts: tuple[int, ...], grid: int) -> Ints:
    places = slots(size, starts, grid)
    return np.array([packed(places, free) for free in range(1 << grid)], dtype=np.int64)


@lru_cache(maxsize=256)
def _clashing(profile: Profile) -> int:
    """The codes of fleet.MEDIA, as bits, beside which the profile cannot be."""
    clash = (media for media in MEDIA if media is not None and media_clash(profile.media, media))
    return sum(1 << MEDIA.index(media) for media in clash)


def _shares(window: Window, sort: Sort, portion: Portion, account: str | None, why: _Why) -> Ints:
    """placement_room.room of shares, of many GPUs at once."""
    places, ledgers = sort.places, sort.gpu.ledgers
    memory, compute, tenants = (peak[places] for peak in window.share_peaks)
    room = {
        "memory_full": (ledgers.memory_mib - memory) // portion.memory_mib,
        "shares_full": ledgers.tenants - tenants,
    }
    if portion.compute_pct:
        room["compute_full"] = (ledgers.compute_pct - compute) // portion.compute_pct
    words = sorted(room)
    each = np.stack([room[word] for word in words])
    tightest = each.argmin(axis=0)
    count = np.maximum(each.min(axis=0), 0)
    for number, word in enumerate(words):
        why.say(places[(tightest == number) & (count == 0)], word)
    if ledgers.one_user and account is not None:
        others = (tenants > 0) & (window.account[places] != window.fleet.account_number(account))
        why.say(places[others], "other_user")
        count[others] = 0
    other = ~window.shares_only[places]
    why.say(places[other], "busy")
    count[other] = 0
    return np.asarray(count, dtype=np.int64)


def _when_empty(sort: Sort) -> int:
    """How many pieces a GPU of this sort holds when nothing is booked."""
    if isinstance(sort.fit, Portion):
        return shares.room_for(sort.fit, (), shares.ALWAYS, sort.gpu.ledgers)[0]
    if sort.fit is None:
        return 1
    places = slots(sort.fit.size, sort.fit.starts, sort.gpu.grid)
    return min(packed(places, (1 << sort.gpu.grid) - 1), most(sort.fit))


# --- Modes, pins, nodes ---------------------------------------------------------------


def _modes(near: Window, ask: Ask, count: Ints, why: _Why) -> None:
    """No room on GPUs of any use where something near needs the other mode (placement_mode.other_mode)."""
    other = (near.of("profile") >= 0) != (use_for(ask) is Use.MIG)
    places = np.unique(near.at[other & (near.of("blocker") == 0)])
    places = places[(near.fleet.use[places] == _AUTO) & (count[places] > 0)]
    why.say(places, "other_mode")
    count[places] = 0


def _nowhere(fleet: Fleet, ask: Ask, count: Ints, offered: Ints, why: _Why) -> None:
    """What is out of the question whatever is on it: unusable GPUs, and other nodes than the pinned one."""
    out = ~fleet.usable
    for place in np.flatnonzero(out & (offered > 0)).tolist():
        why.say(place, fleet.why(place) or "unusable")
    if ask.node is not None:
        elsewhere = np.array([node.name != ask.node for node in fleet.nodes], dtype=np.bool_)
        away = elsewhere[fleet.node] if len(fleet.nodes) else out
        why.say(away, "node")
        out = out | away
    count[out] = 0
    offered[out] = 0


def _kept_for_others(barred: Bools | None, count: Ints, why: _Why) -> None:
    """No room where others' guarantees need it."""
    if barred is not None:
        kept = barred & (count > 0)
        why.say(kept, "guaranteed_to_others")
        count[kept] = 0


def _node_limits(window: Window, ask: Ask) -> tuple[Ints | None, Ints | None]:
    """The pieces for which each node has cpu and memory: what is free of them, and in all. None: for any."""
    if not ask.node_cpu_milli and not ask.node_memory_mib:
        return None, None
    return _pieces(ask, *window.node_free), _pieces(ask, *window.fleet.fact(node_resources))


def _pieces(ask: Ask, cpu: Ints, ram: Ints) -> Ints:
    wanted = [(cpu, ask.node_cpu_milli), (ram, ask.node_memory_mib)]
    limits = [np.maximum(free, 0) // each for free, each in wanted if each]
    return np.asarray(np.minimum.reduce(limits), dtype=np.int64)


def _least(one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        return other if one is None else one
    return np.minimum(one, other)


def has_media_gone(window: Window, places: Ints) -> Bools:
    """Where a `+me.all` instance is: only profiles without media can follow, so nothing else is spoilt."""
    return np.asarray(window.media[places] & (1 << MEDIA.index(Media.ALL)) != 0)
