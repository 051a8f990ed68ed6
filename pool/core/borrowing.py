"""Which work fills a guarantee, and which is borrowed: row by row, at one instant or at all of a period.

A team's own work fills what its lines guarantee to it, less what the teams below it are guaranteed,
in the order of Uses.order: on the line of its model first, then on that for any. What is over is
borrowed. Seen by another team, the teams that it does not belong to stand together: what one of them
is over may lie in what the teams above it are guaranteed and the others there do not use, and
only the rest can be taken back by it. Amounts in milli, times in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pool.core.charter import Charter, Terms
from pool.core.fleet_rows import Bools, Ints
from pool.core.lending import on_path
from pool.core.stairs import sums

if TYPE_CHECKING:
    from pool.core.standing import Standing

#: So many uses at instants are looked at for one answer: about a tenth of a second.
MOST = 250_000


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of the standing's uses, each in [since, until) with the same amount borrowed of it."""

    which: Ints
    milli: Ints
    since: Ints
    until: Ints


def borrowed_rows(standing: Standing, instant: int, against: int | None = None) -> Ints:
    """What of each use is borrowed at that instant; `against`: as far as that team may take it back."""
    found = np.zeros(len(standing.uses), dtype=np.int64)
    spans = borrowed_spans(standing, instant, instant + 1, against)
    found[spans.which] = spans.milli
    return found


def borrowed_spans(
    standing: Standing,
    start: int,
    end: int,
    against: int | None = None,
    *,
    team: int | None = None,
    most: int = MOST,
) -> Spans:
    """What of each use is borrowed, and when, from `start` until before `end`; also of what is firm.

    `team`: only of this one's own work. Where more than `most` (use, instant) would have to be
    looked at, some instants are left out of the largest families; between two that are left only what
    is there all the time takes room, so that what is told is never more than what is borrowed.
    """
    families = _Families(standing, against, start, end)
    which = standing.uses.within(start, end)
    if team is not None:
        which = which[standing.uses.team[which] == team]
    which = which[families.may_be_over(which)]
    which = standing.uses.order(which)
    none = ~families.has[families.family[families.node[which]]]
    moments = _moments(families, which[~none], start, end, most)
    found = _spans(moments, _rest(families, moments), end)
    # Where nothing is guaranteed to anybody, all is borrowed all the time.
    which = np.concatenate((which[none], found.which))
    milli = np.concatenate((standing.uses.milli[which[: int(none.sum())]], found.milli))
    since = np.concatenate((np.full(int(none.sum()), start), found.since))
    until = np.concatenate((np.full(int(none.sum()), end), found.until))
    uses = standing.uses
    return Spans(which, milli, np.maximum(since, uses.since[which]), np.minimum(until, uses.until[which]))


class _Families:
    """Who stands together against a team: `family` [node] is a number.

    A node is a row of the charter's tables. What is used by a team without lines stands with the
    next team above it that has some, and alone where there is none.
    """

    def __init__(self, standing: Standing, against: int | None, start: int, end: int) -> None:
        self.standing = standing
        self.charter: Charter = standing.charter
        edges = (start, *self.charter.edges_in(start, end).tolist())
        self._terms = [self.charter.terms(one) for one in edges]
        number = len(self.charter.teams)
        self.family: Ints = np.arange(number + 1, dtype=np.int64)
        #: [node]: where something is guaranteed to it at some time, so that others below it may have it.
        guaranteed: Bools = np.any([one.guaranteed.any(axis=1) for one in self._terms], axis=0)
        self.gives: Bools = guaranteed & ~on_path(self.charter, against) & (against is not None)
        joined = self.gives.copy()
        for rows in reversed(self.charter.levels):
            above = self.charter.above[rows]
            inside = (above >= 0) & joined[above]
            inside &= ~on_path(self.charter, against)[rows]
            joined[rows] |= inside
            self.family[rows[inside]] = self.family[above[inside]]
        #: [family]: whether anything is guaranteed to one of its teams at some time.
        self.has: Bools = np.zeros(number + 1, dtype=np.bool_)
        self.has[self.family[:number][guaranteed]] = True

    @cached_property
    def node(self) -> Ints:
        """[use]: the row of its team; the last for what has none."""
        return np.where(self.standing.nodes >= 0, self.standing.nodes, len(self.charter.teams))

    def may_be_over(self, which: Ints) -> Bools:
        """Of these uses, those whose family may have more at some instant than is guaranteed to its teams."""
        uses, charter = self.standing.uses, self.charter
        number, teams = len(charter.models), len(charter.teams)
        own = np.min([one.own for one in self._terms], axis=0)
        own = np.vstack((own, np.zeros((1, number + 1), dtype=np.int64)))
        node = self.node[which]
        direct = self.standing.direct[which]
        used = sums(node * number + uses.model[which], uses.milli[which], (teams + 1) * number)
        over = np.maximum(0, used.reshape(teams + 1, number) - own[:, :number]).sum(axis=1) > own[:, number]
        over[node[~direct]] = True
        wanted = np.zeros(teams + 1, dtype=np.bool_)
        wanted[self.family[over]] = True
        return wanted[self.family[node]]


@dataclass(frozen=True, eq=False, slots=True)
class _Moments:
    """Every use at every instant at which its family changes, in the order in which guarantees are filled.

    `moment` numbers (family, instant): it is at `time[moment]`, in `stretch[moment]` between two
    edges of the grants. `which`, `node`, `model` and `milli` are of the use; `whole`: it is there
    until the next moment.
    """

    time: Ints
    family: Ints
    stretch: Ints
    moment: Ints
    whole: Bools
    which: Ints
    node: Ints
    direct: Bools
    model: Ints
    milli: Ints


def _moments(families: _Families, which: Ints, start: int, end: int, most: int) -> _Moments:
    uses, charter = families.standing.uses, families.charter
    family = families.family[families.node[which]]
    since, until = np.maximum(uses.since[which], start), np.minimum(uses.until[which], end)
    inner = until < end
    edges = np.append(charter.edges_in(start, end), start)
    every = _sorted(np.concatenate((since, until[inner], edges)))
    # A family and an instant in one number; the last of a family is its end.
    width = len(every) + 1
    comes = family * width + np.searchsorted(every, since)
    goes = family * width + np.where(inner, np.searchsorted(every, until), len(every))
    there = np.flatnonzero(np.bincount(family)) * width
    fixed = (there[:, None] + np.searchsorted(every, edges)).ravel()
    known = _sorted(np.concatenate((comes, goes[inner], fixed)))
    stay = np.searchsorted(known, goes) - np.searchsorted(known, comes)
    if int(stay.sum()) > most:
        known = _sorted(np.concatenate((_thinned(known, width, family, stay, most), fixed)))
    # Between two that are left out something may begin or end: there it takes no room.
    first, last = np.searchsorted(known, comes, side="right") - 1, np.searchsorted(known, goes)
    full = np.searchsorted(known, comes), np.searchsorted(known, goes, side="right") - inner
    time = every[known % width]
    use = np.repeat(np.arange(len(which)), last - first)
    before = np.cumsum(last - first) - (last - first)
    moment, its = np.arange(len(use)) + (first - before)[use], which[use]
    return _Moments(
        time=time,
        family=known // width,
        stretch=np.searchsorted(charter.edges, time, side="right"),
        moment=moment,
        whole=(moment >= full[0][use]) & (moment < full[1][use]),
        which=its,
        node=families.node[its],
        direct=families.standing.direct[its],
        model=uses.model[its],
        milli=uses.milli[its],
    )


def _thinned(known: Ints, width: int, family: Ints, stay: Ints, most: int) -> Ints:
    """Only some of the moments of the families with the most, so that `most` are left in all."""
    pairs = sums(family, stay, int(family.max(initial=0)) + 1)
    order = np.sort(pairs)
    # As much for each as would do if those after it had no more.
    shares = (most - np.append(0, np.cumsum(order)[:-1])) // np.arange(len(order), 0, -1)
    share = max(1, int(shares[np.argmax(order > shares)]))
    step = -(-pairs // share)[known // width]
    within = np.arange(len(known)) - np.searchsorted(known, known // width * width)
    kept: Ints = known[within % np.maximum(1, step) == 0]
    return kept


def _sorted(values: Ints) -> Ints:
    """Each once, in order."""
    values = np.sort(values)
    each: Ints = values[np.append(True, np.diff(values) != 0)[: len(values)]]
    return each


class _Tables:
    """The charter's tables for the stretches that are looked at, one upon the other."""

    def __init__(self, charter: Charter, moments: _Moments) -> None:
        stretches = np.flatnonzero(np.bincount(moments.stretch)) if len(moments.stretch) else np.zeros(0, int)
        self._at = np.zeros(int(stretches.max(initial=0)) + 1, dtype=np.int64)
        self._at[stretches] = np.arange(len(stretches))
        firsts = [int(moments.time[np.flatnonzero(moments.stretch == one)[0]]) for one in stretches.tolist()]
        self._terms: list[Terms] = [charter.terms(one) for one in firsts]
        empty = np.zeros((1, len(charter.models) + 1), dtype=np.int64)
        self.own = np.array([np.vstack((one.own, empty)) for one in self._terms])
        self.guaranteed = np.array([one.guaranteed for one in self._terms])

    def at(self, stretch: Ints) -> Ints:
        """The number of its table."""
        return self._at[stretch]


def _rest(families: _Families, moments: _Moments) -> Ints:
    """What of each use at each moment is in nobody's guarantee, as the family stands together."""
    if not len(moments.moment):
        return moments.milli
    number, nodes = len(families.charter.models), len(families.charter.teams) + 1
    tables = _Tables(families.charter, moments)
    table = tables.at(moments.stretch[moments.moment])
    group = moments.moment * nodes + moments.node
    rest = moments.milli.copy()
    for column in ("model", "any"):
        # What a team without lines has is in nobody's own guarantee.
        some = np.flatnonzero(moments.direct & (rest > 0))
        its = moments.model[some] if column == "model" else np.full(len(some), number)
        key = group[some] * number + its if column == "model" else group[some]
        own = tables.own[table[some], moments.node[some], its]
        rest[some] -= _taken(key, rest[some], own, moments.whole[some])
    for node in _parents(families, moments, rest):
        _within(families, moments, tables, node, rest)
    return rest


def _parents(families: _Families, moments: _Moments, rest: Ints) -> list[int]:
    """The nodes, from below, in whose guarantee something that is over below them may yet lie."""
    above, gives = families.charter.above, families.gives
    others = set(above[above >= 0].tolist()) | set(moments.node[~moments.direct].tolist())
    over: set[int] = set()
    for node in np.flatnonzero(np.bincount(moments.node[rest > 0])).tolist():
        while 0 <= node < len(above) and node not in over:
            over.add(node)
            node = int(above[node])
    rows = [node for rows in families.charter.levels for node in rows.tolist()]
    return [node for node in rows if node in over and node in others and gives[node]]


def _within(families: _Families, moments: _Moments, tables: _Tables, node: int, rest: Ints) -> None:
    """Takes off `rest` what fits into the guarantee of this team beside all that is in it already."""
    number = len(families.charter.models)
    below = np.flatnonzero(_subtree(families.charter, node)[moments.node])
    moment, model = moments.moment[below], moments.model[below]
    inside = (moments.milli[below] - rest[below]) * moments.whole[below]
    used = sums(moment * number + model, inside, len(moments.time) * number).reshape(-1, number)
    guaranteed = tables.guaranteed[tables.at(moments.stretch), node]
    left = np.maximum(0, guaranteed[:, :number] - used)
    any_left = np.maximum(0, guaranteed[:, number] - np.maximum(0, used - guaranteed[:, :number]).sum(axis=1))
    over = below[rest[below] > 0]
    moment, model = moments.moment[over], moments.model[over]
    rest[over] -= _taken(moment * number + model, rest[over], left[moment, model], moments.whole[over])
    over = over[rest[over] > 0]
    moment = moments.moment[over]
    rest[over] -= _taken(moment, rest[over], any_left[moment], moments.whole[over])


def _subtree(charter: Charter, node: int) -> Bools:
    """[node]: whether it is this one or below it; the last, which has no team, is not."""
    found = np.zeros(len(charter.teams) + 1, dtype=np.bool_)
    found[node] = True
    for rows in reversed(charter.levels):
        above = charter.above[rows]
        found[rows[(above >= 0) & found[above]]] = True
    return found


def _taken(key: Ints, amount: Ints, room: Ints, whole: Bools) -> Ints:
    """What each takes of a room that all with its key share, in turn; only what is whole uses it up."""
    if int(key.max(initial=0)) < 2**62 // max(len(key), 1):
        # Numbers that are all different sort several times as fast as by a stable sort.
        order = np.argsort(key * len(key) + np.arange(len(key)))
    else:
        order = np.argsort(key, kind="stable")
    key, amount = key[order], amount[order]
    counted = amount * whole[order]
    before = np.cumsum(counted) - counted
    fresh = np.diff(key, prepend=-1) != 0
    before -= before[fresh][np.cumsum(fresh) - 1]
    taken = np.empty(len(order), dtype=np.int64)
    taken[order] = np.clip(room[order] - before, 0, amount)
    return taken


def _spans(moments: _Moments, rest: Ints, end: int) -> Spans:
    some = np.flatnonzero(rest)
    # What of the rows lies at neighbouring moments with the same amount is one.
    order = some[np.lexsort((moments.moment[some], moments.which[some]))]
    which, moment, milli = moments.which[order], moments.moment[order], rest[order]
    new = (np.diff(which) != 0) | (np.diff(moment) != 1) | (np.diff(milli) != 0)
    fresh, last = np.append(True, new)[: len(order)], np.append(new, True)[: len(order)]
    until = np.append(moments.time[1:], end)
    until[np.append(np.diff(moments.family) != 0, False)[: len(moments.time)]] = end
    return Spans(which[fresh], milli[fresh], moments.time[moment[fresh]], until[moment[last]])
