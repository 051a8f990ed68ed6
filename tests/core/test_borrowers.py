"""Whom a holder of a guarantee may take room back from: stays, what of them is borrowed, and whose never."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from pool.core.borrowers import borrowers
from pool.core.fleet import CLASSES, ROW, Fleet, fleet, halves, micros
from pool.core.fleet_views import card_of
from pool.core.placement import GpuView, Use
from pool.core.quota_lines import Line
from pool.core.quota_uses import Uses
from pool.core.reclaim import Borrower
from pool.core.standing import Standing
from tests.core.standings import H100, line
from tests.core.worlds import at, span

#: What is asked for: by team 9, from noon for four hours.
WHEN = span(12, 16)


@dataclass(frozen=True, slots=True)
class Stay:
    """A whole GPU of this number, of a team's one owner."""

    number: int
    team: int
    start: float
    end: float
    gpu: int = 1
    klass: str = "batch"
    firm: bool = False
    priority: int = 50
    created: float = 0

    @property
    def id(self) -> UUID:
        return UUID(int=self.number)


def _fleet(stays: Collection[Stay]) -> Fleet:
    view = GpuView(0, "GPU-0", 1, "dgx-01", 0, H100, 81559, Use.WHOLE, 8, (), ())
    cards = [
        card_of(GpuView(n, f"GPU-{n}", 1, "dgx-01", n, H100, view.memory_mib, Use.WHOLE, 8, (), ()))
        for n in range(1, 5)
    ]
    rows = np.zeros(len(stays), dtype=ROW)
    for row, one in zip(rows, stays, strict=True):
        row["gpu"], row["mask"], row["profile"], row["charge"] = one.gpu, 255, -1, 1000
        row["start"], row["end"] = row["since"], row["until"] = micros(at(one.start)), micros(at(one.end))
        row["team"] = row["owner"] = one.team
        row["klass"], row["firm"] = CLASSES.index(one.klass), one.firm
        row["priority"], row["created"], row["reservation"] = (
            one.priority,
            micros(at(one.created)),
            halves(one.id),
        )
    return fleet(cards, rows)


def found(
    stays: Collection[Stay], lines: tuple[Line, ...], spared: Collection[UUID] = ()
) -> dict[tuple[int, ...], Borrower]:
    """By the numbers of their reservations."""
    known = _fleet(stays)
    standing = Standing(lines, (), {}, Uses.of(known, span(0, 48)), known.models, {H100: 4000})
    told = borrowers(known, standing, 9, WHEN, at(12), spared)
    return {tuple(one.int for one in b.links): b for b in told}


LENT = (line(9, 4000, 4000), line(1, 0, 4000, weight=2), line(2, 0, 4000))


def test_what_is_borrowed_then_with_its_teams_share_of_it() -> None:
    stays = [
        Stay(1, 1, 10, 20, 1, priority=7, created=3),
        Stay(2, 1, 10, 20, 2),
        Stay(3, 2, 13, 20, 3),
        Stay(4, 2, 2, 12, 4),  # it is over by then
    ]
    told = found(stays, LENT)
    assert set(told) == {(1,), (2,), (3,)}
    first, third = told[1,], told[3,]
    assert (first.borrowed_milli, first.charge_milli, first.tier) == (1000, 1000, 0)
    assert (first.over_share, third.over_share) == (1000.0, 1000.0)  # twice as much, of twice the weight
    assert (first.priority, first.created, first.team) == (7, at(3), 1)
    assert (first.started, third.started) == (at(10), None)


def test_what_is_within_its_own_guarantee_or_firm_is_nobodys() -> None:
    lines = (line(9, 2000, 4000), line(1, 1000, 4000))
    stays = [Stay(1, 1, 10, 20, 1, created=1), Stay(2, 1, 10, 20, 2, created=2)]
    assert set(found(stays, lines)) == {(2,)}
    firm = [Stay(1, 1, 10, 20, 1, firm=True), Stay(2, 1, 10, 20, 2, klass="online")]
    assert found(firm, lines) == {}


def test_back_to_back_in_one_place_is_one_stay_with_the_newest_links_age() -> None:
    stays = [
        Stay(1, 1, 10, 13, 1, created=1, priority=80),
        Stay(2, 1, 13, 20, 1, created=5, priority=20),
        Stay(3, 2, 13, 20, 2),
    ]
    told = found(stays, LENT)
    assert set(told) == {(1, 2), (3,)}
    chain = told[1, 2]
    assert (chain.priority, chain.created, chain.started) == (20, at(5), at(10))
    assert (chain.borrowed_milli, chain.charge_milli) == (2000, 2000)


def test_who_is_spared_is_left_out() -> None:
    assert found([Stay(1, 1, 10, 20)], LENT, {UUID(int=1)}) == {}
