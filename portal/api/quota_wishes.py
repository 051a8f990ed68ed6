"""What bodies about quota say, field by field. What the amounts may be is for the services to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any

from pool.core.period import parse_instant
from pool.services.quota import MOST_LARGE, MOST_MILLI, Conditions
from pool.services.quota_requests import TEXT_LIMIT, Amounts
from portal.api.wishes import NAME_LIMIT, Reader

MODEL_LIMIT = 64
MOST_VERSION = 2**31 - 1

_AMOUNTS = tuple(one.name for one in fields(Amounts))
_CONDITIONS = tuple(one.name for one in fields(Conditions))
LINE = (
    *("team", "pool", "model", "guaranteed_milli", "cap_milli"),
    *(*_CONDITIONS, "version", "accept_above"),
)
REQUEST = ("team", "pool", "model", *_AMOUNTS, "start", "end", "justification", "renews")
DECISION = (*_AMOUNTS, "start", "end", "answer", "version")
DENIAL = ("answer", "version")


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is to be. `accept_above`: set it although something is promised above it."""

    team: str
    pool: str
    model: str
    guaranteed_milli: int
    cap_milli: int
    conditions: Conditions
    version: int | None
    accept_above: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; `renews` is the id of the request that this one prolongs."""

    team: str
    pool: str
    model: str
    amounts: Amounts
    start: datetime
    end: datetime
    justification: str
    renews: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is granted where it is not what was asked: `amounts` has only what was named."""

    amounts: Mapping[str, int]
    start: datetime | None
    end: datetime | None
    answer: str
    version: int | None


def line(body: Mapping[str, Any]) -> Line:
    """The body of POST /quota: all of the line, what is absent is not limited."""
    read = Reader(body, LINE)
    kinds = read.texts("kinds", NAME_LIMIT)
    found = Line(
        team=read.text("team", NAME_LIMIT),
        pool=read.text("pool", NAME_LIMIT),
        model=read.text("model", MODEL_LIMIT, default=""),
        guaranteed_milli=read.integer("guaranteed_milli", MOST_MILLI, 0),
        cap_milli=_needed(read, "cap_milli", MOST_MILLI),
        conditions=Conditions(
            lend_milli=read.optional("lend_milli", MOST_MILLI),
            unit=read.text("unit", NAME_LIMIT, default="slots"),
            unit_size=read.integer("unit_size", MOST_MILLI, 1),
            weight=read.integer("weight", MOST_MILLI, 1),
            memory_mib=read.optional("memory_mib", MOST_LARGE),
            budget_milli_hours=read.optional("budget_milli_hours", MOST_LARGE),
            kinds=tuple(kinds),
            largest_milli=read.optional("largest_milli", MOST_MILLI),
            most_gpus=read.optional("most_gpus", MOST_MILLI),
            longest_minutes=read.optional("longest_minutes", MOST_LARGE),
            ahead_minutes=read.optional("ahead_minutes", MOST_LARGE),
        ),
        version=read.optional("version", MOST_VERSION),
        accept_above=bool(read.boolean("accept_above")),
    )
    read.done()
    return found


def request(body: Mapping[str, Any]) -> Request:
    """The body of POST /quota/requests."""
    read = Reader(body, REQUEST)
    start, end = read.parsed("start", parse_instant), read.parsed("end", parse_instant)
    for name in ("start", "end"):
        if body.get(name) is None:
            read.missing(name)
    found = partial(
        Request,
        team=read.text("team", NAME_LIMIT),
        pool=read.text("pool", NAME_LIMIT),
        model=read.text("model", MODEL_LIMIT, default=""),
        justification=read.text("justification", TEXT_LIMIT),
        renews=read.optional("renews", MOST_VERSION),
        amounts=Amounts(**{name: read.integer(name, MOST_LARGE, 0) for name in _AMOUNTS}),
    )
    read.done()
    assert start is not None
    assert end is not None
    return found(start=start, end=end)


def decision(body: Mapping[str, Any]) -> Decision:
    """The body of POST /quota/requests/<id>/approve; {} grants what was asked."""
    read = Reader(body, DECISION)
    named = {name: read.optional(name, MOST_LARGE) for name in _AMOUNTS}
    found = Decision(
        amounts={name: value for name, value in named.items() if value is not None},
        start=read.parsed("start", parse_instant),
        end=read.parsed("end", parse_instant),
        answer=read.text("answer", TEXT_LIMIT, default=""),
        version=read.optional("version", MOST_VERSION),
    )
    read.done()
    return found


def denial(body: Mapping[str, Any]) -> tuple[str, int | None]:
    """The body of a no: the answer, and the version that was read."""
    read = Reader(body, DENIAL)
    found = read.text("answer", TEXT_LIMIT), read.optional("version", MOST_VERSION)
    read.done()
    return found


def version(body: Mapping[str, Any]) -> int | None:
    """The body of an action that takes nothing but the version that was read."""
    read = Reader(body, ("version",))
    found = read.optional("version", MOST_VERSION)
    read.done()
    return found


def comment(body: Mapping[str, Any]) -> str:
    """The body of POST /quota/requests/<id>/comments."""
    read = Reader(body, ("text",))
    found = read.text("text", TEXT_LIMIT)
    read.done()
    return found


def _needed(read: Reader, name: str, most: int) -> int:
    if read.body.get(name) is None:
        read.missing(name)
        return 0
    return read.integer(name, most, 0)
