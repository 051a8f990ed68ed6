"""The wait list of a pool: its order, who may pass, and when each could start if nobody extends.

The first that does not fit has a reserved start: smaller asks may pass it only where they
cannot delay it. Who has been passed too often, or waits too long, is strict: nobody passes it.
Decides only; services give, offer and write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from math import inf
from uuid import UUID

from pool.core.asks import Ask, GpuAsk, alternatives
from pool.core.fairness import Share
from pool.core.fleet import Fleet, instant, micros
from pool.core.openings import SIGHT, openings
from pool.core.period import Period
from pool.core.placement_field import field as field_of
from pool.core.placement_search import Candidate
from pool.core.supposed import Owner, supposing

#: Passed so often, or waiting for so long, an ask becomes strict.
MOST_PASSES = 20
LONGEST_WAIT = timedelta(hours=48)
#: For so many from the head the start is estimated; the rest have a place in line only.
ESTIMATED = 20
#: So much is given in one run; the rest is decided in the next.
MOST_GIVEN = 10
#: Starts that are placed in earnest before an estimate is given up.
_LOOKS = 24
#: So much is placed in one run.
_MOST_PLACINGS = 200
#: Words of `Left` that say that room is what is lacking.
_NO_ROOM = frozenset({"first", "behind", "strict", "no_room"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits. `models`: those that could serve it. `window`: the earliest start, the latest end.

    `order` is its place before all others (preempted, restarted), None for most. `milli` is the
    least that it counts. `passes`: how often it was passed (`Given.passed`).
    `guaranteed`: it would lie within its team's guarantee. The last five are for the
    rows that it would have (supposed.Owner), and for placing its shares.
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
    klass: str = "batch"
    firm: bool = False
    owner: int = 0
    account: str | None = None

    @property
    def whose(self) -> Owner:
        """Whose the rows would be."""
        return Owner(self.id, self.team, self.since, self.owner, self.klass, self.firm, self.priority)


@dataclass(frozen=True, slots=True)
class Given:
    """It can be had from now, or from the start of its window, on: one of these, best first.

    `ask` has fewer pieces where only a part is there. `passed`: who is ahead or came earlier, goes on
    waiting for room, and could have had some of this.
    """

    waiting: Waiting
    ask: Ask
    period: Period
    candidates: tuple[Candidate, ...]
    passed: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """It goes on waiting; `position` 1 is the head of the line.

    `why`: first (it has the reserved start), behind (would delay the first, or it was not looked
    at in this run), strict (somebody ahead may not be passed), borrowing_stopped, no_room, too_late
    (its window is over), or the word with which `place` refused. `starts` is the estimate under "nobody
    extends"; None: not known.
    """

    waiting: Waiting
    position: int
    why: str
    starts: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is given now, and why the rest waits, each in the order of the line.

    `reserved` is what is kept for the first that waits, at its reserved start.
    """

    given: tuple[Given, ...]
    left: tuple[Left, ...]
    reserved: Given | None = None


#: Candidates for this ask over the period on this fleet, legal in quota and guarantees, or one word
#: why there are none (no_room, or a quota word). What was given before, and what is kept, is on the fleet.
Place = Callable[[Fleet, Waiting, Ask, Period, Sequence[Given]], Sequence[Candidate] | str]


# --- The order ----------------------------------------------------------------------


def line(
    waiting: Sequence[Waiting], shares: Mapping[int, Share], in_use: Mapping[int, int], now: datetime
) -> list[Waiting]:
    """In the order in which they are served.

    First those with a place before all others, then strict ones (oldest first), then what lies within
    what its team deserves, then by priority, then the team that has least of its fair share (each one
    counted in as it comes), then the oldest.
    """
    ahead = sorted((one for one in waiting if one.order is not None), key=lambda one: (one.order, one.id))
    plain = [one for one in waiting if one.order is None]
    strict = sorted((one for one in plain if is_strict(one, now)), key=_age)
    first = [*ahead, *strict]
    has: dict[int, int] = defaultdict(int, in_use)
    for one in first:
        has[one.team] += one.milli
    return first + _fairly((one for one in plain if not is_strict(one, now)), shares, has)


def _age(one: Waiting) -> tuple[datetime, UUID]:
    return one.since, one.id


def _fairly(waiting: Iterable[Waiting], shares: Mapping[int, Share], has: dict[int, int]) -> list[Waiting]:
    """Always the one that stands best as things are when it comes; of each team the best."""
    of_team: dict[int, list[Waiting]] = defaultdict(list)
    for one in waiting:
        of_team[one.team].append(one)
    for queue in of_team.values():
        queue.sort(key=lambda one: (-one.priority, *_age(one)))

    def best(team: int) -> tuple[bool, int, float, datetime, UUID, int]:
        share, used = shares.get(team), has.get(team, 0)
        deserved = share.deserved if share else 0
        due = (n for n, one in enumerate(of_team[team]) if used + one.milli <= deserved)
        number = next(due, None)
        one = of_team[team][number or 0]
        part = used / share.milli if share and share.milli else inf
        return number is None, -one.priority, part, one.since, one.id, number or 0

    heap = [(*best(team), team) for team in of_team]
    heapify(heap)
    found = []
    while heap:
        *_, number, team = heappop(heap)
        one = of_team[team].pop(number)
        found.append(one)
        has[team] = has.get(team, 0) + one.milli
        if of_team[team]:
            heappush(heap, (*best(team), team))
    return found


def is_strict(one: Waiting, now: datetime) -> bool:
    """Whether nobody may pass it any more: MOST_PASSES or LONGEST_WAIT since it could have begun."""
    return one.passes >= MOST_PASSES or now - max(one.since, one.window.start) >= LONGEST_WAIT


def no_borrowing(waiting: Iterable[Waiting], now: datetime) -> frozenset[str]:
    """The models in which nothing is borrowed: a holder of a guarantee waits there."""
    holders = (one.models for one in waiting if one.guaranteed and one.window.start <= now)
    return frozenset[str]().union(*holders)


def strict_models(waiting: Iterable[Waiting], now: datetime) -> frozenset[str]:
    """The models in which somebody waits whom nobody may pass: new bookings must not borrow there."""
    those = (one.models for one in waiting if is_strict(one, now) and one.window.start <= now)
    return frozenset[str]().union(*those)


# --- The decision -------------------------------------------------------------------


def decide(
    fleet: Fleet,
    ordered: Sequence[Waiting],
    now: datetime,
    place: Place,
    *,
    estimates: int = 0,
    most: int = MOST_GIVEN,
) -> Decision:
    """Who gets something now, in the order of the line, and why the others wait.

    The first that does not fit is given a reserved start, at which its room is kept: what passes it lies
    beside that. Behind a strict one nothing is given in its models but what is within a
    guarantee. `estimates`: for so many from the head the start is said; each takes a search.
    """
    run = _Run(fleet, now, place, tuple(one for one in ordered if one.guaranteed), fleet)
    for position, one in enumerate(ordered, 1):
        run.position[one.id] = position
        if len(run.given) >= most or run.placings >= _MOST_PLACINGS:
            run.left.append(Left(one, position, "behind"))
        else:
            run.look(one, position)
    if estimates:
        run.estimate(estimates)
    return Decision(tuple(run.passes()), tuple(run.left), run.reserved)


@dataclass(slots=True)
class _Run:
    """One run along the line. `bare` has on it what was given, `fleet` also what is kept.

    Both only become fuller, so that what was refused once is refused to all like it.
    """

    fleet: Fleet
    now: datetime
    place: Place
    holders: tuple[Waiting, ...]
    bare: Fleet
    given: list[Given] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    reserved: Given | None = None
    strict: frozenset[str] = frozenset()
    placings: int = 0
    position: dict[UUID, int] = field(default_factory=dict)
    refused: dict[tuple[object, ...], str] = field(default_factory=dict)

    def look(self, one: Waiting, position: int) -> None:
        """Give it something, or say why it waits."""
        period = self._period(one)
        ask = self._ask(one)
        if period is None:
            self.left.append(Left(one, position, "too_late"))
        elif one.models & self.strict and not one.guaranteed:
            self.left.append(Left(one, position, "strict"))
        elif ask is None:
            self._wait(one, position, "borrowing_stopped")
        else:
            self._try(one, position, ask, period)

    def _try(self, one: Waiting, position: int, ask: Ask, period: Period) -> None:
        wanted, found = self._most(one, ask, period)
        if isinstance(found, str):
            self._wait(one, position, self._keep(one, ask, period, found))
            return
        self.given.append(Given(one, wanted, period, tuple(found)))
        # A holder that has what is guaranteed to it stops nobody any more.
        self.holders = tuple(other for other in self.holders if other is not one)
        self.fleet = supposing(self.fleet, found[0].picks, period, one.whose)
        self.bare = supposing(self.bare, found[0].picks, period, one.whose)

    def _wait(self, one: Waiting, position: int, why: str) -> None:
        starts = self.reserved.period.start if self.reserved and self.reserved.waiting is one else None
        self.left.append(Left(one, position, why, starts))
        if is_strict(one, self.now) and one.window.start <= self.now:
            self.strict |= one.models

    def _most(self, one: Waiting, ask: Ask, period: Period) -> tuple[Ask, Sequence[Candidate] | str]:
        """All that it wants, or if it takes a part, the most of it that can be had."""
        found = self._placed(one, ask, period)
        step = ask.segment or 1 if isinstance(ask, GpuAsk) else 1
        if not isinstance(found, str) or not one.partial_ok or ask.count <= step:
            return ask, found
        best: tuple[Ask, Sequence[Candidate] | str] = (ask, found)
        some, all_of_it = 0, ask.count // step
        while all_of_it - some > 1:
            middle = (some + all_of_it) // 2
            fewer = replace(ask, count=middle * step)
            part = self._placed(one, fewer, period)
            if isinstance(part, str):
                all_of_it = middle
            else:
                some, best = middle, (fewer, part)
        return best

    def _placed(self, one: Waiting, ask: Ask, period: Period) -> Sequence[Candidate] | str:
        alike = (ask, period, one.team, one.klass, one.firm, one.priority, one.account, one.guaranteed)
        if alike in self.refused:
            return self.refused[alike]
        self.placings += 1
        found = self.place(self.fleet, one, ask, period, self.given) or "no_room"
        if isinstance(found, str):
            self.refused[alike] = found
        return found

    def _keep(self, one: Waiting, ask: Ask, period: Period, why: str) -> str:
        """The first that waits is kept room at its start; who comes behind it may be in its way."""
        if self.reserved is not None:
            return "behind" if why == "no_room" and self._has_room(one, ask, period) else why
        self.reserved = self._soonest(one, ask)
        if self.reserved is None:
            return why
        picks = self.reserved.candidates[0].picks
        self.fleet = supposing(self.fleet, picks, self.reserved.period, one.whose)
        return "first" if why == "no_room" else why

    def _has_room(self, one: Waiting, ask: Ask, period: Period) -> bool:
        """Whether it would fit but for what is kept."""
        fields = (field_of(self.bare, a, period, self.now, account=one.account) for a in alternatives(ask))
        return any(here.free >= ask.count for here in fields)

    def passes(self) -> list[Given]:
        """What was given, and who went on waiting for it: those who are ahead, or came earlier."""
        waiting = [
            left.waiting
            for left in self.left
            if left.why in _NO_ROOM and left.waiting.window.start <= self.now
        ]
        return [replace(one, passed=self._passed(one, waiting)) for one in self.given]

    def _passed(self, given: Given, waiting: Sequence[Waiting]) -> tuple[UUID, ...]:
        models = {pick.model for pick in given.candidates[0].picks}
        place, since = self.position[given.waiting.id], given.waiting.since
        return tuple(
            one.id
            for one in waiting
            if one.models & models and (one.since < since or self.position[one.id] < place)
        )

    # --- When -------------------------------------------------------------------------

    def _period(self, one: Waiting) -> Period | None:
        """As soon as it may be; None when that is too late."""
        start = max(self.now, one.window.start)
        end = start + one.length
        return None if one.window.end is not None and end > one.window.end else Period(start, end)

    def _ask(self, one: Waiting) -> Ask | None:
        """What it asks for, without the models in which nobody borrows; None when there is no other."""
        stopped = no_borrowing(self.holders, self.now)
        if one.guaranteed or not one.models & stopped:
            return one.ask
        others = tuple(sorted(one.models - stopped))
        return replace(one.ask, models=others) if others else None

    def _soonest(self, one: Waiting, ask: Ask) -> Given | None:
        """Where it would start if nobody extends; None when nothing is found in its window."""
        since = max(self.now, one.window.start)
        latest = (one.window.end or since + SIGHT) - one.length
        if latest < since:
            return None
        there = openings(self.fleet, ask, since, one.length, now=self.now, account=one.account)
        spans = there.starts(one.length // timedelta(microseconds=1), micros(latest))
        if not len(spans):
            return None
        changes = there.changes[there.changes > spans.first[0]]
        starts = dict.fromkeys([int(spans.first[0]), *spans.holds(changes).tolist()])
        for start in list(starts)[:_LOOKS]:
            begin = instant(start)
            assert begin is not None
            period = Period(begin, begin + one.length)
            found = self._placed(one, ask, period)
            if not isinstance(found, str):
                return Given(one, ask, period, tuple(found))
        return None

    def estimate(self, most: int) -> None:
        """When each of the first of those who wait would start, one after the other."""
        for number, left in enumerate(self.left[:most]):
            if left.starts is not None or left.why == "too_late":
                continue
            found = self._soonest(left.waiting, left.waiting.ask)
            if found is not None:
                self.left[number] = replace(left, starts=found.period.start)
                self.fleet = supposing(
                    self.fleet, found.candidates[0].picks, found.period, left.waiting.whose
                )
