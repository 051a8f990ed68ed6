"""What a booking's body says, field by field, before anything is looked up.

All wrong fields are told at once. What an ask may contain: pool/core/shapes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from pool.core.period import parse_instant
from pool.core.shapes import Ask, Class
from pool.core.terms import Terms
from portal.api.reader import EXTENSION, Extension
from portal.api.reader import NAME_LIMIT as NAME_LIMIT
from portal.api.reader import Reader as Reader

TITLE_LIMIT = 200

BOOKING = (
    *("team", "pool", "title", "ask", "start", "end", "duration", "class", "owner", "restartable"),
    *("free_until", "preemptible", "priority", "preempt", "justification"),
)
OFFERS = ("team", "pool", "ask", "duration", "start", "end", "class", "owner", "preemptible")
ROOM = ("team", "ask", "duration", "start", "class", "owner", "plan")
WAITING = (
    *("team", "pool", "title", "ask", "duration", "class", "owner", "restartable"),
    *("preemptible", "priority", "preempt", "justification"),
    *("earliest", "latest", "partial_ok", "asks_first"),
)
ADOPTION = ("team", "owner", "title", "first", "end", "duration")
#: More memory slices than any GPU has.
FIRST_LIMIT = 63
#: A name of a plan is a digest (services.defrag.key_of).
PLAN_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Booking:
    """A body that can be read. `start` None: now. Exactly one of `end` and `duration` is set.

    `restartable` None: as its class is by default. `free_until`: as an offer said, or None. `terms` are
    not settled yet: whether they go together is for the service to say.
    """

    team: str
    pool: str
    title: str
    ask: Ask
    start: datetime | None
    end: datetime | None
    duration: timedelta | None
    klass: Class
    owner: str | None
    restartable: bool | None
    free_until: datetime | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Seeking:
    """What offers are wanted for. `start` and `end` are the window; None: now, and as far as is looked."""

    team: str
    pool: str
    ask: Ask
    duration: timedelta
    start: datetime | None
    end: datetime | None
    klass: Class
    owner: str | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Room:
    """For what others would have to move. `start` None: now; `plan` None: it is only to be shown."""

    team: str
    ask: Ask
    duration: timedelta
    start: datetime | None
    klass: Class
    owner: str | None
    plan: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A booking that is waited for: `booking.start` is the earliest start, `latest` the latest end."""

    booking: Booking
    latest: datetime | None
    partial_ok: bool
    asks_first: bool


@dataclass(frozen=True, slots=True)
class Adoption:
    """`first` is the first memory slice of what is adopted. Exactly one of `end` and `duration` is set."""

    team: str
    owner: str
    title: str
    first: int
    end: datetime | None
    duration: timedelta | None


def booking(body: Mapping[str, Any], reported_names: Callable[[], Collection[str]] = frozenset) -> Booking:
    """The body of POST /reservations. Raises Invalid (422), or NAIVE_TIME and MALFORMED for times (400).

    `reported_names` gives the profile names that drivers print and the catalogue may lack.
    """
    read = Reader(body, BOOKING)
    until = read.end_or_duration()
    wish = _booking(read, read.klass(), reported_names, "start")
    free_until = read.parsed("free_until", parse_instant)
    read.done()
    return wish(end=until.end, duration=until.duration, free_until=free_until)


def _booking(
    read: Reader, klass: Class, reported_names: Callable[[], Collection[str]], start: str
) -> Callable[..., Booking]:
    """What a booking and a wait have in common; `start` is the name of the field."""
    ask = read.ask(klass, reported_names)
    return partial(
        Booking,
        team=read.text("team", NAME_LIMIT),
        pool=read.text("pool", NAME_LIMIT),
        title=read.text("title", TITLE_LIMIT, default="").strip(),
        # Without one `done` refuses before anybody sees it.
        ask=cast(Ask, ask),
        start=read.parsed(start, parse_instant),
        klass=klass,
        restartable=read.boolean("restartable"),
        owner=read.text("owner", NAME_LIMIT, default="") or None,
        terms=read.terms(),
    )


def waiting(body: Mapping[str, Any], reported_names: Callable[[], Collection[str]] = frozenset) -> Waiting:
    """The body of POST /waiting; raises as `booking` does."""
    read = Reader(body, WAITING)
    wish = _booking(read, read.klass(), reported_names, "earliest")
    found = partial(
        Waiting,
        latest=read.parsed("latest", parse_instant),
        partial_ok=read.boolean("partial_ok") or False,
        asks_first=read.boolean("asks_first") or False,
    )
    duration = read.duration()
    read.done()
    return found(booking=wish(end=None, duration=duration, free_until=None))


def seeking(body: Mapping[str, Any], reported_names: Callable[[], Collection[str]] = frozenset) -> Seeking:
    """The body of POST /offers; raises as `booking` does."""
    read = Reader(body, OFFERS)
    duration = read.duration()
    klass = read.klass()
    ask = read.ask(klass, reported_names)
    wish = partial(
        Seeking,
        team=read.text("team", NAME_LIMIT),
        pool=read.text("pool", NAME_LIMIT),
        start=read.parsed("start", parse_instant),
        end=read.parsed("end", parse_instant),
        klass=klass,
        owner=read.text("owner", NAME_LIMIT, default="") or None,
        terms=Terms(read.boolean("preemptible")),
    )
    read.done()
    assert ask is not None
    assert duration is not None
    return wish(ask=ask, duration=duration)


def extension(body: Mapping[str, Any]) -> Extension:
    """The body of POST .../extend."""
    read = Reader(body, EXTENSION)
    until = read.end_or_duration()
    read.done()
    return until


def release(body: Mapping[str, Any]) -> bool:
    """The body of POST .../release: whether the price of a late release is waived."""
    read = Reader(body, ("waive",))
    waive = read.boolean("waive")
    read.done()
    return waive is True


def adoption(body: Mapping[str, Any]) -> Adoption:
    """The body of POST /gpus/<uuid>/adopt."""
    read = Reader(body, ADOPTION)
    until = read.end_or_duration()
    asked = Adoption(
        team=read.text("team", NAME_LIMIT),
        owner=read.text("owner", NAME_LIMIT),
        title=read.text("title", TITLE_LIMIT, default="").strip(),
        first=read.integer("first", FIRST_LIMIT, default=0),
        end=until.end,
        duration=until.duration,
    )
    read.done()
    return asked


def room(body: Mapping[str, Any], reported_names: Callable[[], Collection[str]] = frozenset) -> Room:
    """The body of POST /pools/<name>/room; raises as `booking` does."""
    read = Reader(body, ROOM)
    duration = read.duration()
    klass = read.klass()
    ask = read.ask(klass, reported_names)
    wish = partial(
        Room,
        team=read.text("team", NAME_LIMIT),
        start=read.parsed("start", parse_instant),
        klass=klass,
        owner=read.text("owner", NAME_LIMIT, default="") or None,
        plan=read.text("plan", PLAN_LIMIT, default="") or None,
    )
    read.done()
    assert ask is not None
    assert duration is not None
    return wish(ask=ask, duration=duration)


def plan(body: Mapping[str, Any]) -> str:
    """The body of POST /pools/<name>/defragmentation: the name of the plan that was shown."""
    read = Reader(body, ("plan",))
    key = read.text("plan", PLAN_LIMIT)
    read.done()
    return key


def nothing(body: Mapping[str, Any]) -> None:
    """The body of an action without fields."""
    Reader(body, ()).done()
