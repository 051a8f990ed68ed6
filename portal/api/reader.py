"""Reads the fields of a body one by one, and tells all wrong ones at once; whose they are is in wishes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pool.core import mig
from pool.core.errors import FieldError, Invalid
from pool.core.period import parse_duration, parse_instant
from pool.core.shapes import Ask, Class, check_class, parse_ask
from pool.core.terms import HIGHEST, JUSTIFICATION_LIMIT, ORDINARY, Preempt, Terms

NAME_LIMIT = 150
EXTENSION = ("end", "duration")
PREEMPT = ("signal", "grace")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extension:
    """Exactly one is set."""

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

    def duration(self) -> timedelta | None:
        """The field `duration`, which has to be there; None where it is missing or wrong."""
        if self.body.get("duration") is None:
            self.missing("duration")
        return self.parsed("duration", parse_duration)

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


def _pointer(name: str) -> str:
    """A name within a JSON pointer (RFC 6901), cut where it is absurd."""
    return name[:64].replace("~", "~0").replace("/", "~1")
