"""The wait list of a pool: its order, who may pass, and when each could start if nobody extends.

The first that does not fit has a reserved start: smaller asks may pass it only where they
cannot delay it. Who has been passed too often, or waits too long, is strict: nobody passes it.
Decides only; services give, offer and write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pool.core.asks import Ask
from pool.core.fairness import Share
from pool.core.fleet import Fleet
from pool.core.period import Period
from pool.core.placement_search import Candidate

#: Passed so often, or waiting for so long, an ask becomes strict.
MOST_PASSES = 20
LONGEST_WAIT = timedelta(hours=48)
#: For so many from the head the start is estimated; the rest have a place in line only.
ESTIMATED = 50


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits. `models`: those that could serve it. `window`: the earliest start and the latest end.

    `order` is its place before all others (preempted, restarted), None for most. `milli` is the least that it
    counts. `passes`: how many were given to others behind it that took room it could have had.
    `guaranteed`: it would lie within its team's guarantee.
    """

    id: UUID
    team: int
    ask: Ask
    milli: int
    models: frozenset[str]
    priority: int
    since: datetime
    window: Period
    length: timedelta
    order: int | None = None
    passes: int = 0
    partial_ok: bool = False
    guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """It can be had now (or at the start of its window): one of these, best first. `ask` has fewer pieces
    where only a part is there. `passed`: who was ahead and could have had that room."""

    waiting: Waiting
    ask: Ask
    period: Period
    candidates: tuple[Candidate, ...]
    passed: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """It goes on waiting. `why`: first (it has the reserved start), behind (would delay the first),
    strict (somebody ahead may not be passed), borrowing_stopped, no_room, too_late (its window is over), or the
    word with which `place` refused. `starts` is the estimate under "nobody extends"; None: not known.
    """

    waiting: Waiting
    position: int
    why: str
    starts: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is given now, and why the rest waits, each in the order of the line."""

    given: tuple[Given, ...]
    left: tuple[Left, ...]


#: Candidates for this ask over the period on this fleet, legal in quota and guarantees beside what was given
#: before; or one word why there are none (no_room, or a quota word).
Place = Callable[[Fleet, Waiting, Ask, Period, Sequence[Given]], Sequence[Candidate] | str]


def line(
    waiting: Sequence[Waiting], shares: Mapping[int, Share], in_use: Mapping[int, int], now: datetime
) -> list[Waiting]:
    """In the order in which they are served.

    First those with a place before all others, then strict ones (oldest first), then what lies within
    what its team deserves, then by priority, then the team that has least of its fair share (each one counted
    in as it comes), then the oldest.
    """
    raise NotImplementedError


def is_strict(one: Waiting, now: datetime) -> bool:
    """Whether nobody may pass it any more: MOST_PASSES or LONGEST_WAIT."""
    raise NotImplementedError


def no_borrowing(waiting: Sequence[Waiting], now: datetime) -> frozenset[str]:
    """The models in which nothing is borrowed: a holder of a guarantee waits there."""
    raise NotImplementedError


def decide(fleet: Fleet, ordered: Sequence[Waiting], now: datetime, place: Place) -> Decision:
    """Who gets something now, in the order of the line, and why the others wait.

    The first that does not fit is given a reserved start, at which its room is kept: what passes it lies
    beside that. Behind a strict one nothing is given in its models.
    """
    raise NotImplementedError
