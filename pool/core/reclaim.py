"""Who gives way when a holder of a guarantee asks: the victims, and when the room is theirs no longer.

Victims are what is borrowed and may be taken back. What of it is borrowed is decided in
standing, the legality of the new placement in guarantees; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pool.core.asks import Ask
from pool.core.fleet import Fleet
from pool.core.period import Period
from pool.core.placement_search import Candidate

#: No recall takes longer; this wins over notice and minimum run.
LONGEST_RECALL = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Borrower:
    """One stay that may be taken back: a reservation, or a back-to-back chain of one owner (`links`).

    `borrowed_milli` of its `charge_milli` is borrowed at the instant; `over_share` is what its team
    borrows there, divided by the team's weight. `priority` and `created` are the newest link's.
    `started`: since when its first link runs; None: it does not yet.
    """

    links: tuple[UUID, ...]
    team: int
    borrowed_milli: int
    charge_milli: int
    over_share: float
    priority: int
    created: datetime
    started: datetime | None

    @property
    def wholly(self) -> bool:
        return self.borrowed_milli >= self.charge_milli


@dataclass(frozen=True, slots=True)
class Notice:
    """How long what is recalled may stay: `notice` from now, and `min_run` since it started."""

    notice: timedelta
    min_run: timedelta


@dataclass(frozen=True, slots=True)
class Reclaim:
    """`victims` leave at `period.start`; then the first of `candidates` that still holds is the booking."""

    period: Period
    victims: tuple[Borrower, ...]
    candidates: tuple[Candidate, ...]


def taken_order(borrowers: Sequence[Borrower]) -> list[Borrower]:
    """Who is taken first: wholly borrowed before partly; teams furthest over their share (borrowed / weight),
    then the lowest priority, then the newest."""
    raise NotImplementedError


def recall(victims: Sequence[Borrower], now: datetime, rule: Notice) -> timedelta:
    """How long it takes until all of them have left: the notice, the longest that one of them has still to
    run, at most LONGEST_RECALL."""
    raise NotImplementedError


def smallest(borrowers: Sequence[Borrower], fits: Callable[[frozenset[UUID]], bool]) -> list[Borrower] | None:
    """The victims without whom it fits, none of whom can be left out; None when it fits without all of them
    no better.

    In `taken_order` as many as it takes, then a reverse pass puts back what is not needed. `fits` of a
    larger set must hold where it holds of a smaller.
    """
    raise NotImplementedError


def without(fleet: Fleet, gone: frozenset[UUID], at: datetime) -> Fleet:
    """The fleet in which these reservations end at that instant (or never begin)."""
    raise NotImplementedError


def reclaim(
    fleet: Fleet,
    ask: Ask,
    period: Period,
    now: datetime,
    *,
    rule: Notice,
    borrowers: Callable[[datetime], Sequence[Borrower]],
    place: Callable[[Fleet, frozenset[UUID], Period], Sequence[Candidate]],
    allowed: Callable[[frozenset[UUID], Period], bool] = lambda gone, period: True,
    account: str | None = None,
) -> Reclaim | None:
    """What has to give way so that `ask` fits, and from when: quota and placement decided together.

    None when it would not fit even without all borrowers: then nobody is taken. The booking starts at
    max(period.start, now + recall), its duration is kept. `borrowers`: who may be taken at that instant.
    `place`: candidates in this fleet (where those reservations have left) that are legal (quota,
    guarantees); `allowed`: whether quota lets it without them (a sibling's borrowing may fill the parent's
    cap). At 10,000 GPUs and 100,000 rows within 200 ms.
    """
    raise NotImplementedError
