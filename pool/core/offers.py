"""Which starts are worth offering for an ask: the soonest, the least fragmenting, the longest extendable.

Starts are found among the openings of the whole pool at once; what a booking would
get at each is asked of the same placement that books, so that every offer can
be booked as long as nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

import numpy as np

from pool.core.admission import Borrowed
from pool.core.fleet import NEVER, Ints, instant, micros
from pool.core.openings import SIGHT, Openings, Spans
from pool.core.period import Period
from pool.core.placement import Pick

MOST = 5
#: Starts that are looked at before it is given up, where openings promise what exact placement refuses.
LOOKS = 60
#: Starts that are compared for what they leave behind: fewer in a large pool, where each look takes long.
FEWEST_COMPARED, MOST_COMPARED = 3, 64
_LOOKED_AT = 30_000
_MINUTE = 60_000_000
_SIGHT = SIGHT // timedelta(microseconds=1)


class Good(StrEnum):
    """What an offer is good for; stable names, they appear in API answers."""

    SOONEST = "soonest"
    LEAST_FRAGMENTING = "least_fragmenting"
    LONGEST_EXTENDABLE = "longest_extendable"


@dataclass(frozen=True, slots=True)
class Placed:
    """What a booking would get; `loss` is what that costs the others, in thousandths of a GPU.

    What of it is `borrowed` may be taken back.
    """

    picks: tuple[Pick, ...]
    loss: int = 0
    borrowed: Borrowed = ()


#: What a booking for this period would get, wished free until then; None when it would be refused.
Place = Callable[[Period, datetime | None], Placed | None]
#: Whether these picks would be free over all of this period.
Free = Callable[[Sequence[Pick], Period], bool]


@dataclass(frozen=True, slots=True)
class Offer:
    """A start. `free_until`: what its booking has to wish, to get these picks (None: nothing).

    `extendable_until` is until when the picks stay free; None: no end in sight.
    `idle`: how much time it leaves free beside itself that is too short for another like it.
    """

    period: Period
    picks: tuple[Pick, ...]
    good_for: tuple[Good, ...]
    free_until: datetime | None
    extendable_until: datetime | None
    loss: int
    idle: timedelta
    borrowed: Borrowed = ()


@dataclass(frozen=True, slots=True)
class Search:
    """For `length`, all of it within `window`; `closed` are times at which nothing may be booked."""

    openings: Openings
    window: Period
    length: timedelta
    place: Place
    free: Free
    closed: tuple[Period, ...] = ()


@dataclass(frozen=True, slots=True)
class _Look:
    """One start that was looked at, in microseconds, and what was found there."""

    start: int
    until: int | None
    placed: Placed
    idle: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.placed.loss, self.idle, self.start


def offers(search: Search, most: int = MOST) -> list[Offer]:
    """Up to `most` good starts, the soonest first, none twice; [] only when there is none in the window.

    Exact: the soonest is the first instant at which a booking would be granted; no start
    and no place would stay free for longer than the longest extendable (to the minute for
    several pieces). The least fragmenting is the best of those whose openings it fills best.
    """
    looker = _Looker(search)
    soonest = looker.soonest()
    if soonest is None:
        return []
    compared = sorted([soonest, *looker.tightest(soonest.start)], key=lambda look: look.rank)
    longest = looker.longest() or soonest
    named = [(longest, Good.LONGEST_EXTENDABLE), (soonest, Good.SOONEST)]
    named.append((compared[0], Good.LEAST_FRAGMENTING))
    chosen: dict[int, tuple[_Look, list[Good]]] = {}
    for look, good in named:
        chosen.setdefault(look.start, (look, []))[1].append(good)
    for look in compared:
        if len(chosen) >= most:
            break
        if looker.is_apart(look.start, chosen):
            chosen[look.start] = (look, [])
    return [looker.offer(look, goods) for _, (look, goods) in sorted(chosen.items())[:most]]


def soonest(search: Search) -> datetime | None:
    """The first instant of the window at which a booking would be granted; None when there is none."""
    found = _Looker(search).soonest()
    return None if found is None else instant(found.start)


class _Looker:
    """Looks at starts, each at most once."""

    def __init__(self, search: Search) -> None:
        assert search.window.end is not None
        self.search = search
        self.openings = search.openings
        self.length = micros(search.window.start + search.length) - micros(search.window.start)
        self.since = micros(search.window.start)
        self.latest = micros(search.window.end) - self.length
        self.closed = [(micros(period.start), micros(period.end)) for period in search.closed]
        self.spans = self._spans(self.length)
        self._seen: dict[tuple[int, int | None], _Look | None] = {}

    def _spans(self, length: int) -> Spans:
        return self.openings.starts(length, self.latest).without(self.closed, self.length)

    def look(self, start: int, until: int | None = None) -> _Look | None:
        """What a booking from `start` would get, wished free until then."""
        if (start, until) not in self._seen:
            begin, end = instant(start), instant(start + self.length)
            assert begin is not None
            wish = None if until is None else instant(min(until, start + _SIGHT))
            placed = self.search.place(Period(begin, end), wish)
            found = None if placed is None else _Look(start, until, placed, self._idle(start, placed))
            self._seen[start, until] = found
        return self._seen[start, until]

    def soonest(self) -> _Look | None:
        return self._first(0)

    def _first(self, more: int) -> _Look | None:
        """The first start that is granted with places that stay free for so much longer.

        Whatever can start later can start when the last thing in its way ends, too.
        """
        spans = self._spans(self.length + more) if more else self.spans
        return next((look for look in self._each(spans, more) if look is not None), None)

    def _each(self, spans: Spans, more: int) -> Iterator[_Look | None]:
        """The starts of these spans at which room may come free, in order; mostly the first will do."""
        if not len(spans):
            return
        until = self.length + more if more else None
        first = int(spans.first[0])
        yield self.look(first, None if until is None else first + until)
        ends = np.array([end for _, end in self.closed], dtype=np.int64)
        instants = np.sort(np.concatenate(([self.since], self.openings.changes, ends)))
        instants = spans.holds(instants[(instants > first) & (instants <= self.latest)])
        for start in islice(dict.fromkeys(instants.tolist()), LOOKS):
            yield self.look(start, None if until is None else start + until)

    def _fitting(self) -> tuple[Ints, Ints, Ints]:
        """Of the openings that are long enough: begin, until, and the first start that is not closed."""
        begin, until = self.openings.begin, self.openings.until
        fits = (until - begin >= self.length) & (begin <= self.latest)
        begin, until = begin[fits], until[fits]
        first = begin if self.openings.count == 1 and not self.closed else self.spans.from_(begin)
        return begin, until, first

    def tightest(self, known: int) -> list[_Look]:
        """The starts at which an opening is filled best, at its beginning or at its end; not the known one.

        After the best of all some of those that lie apart from one another.
        """
        begin, until, first = self._fitting()
        last = np.where(until == NEVER, NEVER, until - self.length)
        both = np.concatenate((first, last))
        begins, untils = np.concatenate((begin, begin)), np.concatenate((until, until))
        fits = (both >= begins) & (both <= self.latest) & (untils - both >= self.length) & (both != known)
        both, begins, untils = both[fits], begins[fits], untils[fits]
        idle = self._short(both - begins) + self._short(untils - both - self.length)
        best = both[_least(idle, both, 64 * MOST_COMPARED)]
        allowed = set(self.spans.holds(np.sort(best)).tolist())
        starts = [start for start in dict.fromkeys(best.tolist()) if start in allowed]
        compared = starts[: self._compared]
        for start in starts[self._compared :]:
            if len(compared) >= self._compared + MOST - 2:
                break
            if self.is_apart(start, [known, *compared]):
                compared.append(start)
        looks = [self.look(start) for start in compared]
        return [look for look in looks if look is not None]

    def is_apart(self, start: int, others: Iterable[int]) -> bool:
        """Whether it is half of the length or more from each of these starts."""
        return all(abs(start - other) * 2 >= self.length for other in others)

    @property
    def _compared(self) -> int:
        number = _LOOKED_AT // max(1, len(self.openings.fleet.id))
        return min(max(number, FEWEST_COMPARED), MOST_COMPARED)

    def _short(self, gaps: Ints) -> Ints:
        """What of these gaps is too short for another of the same length."""
        return np.where(gaps < self.length, gaps, 0)

    def longest(self) -> _Look | None:
        """The start and place that stay free for the longest time after the end."""
        found = self._stays() if self.openings.count == 1 else self._stays_together()
        return next((look for look in found if look is not None), None)

    def _stays(self) -> Iterator[_Look | None]:
        """One piece: the longest opening that is left."""
        _, until, start = self._fitting()
        fits = (start <= self.latest) & (start <= until - self.length)
        start, until = start[fits], until[fits]
        shortness = np.where(until == NEVER, 0, NEVER - (until - start))
        best = _least(shortness, start, 16 * LOOKS)
        pairs = dict.fromkeys(zip(start[best].tolist(), until[best].tolist(), strict=True))
        for at, end in islice(pairs, LOOKS):
            yield self.look(at, end)

    def _stays_together(self) -> Iterator[_Look | None]:
        """Several pieces: the longest time after the end, by halving."""
        yield self._first(_SIGHT)
        # By openings alone, which is quick, and only where those promise too much exactly.
        most = self._halve(_SIGHT // _MINUTE, lambda more: len(self._spans(self.length + more)) > 0)
        yield self._first(most)
        yield self._first(self._halve(most // _MINUTE, lambda more: self._first(more) is not None))

    def _halve(self, minutes: int, holds: Callable[[int], bool]) -> int:
        """The most time in whole minutes, below so many, for which it holds; 0 when for none."""
        low, high = 0, minutes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle * _MINUTE) else (low, middle)
        return low * _MINUTE

    # --- What is told of a start --------------------------------------------------

    def _around(self, start: int, placed: Placed) -> list[tuple[int, int]]:
        """The opening of each pick."""
        places = self.openings.fleet.places
        return [
            self.openings.around(places[pick.gpu_id], ((1 << pick.size) - 1) << pick.start, start)
            for pick in placed.picks
        ]

    def _idle(self, start: int, placed: Placed) -> int:
        around = np.array(self._around(start, placed), dtype=np.int64)
        gaps = np.concatenate((start - around[:, 0], around[:, 1] - start - self.length))
        return int(self._short(np.maximum(gaps, 0)).sum())

    def offer(self, look: _Look, goods: Sequence[Good]) -> Offer:
        begin, end = instant(look.start), instant(look.start + self.length)
        assert begin is not None
        assert end is not None
        period = Period(begin, end)
        until = min(until for _, until in self._around(look.start, look.placed))
        far = instant(min(until, look.start + self.length + _SIGHT))
        assert far is not None
        if far <= end or not self.search.free(look.placed.picks, Period(begin, far)):
            until = look.start + self.length
        return Offer(
            period=period,
            picks=look.placed.picks,
            good_for=tuple(good for good in Good if good in goods),
            free_until=None if look.until is None else instant(min(look.until, look.start + _SIGHT)),
            extendable_until=instant(until),
            loss=look.placed.loss,
            idle=timedelta(microseconds=look.idle),
            borrowed=look.placed.borrowed,
        )


def _least(first: Ints, then: Ints, number: int) -> Ints:
    """Where the `number` least are, by the first column and then by the second, in order."""
    which = np.arange(len(first))
    if number < len(first):
        bound = np.partition(first, number)[number]
        below, equal = np.flatnonzero(first < bound), np.flatnonzero(first == bound)
        left = number - len(below)
        if left < len(equal):
            equal = equal[np.argpartition(then[equal], left)[:left]]
        which = np.concatenate((below, equal))
    return which[np.lexsort((then[which], first[which]))]
