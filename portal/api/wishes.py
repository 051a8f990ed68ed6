"""What a booking's body says, field by field, before anything is looked up.

All wrong fields are told at once. What an ask may contain: pool/core/shapes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from pool.core import mig
from pool.core.errors import FieldError, Invalid
from pool.core.period import parse_duration, parse_instant
from pool.core.shapes import Ask, Class, check_class, parse_ask
from pool.core.terms import HIGHEST, JUSTIFICATION_LIMIT, ORDINARY, Preempt, Terms

TITLE_LIMIT = 200
NAME_LIMIT = 150

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
PREEMPT = ("signal", "grace")
EXTENSION = ("end", "duration")
ADOPTION = ("team", "owner", "title", "first", "end", "duration")
#: More memory slices than any GPU has.
FIRST_LIMIT = 63
#: A name of a plan is a digest (services.defrag.key_of).
PLAN_LIMIT = 64

T = TypeVar("T")


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
class Extension:
    """Exactly one is set."""

    end: datetime | None
    duration: timedelta | None


@dataclass(frozen=True, slots=True)
class Adoption:
    """`first` is the first memory slice of what is adopted. Exactly one of `end` and `duration` is set."""

    team: str
    owner: str
    title: str
    first: int
    end: datetime | None
    duration: timedelta | None


class Reader:
    """Reads the fields of one object and keeps what is wrong with each; `done` raises them together."""

    def __init__(self, body: Mapping[str, Any], known: tuple[str, ...], at: str = "") -> None:
        """`at` is where in the body the object is: a JSON pointer."""
        self.body = body
        self.at = at
        self.errors = [
            FieldError(f"{at}/{_pointer(name)}", "unknown_field", {"known": list(known)})
            for name in body
            if name not in known
        ]

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """A string of 1 to `most` characters; absent it is `default`, or wrong without one."""
        value = self.body.get(name)
        if value is None and default is not None:
            return default
        if name not in self.body:
            return self._wrong(name, "required", "")
        if not isinstance(value, str):
            return self._wrong(name, "not_a_string", "")
        if not value and default is None:
            return self._wrong(name, "blank", "")
        if len(value) > most:
            return self._wrong(name, "too_long", "", max=most)
        return value

    def parsed(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        """A string that `parse` understands; None where the field is absent or null."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            return self._wrong(name, "not_a_string", None)
        try:
            return parse(value, f"{self.at}/{name}")
        except Invalid as refused:
            self.errors += refused.errors
            return None

    def end_or_duration(self) -> Extension:
        given = [name for name in EXTENSION if self.body.get(name) is not None]
        if len(given) != 1:
            self._wrong("end" if given else "duration", "one_of", None, choices=list(EXTENSION))
            return Extension(None, None)
        return Extension(self.parsed("end", parse_instant), self.parsed("duration", parse_duration))

    def integer(self, name: str, most: int, default: int) -> int:
        """A whole number from 0 to `most`."""
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            return self._wrong(name, "not_an_integer", default, min=0, max=most)
        return value

    def optional(self, name: str, most: int) -> int | None:
        """As `integer`; None where the field is absent or null."""
        return None if self.body.get(name) is None else self.integer(name, most, 0)

    def texts(self, name: str, most: int) -> list[str]:
        """A list of strings; empty where the field is absent or null."""
        value = self.body.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            return self._wrong(name, "not_a_list", [])
        if not all(isinstance(one, str) and len(one) <= most for one in value):
            return self._wrong(name, "not_a_string", [])
        return list(value)

    def boolean(self, name: str) -> bool | None:
        """true or false; None where the field is absent or null."""
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return value
        return self._wrong(name, "not_a_boolean", None)

    def terms(self) -> Terms:
        """Whether it may be taken back, how important it is, the word before the end, and what it is for."""
        return Terms(
            self.boolean("preemptible"),
            self.integer("priority", HIGHEST, ORDINARY),
            self.preempt(),
            self.text("justification", JUSTIFICATION_LIMIT, default=""),
        )

    def preempt(self) -> Preempt | None:
        """`{signal, grace}`, both of them; None where the field is absent or null."""
        value = self.body.get("preempt")
        if value is None:
            return None
        if not isinstance(value, dict):
            return self._wrong("preempt", "not_an_object", None)
        read = Reader(value, PREEMPT, "/preempt")
        signal, grace = read.text("signal", NAME_LIMIT), read.parsed("grace", parse_duration)
        if value.get("grace") is None:
            read.missing("grace")
        self.errors += read.errors
        return None if read.errors or grace is None else Preempt(signal, grace)

    def ask(self, klass: Class, reported_names: Callable[[], Collection[str]]) -> Ask | None:
        if "ask" not in self.body:
            return self._wrong("ask", "required", None)
        raw = self.body["ask"]
        name = raw.get("profile") if isinstance(raw, dict) else None
        # Nearly all asks name a profile of the catalogue: those cost no look at the inventory.
        named_by_drivers = isinstance(name, str) and name not in mig.profile_names()
        try:
            ask = parse_ask(raw, reported_names=reported_names() if named_by_drivers else ())
            check_class(ask, klass)
        except Invalid as refused:
            self.errors += refused.errors
            return None
        return ask

    def klass(self) -> Class:
        value = self.body.get("class", Class.INTERACTIVE.value)
        try:
            return Class(value)
        except ValueError:
            return self._wrong("class", "not_a_choice", Class.INTERACTIVE, choices=[c.value for c in Class])

    def missing(self, name: str) -> None:
        self._wrong(name, "required", None)

    def done(self) -> None:
        if self.errors:
            raise Invalid(self.errors)

    def _wrong(self, name: str, code: str, instead: T, **data: Any) -> T:
        self.errors.append(FieldError(f"{self.at}/{name}", code, data))
        return instead


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
    if body.get("duration") is None:
        read.missing("duration")
    duration = read.parsed("duration", parse_duration)
    read.done()
    return found(booking=wish(end=None, duration=duration, free_until=None))


def seeking(body: Mapping[str, Any], reported_names: Callable[[], Collection[str]] = frozenset) -> Seeking:
    """The body of POST /offers; raises as `booking` does."""
    read = Reader(body, OFFERS)
    duration = read.parsed("duration", parse_duration)
    if body.get("duration") is None:
        read.missing("duration")
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
    duration = read.parsed("duration", parse_duration)
    if body.get("duration") is None:
        read.missing("duration")
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


def _pointer(name: str) -> str:
    """A name within a JSON pointer (RFC 6901), cut where it is absurd."""
    return name[:64].replace("~", "~0").replace("/", "~1")
