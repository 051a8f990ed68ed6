"""Who gives way when a holder of a guarantee asks: the victims, and from when their room is the asker's.

Victims are what is borrowed and may be taken back; only when the ask fits in no other way, also work that
is within its guarantee, could be taken back, and lies in a wrong place (astray). What of it is borrowed
is decided in standing, whether the new placement is legal in guarantees, whether it has room
without them in reclaim_room; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import numpy as np

from pool.core.asks import Ask
from pool.core.fleet import USES, Fleet, Ints
from pool.core.period import Period
from pool.core.placement_mode import SWITCH
from pool.core.placement_room import Use
from pool.core.placement_search import Candidate
from pool.core.reclaim_room import Room, without

__all__ = [
    "LONGEST_RECALL",
    "Borrower",
    "Notice",
    "Reclaim",
    "recall",
    "reclaim",
    "smallest",
    "taken_order",
    "without",
]

#: No recall takes longer; this wins over notice and minimum run.
LONGEST_RECALL = timedelta(hours=1)
#: So often victims are chosen anew because those that were found have still to run for a while.
_ROUNDS = 4
#: So often those who lie where they may are left out of the last resort.
_LAST_ROUNDS = 8
_AUTO = USES.index(Use.AUTO)


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
    def tier(self) -> int:
        """Wholly borrowed 0, partly 1; within its guarantee 2."""
        if self.is_inside:
            return 2
        return int(self.borrowed_milli < self.charge_milli)

    @property
    def is_inside(self) -> bool:
        return self.borrowed_milli == 0


@dataclass(frozen=True, slots=True)
class Notice:
    """How long what is recalled may stay: `notice` from now, and `min_run` since it started."""

    notice: timedelta
    min_run: timedelta


@dataclass(frozen=True, slots=True)
class Reclaim:
    """`victims` leave at `at`; then the first of `candidates` that still holds is the booking for `period`.

    The period begins at `at`, or where a GPU has to change its mode, a little later.
    """

    at: datetime
    period: Period
    victims: tuple[Borrower, ...]
    candidates: tuple[Candidate, ...]


#: Candidates on this fleet, from which those reservations have gone, that quota and guarantees allow.
Place = Callable[[Fleet, frozenset[UUID], Period], Sequence[Candidate]]
#: Whether quota allows the booking when those reservations have gone.
Allowed = Callable[[frozenset[UUID], Period], bool]
#: Who is within its guarantee at that instant, could be taken back, and may be in a wrong place.
Inside = Callable[[datetime], Sequence["Borrower"]]
#: Which of these may not be where they are, when all of those reservations have gone.
Astray = Callable[[Sequence["Borrower"], frozenset[UUID], Period], Sequence[bool]]


def taken_order(borrowers: Sequence[Borrower]) -> list[int]:
    """Who is taken first, as numbers in `borrowers`.

    Wholly borrowed before partly, and last who is within its guarantee; in each of these teams furthest
    over their share (borrowed / weight), then the lowest priority, then the newest.
    """
    keys = [
        (one.tier, -one.over_share, one.priority, -one.created.timestamp(), one.links) for one in borrowers
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def recall(victims: Sequence[Borrower], now: datetime, rule: Notice) -> timedelta:
    """How long it takes until all of them have left.

    The notice, or the longest that one of them has still to run; at most LONGEST_RECALL.
    """
    runs = (rule.min_run - (now - one.started) for one in victims if one.started is not None)
    return min(LONGEST_RECALL, max((rule.notice, *runs)))


def smallest(borrowers: Sequence[Borrower], fits: Callable[[Ints], bool]) -> Ints | None:
    """The victims without whom it fits, none of whom can be left out; None when nothing makes it fit.

    All as numbers in `borrowers`. As `taken_order` has them until it fits; then, the last first, who
    is not needed is put back. `fits` of a set has to hold where it holds of a part of it.
    """
    order = np.array(taken_order(borrowers), dtype=np.int64)
    # Who comes before the last that was needed; all behind it are put back at once.
    tiers = np.array([one.tier for one in borrowers], dtype=np.int64)
    ends = sorted({int((tiers <= tier).sum()) for tier in range(3)})
    left = next((order[:n] for n in ends if fits(order[:n])), None)
    if left is None:
        return None
    needed, step = order[:0], max(1, len(left) // 2)
    while not fits(needed):
        number = _fewest(left, needed, fits, step)
        step = max(1, len(left) - number)
        needed = np.append(left[number - 1], needed)
        left = left[: number - 1]
    return needed


def _fewest(left: Ints, needed: Ints, fits: Callable[[Ints], bool], step: int) -> int:
    """How many from the first on have to go beside those that are needed. All do, and none does not.

    Looked for from the end in growing steps: where many are needed, they are close to one another.
    """
    short, enough = 0, len(left)
    while short == 0 and step < enough:
        if fits(np.append(left[: enough - step], needed)):
            enough -= step
            step *= 2
        else:
            short = enough - step
    while enough - short > 1:
        middle = (short + enough) // 2
        if fits(np.append(left[:middle], needed)):
            enough = middle
        else:
            short = middle
    return enough


def reclaim(
    fleet: Fleet,
    ask: Ask,
    period: Period,
    now: datetime,
    *,
    rule: Notice,
    borrowers: Callable[[datetime], Sequence[Borrower]],
    place: Place,
    allowed: Allowed = lambda gone, period: True,
    inside: Inside = lambda at: (),
    astray: Astray = lambda who, gone, period: [False] * len(who),
    account: str | None = None,
) -> Reclaim | None:
    """What has to give way so that `ask` fits, and from when: quota and placement decided together.

    None when it would not fit even without all borrowers: then nobody is taken. The booking starts at
    max(period.start, now + recall), and its duration is kept. `borrowers`: who may be taken at that
    instant. `place` decides what is legal, `allowed` whether quota lets it (a sibling's borrowing may
    fill the parent's cap). When all of that does not help, those of `inside` may go, too, all of whom have to
    be `astray`. At 10,000 GPUs and 100,000 rows within 200 ms.
    """
    asked = _Asked(fleet, ask, now, place, allowed, inside, astray, account)
    at = max(period.start, now + min(rule.notice, LONGEST_RECALL))
    for _ in range(_ROUNDS):
        found = _at(asked, _moved(period, at), borrowers(at))
        if found is None:
            return None
        ready = now + recall(found.victims, now, rule)
        if not found.victims or ready <= at:
            return found
        at = ready
    at = max(period.start, now + LONGEST_RECALL)
    return _at(asked, _moved(period, at), borrowers(at))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked for, and who says whether it may be."""

    fleet: Fleet
    ask: Ask
    now: datetime
    place: Place
    allowed: Allowed
    inside: Inside
    astray: Astray
    account: str | None


def _at(asked: _Asked, period: Period, borrowers: Sequence[Borrower]) -> Reclaim | None:
    """With victims that leave when the period begins: those who borrow, or else with some who are astray."""
    found = _in_time(asked, period, borrowers)
    if found is not None:
        return found
    inside = list(asked.inside(period.start))
    for _ in range(_LAST_ROUNDS):
        found = _in_time(asked, period, [*borrowers, *inside]) if inside else None
        if found is None:
            return None
        last = [one for one in found.victims if one.is_inside]
        gone = frozenset(link for one in found.victims for link in one.links)
        wrong = asked.astray(last, gone, found.period)
        if all(wrong):
            return found
        rightly = {one.links for one, is_wrong in zip(last, wrong, strict=True) if not is_wrong}
        inside = [one for one in inside if one.links not in rightly]
    return None


def _in_time(asked: _Asked, period: Period, borrowers: Sequence[Borrower]) -> Reclaim | None:
    """As it is asked for; with time for a change of mode where that is needed."""
    found = _leaving(asked, period.start, period, borrowers)
    if found is None and (asked.fleet.use == _AUTO).any():
        return _leaving(asked, period.start, _moved(period, period.start + SWITCH), borrowers)
    return found


def _leaving(asked: _Asked, at: datetime, period: Period, borrowers: Sequence[Borrower]) -> Reclaim | None:
    """What has room may still be refused by guarantees: then each set is placed in earnest."""
    links = [one.links for one in borrowers]
    room = Room(asked.fleet, asked.ask, period, asked.now, at, links, asked.account)
    quota_is_enough = asked.allowed(frozenset(), period)
    # Who is nowhere near makes no difference to the room, but may do to the quota.
    some = np.flatnonzero(room.near | (not quota_is_enough))
    nearby = [borrowers[n] for n in some.tolist()]

    def gone(numbers: Ints) -> frozenset[UUID]:
        return frozenset(link for n in numbers.tolist() for link in links[n])

    def fits(numbers: Ints) -> bool:
        return room.fits(numbers) and (quota_is_enough or asked.allowed(gone(numbers), period))

    def placed(numbers: Ints) -> tuple[Candidate, ...]:
        if not fits(numbers):
            return ()
        who = gone(numbers)
        return tuple(asked.place(without(asked.fleet, who, at), who, period))

    found = smallest(nearby, lambda numbers: fits(some[numbers]))
    victims = None if found is None else some[found]
    candidates = () if victims is None else placed(victims)
    if victims is not None and not candidates:
        victims = smallest(borrowers, lambda numbers: bool(placed(numbers)))
        candidates = () if victims is None else placed(victims)
    if victims is None or not candidates:
        return None
    return Reclaim(at, period, tuple(borrowers[n] for n in victims.tolist()), candidates)


def _moved(period: Period, start: datetime) -> Period:
    if start == period.start:
        return period
    return replace(
        period, start=start, end=None if period.end is None else start + (period.end - period.start)
    )
