"""Refusals of the domain: a code and data, never a sentence.

`portal/errors.py` is the one table that turns a code into a status, a
translatable sentence and a next step. Data must be fit to be shown to the
person who asked: numbers of other teams are counted, never named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Stable names; they appear in API answers and never change their meaning."""

    MALFORMED = "malformed"
    NAIVE_TIME = "naive_time"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    NO_CAPACITY = "no_capacity"
    QUOTA_EXCEEDED = "quota_exceeded"
    NEEDS_APPROVAL = "needs_approval"
    #: A limit was to be lowered below what is promised already; nobody has confirmed that yet.
    PROMISED = "promised"
    #: Nobody decides on what they asked for themselves.
    OWN_REQUEST = "own_request"
    TAKEN = "taken"
    ONE_HOLD = "one_hold"
    LAPSED = "lapsed"
    WRONG_STATE = "wrong_state"
    STALE = "stale"
    FROZEN = "frozen"
    NOT_HEALTHY = "not_healthy"
    KEY_REUSED = "key_reused"
    IN_PROGRESS = "in_progress"
    BUSY = "busy"
    WRONG_NODE = "wrong_node"
    UNSUPPORTED_WIRE = "unsupported_wire"
    BAD_TOKEN = "bad_token"  # noqa: S105


class Refusal(Exception):
    """Something was asked that the rules do not allow; nothing was written.

    `code` says which rule, `data` holds its numbers (JSON values only).
    """

    def __init__(self, code: Code, **data: Any) -> None:
        super().__init__(code.value)
        self.code = code
        self.data = data

    def __str__(self) -> str:
        return f"{self.code.value} {self.data}" if self.data else self.code.value


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field of an ask that cannot be taken.

    `pointer` is a JSON pointer ("/ask/count"), `code` a stable word
    ("required", "unknown_field", "too_small", "too_large", "not_a_choice", ...),
    `data` the numbers ({"min": 1, "max": 64}).
    """

    pointer: str
    code: str
    data: dict[str, Any]


class Invalid(Refusal):
    """One or more fields are wrong; carries a `FieldError` for each."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__(
            Code.INVALID,
            errors=[{"pointer": e.pointer, "code": e.code, **e.data} for e in errors],
        )
        self.errors = tuple(errors)


def invalid(pointer: str, code: str, **data: Any) -> Invalid:
    """An `Invalid` for a single field."""
    return Invalid([FieldError(pointer, code, data)])
