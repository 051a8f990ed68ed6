"""Who may be taken back from at an instant: the stays of which something is borrowed, as reclaim wants them.

Back-to-back bookings of one owner in one place are one stay. What is borrowed only later than it
begins (or than the instant) is none: its room was its own when it was given. Such stays (`inside`)
are asked for apart: of them only those in a wrong place may go, when nothing else helps (astray).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import numpy as np

from pool.core.borrowing import borrowed_spans
from pool.core.fleet import Fleet
from pool.core.fleet_rows import Bools, Ints, instant, micros
from pool.core.period import Period
from pool.core.reclaim import Borrower
from pool.core.standing import Standing


def borrowers(
    fleet: Fleet,
    standing: Standing,
    team: int,
    period: Period,
    now: datetime,
    spared: Collection[UUID] = (),
) -> list[Borrower]:
    """Whom `team` may take room back from that it wants over `period`; `spared` are left out.

    `fleet` and `standing` are of the whole pool. Never what is firm, and never what is within the
    guarantee of a team that it does not belong to.
    """
    milli = _borrowed(standing, period, team)
    if not milli.any():
        return []
    work = _Work(fleet, standing, milli, milli > 0, micros(now))
    return [work.borrower(links) for links in work.stays(set(spared))]


def inside(
    fleet: Fleet,
    standing: Standing,
    team: int,
    period: Period,
    now: datetime,
    spared: Collection[UUID] = (),
) -> list[Borrower]:
    """Who of other teams is there in that time, could be taken back, and is wholly within its guarantee."""
    uses = standing.uses
    milli = _borrowed(standing, period, None)
    there = np.zeros(len(uses), dtype=np.bool_)
    there[uses.within(micros(period.start), micros(period.end))] = True
    there &= ~uses.firm & (uses.team != team)
    over = np.flatnonzero(milli)
    # A gang across the line is among the borrowers.
    some = _codes(uses.reservation)
    there &= ~np.isin(some, some[over])
    if not there.any():
        return []
    work = _Work(fleet, standing, milli, there, micros(now))
    return [work.borrower(links) for links in work.stays(set(spared))]


def _borrowed(standing: Standing, period: Period, against: int | None) -> Ints:
    """[use] what of it is borrowed when it begins, or at the first instant; 0 of what is firm."""
    uses, start = standing.uses, micros(period.start)
    spans = borrowed_spans(standing, start, micros(period.end), against)
    first = np.maximum(start, uses.since[spans.which])
    there = (spans.since <= first) & (spans.until > first) & (spans.milli > 0) & ~uses.firm[spans.which]
    milli = np.zeros(len(uses), dtype=np.int64)
    milli[spans.which[there]] = spans.milli[there]
    return milli


class _Work:
    """Reservations by number: `code` of each use, `ids` of those that are `meant`.

    `milli` is what of each use is borrowed, `some` a use of each reservation.
    """

    def __init__(self, fleet: Fleet, standing: Standing, milli: Ints, meant: Bools, now: int) -> None:
        self.uses, self.on, self.now = standing.uses, fleet.on, now
        self.meant, self.code = np.flatnonzero(meant), _codes(standing.uses.reservation)
        number = int(self.code.max()) + 1
        self.borrowed = np.bincount(self.code, milli, number).astype(np.int64)
        self.charge = np.bincount(self.code, self.uses.milli, number).astype(np.int64)
        self.some = np.zeros(number, dtype=np.int64)
        self.some[self.code] = np.arange(len(self.code))
        those = np.flatnonzero(np.bincount(self.code[self.meant], minlength=number))
        its = self.some[those]
        raw, numbers = self.uses.reservation[its].astype(">i8").tobytes(), those.tolist()
        self.ids = {n: UUID(bytes=raw[16 * at : 16 * at + 16]) for at, n in enumerate(numbers)}
        self.facts = self._facts(numbers, its)
        self.over = _over_share(standing, milli)

    def _facts(self, numbers: Sequence[int], its: Ints) -> dict[int, tuple[int, ...]]:
        """Of each: team, since when and of when it is, priority, what of it is borrowed, and all of it."""
        uses = self.uses
        columns = (
            uses.team[its],
            uses.since[its],
            uses.created[its],
            self.on.field("priority", uses.row[its]),
            self.borrowed[numbers],
            self.charge[numbers],
        )
        return dict(zip(numbers, zip(*(one.tolist() for one in columns), strict=True), strict=True))

    def stays(self, spared: Collection[UUID]) -> list[list[int]]:
        """The reservations that are meant, with those that go on in their place."""
        root = {n: n for n, pk in self.ids.items() if pk not in spared}

        def found(n: int) -> int:
            while root[n] != n:
                n = root[n]
            return n

        for one, other in self._links(self.meant):
            if one in root and other in root:
                root[found(one)] = found(other)
        together: dict[int, list[int]] = defaultdict(list)
        for n in root:
            together[found(n)].append(n)
        return [sorted(links, key=lambda n: self.facts[n][1]) for links in together.values()]

    def _links(self, which: Ints) -> list[tuple[int, int]]:
        """Pairs of reservations of which one goes on, in the same place, where the other ends."""
        rows, whose = self.on.records(self.uses.row[which]), self.code[which].tolist()
        places = [rows[name].tolist() for name in ("gpu", "mask", "owner", "team", "profile")]
        place = list(zip(*places, strict=True))
        begins = dict(zip(zip(place, rows["since"].tolist(), strict=True), whose, strict=True))
        ends = zip(place, rows["until"].tolist(), strict=True)
        pairs = ((one, begins.get(key)) for one, key in zip(whose, ends, strict=True))
        return [(one, after) for one, after in pairs if after is not None and after != one]

    def borrower(self, links: Sequence[int]) -> Borrower:
        """Its priority and age are the newest link's."""
        since = self.facts[links[0]][1]
        team, _, made, priority, _, _ = self.facts[links[-1]]
        created = instant(made)
        assert created is not None
        return Borrower(
            links=tuple(self.ids[n] for n in links),
            team=team,
            borrowed_milli=sum(self.facts[n][4] for n in links),
            charge_milli=sum(self.facts[n][5] for n in links),
            over_share=self.over.get(team, 0.0),
            priority=priority,
            created=created,
            started=instant(since) if since <= self.now else None,
        )


def _codes(reservation: Ints) -> Ints:
    """A number for each reservation, the same for all its uses."""
    order = np.lexsort((reservation[:, 0], reservation[:, 1]))
    fresh = np.append(False, (np.diff(reservation[order], axis=0) != 0).any(axis=1))
    code = np.empty(len(order), dtype=np.int64)
    code[order] = np.cumsum(fresh[: len(order)])
    return code


def _over_share(standing: Standing, milli: Ints) -> dict[int, float]:
    """What each team borrows, divided by its weight."""
    charter, teams = standing.charter, standing.uses.team
    weight = {team: int(charter.weights[row]) for team, row in charter.row.items()}
    some = np.flatnonzero(milli)
    known, which = np.unique(teams[some], return_inverse=True)
    total = np.bincount(which, milli[some], len(known)).tolist()
    return {
        team: amount / max(1, weight.get(team, 1)) for team, amount in zip(known.tolist(), total, strict=True)
    }
