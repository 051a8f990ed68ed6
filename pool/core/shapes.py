"""What can be asked for: MIG slices, whole GPUs, shares of GPUs; how an ask is read and written.

A door hands over decoded JSON and gets an `Ask`, or every wrong field at
once. Whether an ask fits anywhere is decided in placement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from pool.core import mig, wire
from pool.core.errors import FieldError, Invalid, invalid

MAX_COUNT = 1024
MAX_MODELS = 16
MAX_COMPUTE_SLICES = mig.MAX_GRID
#: All of a GPU's memory or compute, in percent.
ALL_PCT = 100
_MAX_NAME = 100
#: So many unknown fields are named; the rest add nothing.
_MAX_UNKNOWN = 20


T = TypeVar("T")


class Class(StrEnum):
    """How work behaves when capacity is short (decided with the quota)."""

    ONLINE = "online"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class Sharing(StrEnum):
    """How the shares of a GPU are kept apart (wire.Sharing): by the driver, by a library, or not at all."""

    MPS = "mps"
    HAMI = "hami"
    TIMESLICE = "timeslice"


@dataclass(frozen=True, slots=True)
class MigAsk:
    """`count` MIG slices: a profile by name, or the smallest that has the minimum.

    `memory_mib` and `compute_slices` are minimums, and hold for a named profile
    too. `models` () means any model; `node` pins one node; `same_node` wants
    all slices on one.
    """

    profile: str | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None
    count: int = 1
    models: tuple[str, ...] = ()
    same_node: bool = False
    node: str | None = None


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """`count` whole GPUs of these models (() any) with at least `memory_mib` each."""

    models: tuple[str, ...] = ()
    memory_mib: int | None = None
    count: int = 1
    same_node: bool = False
    node: str | None = None


@dataclass(frozen=True, slots=True)
class ShareAsk:
    """`count` shares, each with memory and compute of its own choice.

    Exactly one of `memory_mib` and `memory_pct` is set; the percentage is of what
    can be shared of the GPU that it gets. `guaranteed` percent of the compute
    are always there, `limit` is the most. `sharing` None is any kind, but one that
    enforces neither (time slicing) only where `accept_not_enforced` says so.
    """

    memory_mib: int | None = None
    memory_pct: int | None = None
    guaranteed: int = 0
    limit: int = ALL_PCT
    count: int = 1
    models: tuple[str, ...] = ()
    same_node: bool = False
    node: str | None = None
    sharing: Sharing | None = None
    accept_not_enforced: bool = False


Ask = MigAsk | GpuAsk | ShareAsk

_COMMON = ("kind", "model", "models", "memory_mib", "count", "same_node", "node")
_FIELDS = {
    "mig": (*_COMMON, "profile", "compute_slices"),
    "gpu": _COMMON,
    "share": (*_COMMON, "memory_pct", "compute", "sharing", "accept_not_enforced"),
}
_KIND = {MigAsk: "mig", GpuAsk: "gpu", ShareAsk: "share"}
_COMPUTE = ("guaranteed", "limit")


def parse_ask(raw: object, pointer: str = "/ask", reported_names: Collection[str] = ()) -> Ask:
    """The ask in decoded JSON; raises `Invalid` with every wrong field.

    A profile has to be one of the catalogue or of `reported_names` (those that
    drivers of the pool print). Unset optional fields may be null. `model: X` is
    short for `models: [X]`.
    """
    known = mig.profile_names() | frozenset(reported_names)
    return _read(raw, pointer, known)


def stored_ask(raw: object) -> Ask:
    """An ask that was accepted earlier; its profile may since be unknown."""
    return _read(raw, "/ask", None)


def ask_json(ask: Ask) -> dict[str, Any]:
    """The ask as JSON, without what is unset; `stored_ask` reads it back."""
    out: dict[str, Any] = {"kind": _KIND[type(ask)]}
    if isinstance(ask, MigAsk):
        out |= {"profile": ask.profile, "compute_slices": ask.compute_slices}
    out |= {"memory_mib": ask.memory_mib, "count": ask.count, "models": list(ask.models) or None}
    out |= {"same_node": ask.same_node or None, "node": ask.node}
    if isinstance(ask, ShareAsk):
        out |= {"memory_pct": ask.memory_pct, "compute": {"guaranteed": ask.guaranteed, "limit": ask.limit}}
        out |= {"sharing": ask.sharing, "accept_not_enforced": ask.accept_not_enforced or None}
    return {key: value for key, value in out.items() if value is not None}


def check_class(ask: Ask, klass: Class, pointer: str = "/ask") -> None:
    """Refuses with `Invalid` a share that may take more than its guarantee: batch work alone may."""
    if isinstance(ask, ShareAsk) and klass is not Class.BATCH and ask.limit != ask.guaranteed:
        raise invalid(
            f"{pointer}/compute/limit", "only_batch_above", guaranteed=ask.guaranteed, limit=ask.limit
        )


class _Wrong(Exception):
    """One value that cannot be taken; becomes a `FieldError` at its pointer."""

    def __init__(self, code: str, **data: Any) -> None:
        super().__init__(code)
        self.code = code
        self.data = data


class _Reader:
    """Takes fields out of a JSON object and collects what is wrong with them."""

    def __init__(self, raw: Mapping[Any, Any], pointer: str) -> None:
        self.raw = raw
        self.pointer = pointer
        self.errors: list[FieldError] = []

    def wrong(self, field: str, code: str, **data: Any) -> None:
        self.errors.append(FieldError(f"{self.pointer}/{field}", code, data))

    def take(self, field: str, read: Callable[[object], T], default: T) -> T:
        """The field as `read` takes it; `default` when it is unset or wrong."""
        value = self.raw.get(field)
        if value is None:
            return default
        try:
            return read(value)
        except _Wrong as error:
            self.wrong(field, error.code, **error.data)
            return default


def _read(raw: object, pointer: str, known: frozenset[str] | None) -> Ask:
    if not isinstance(raw, Mapping):
        raise Invalid([FieldError(pointer, "not_an_object", {})])
    reader = _Reader(raw, pointer)
    kind = raw.get("kind")
    if kind is None:
        reader.wrong("kind", "required", choices=sorted(_FIELDS))
    elif not isinstance(kind, str) or kind not in _FIELDS:
        reader.wrong("kind", "not_a_choice", choices=sorted(_FIELDS))
        kind = None
    _refuse_unknown(reader, _FIELDS.get(kind or "mig", ()))
    # Every field is looked at even without a kind, so that one answer names all that is wrong.
    read = _OF_KIND.get(kind or "mig")
    ask = read(reader) if read else _mig(reader, known)
    if reader.errors:
        raise Invalid(reader.errors)
    return ask


def _mig(reader: _Reader, known: frozenset[str] | None) -> MigAsk:
    sized = any(reader.raw.get(f) is not None for f in ("profile", "memory_mib", "compute_slices"))
    if not sized and reader.raw.get("kind") == "mig":
        reader.wrong("profile", "required", instead=["memory_mib", "compute_slices"])
    return MigAsk(
        profile=reader.take("profile", lambda v: _profile(v, known), None),
        memory_mib=_memory(reader),
        compute_slices=reader.take("compute_slices", lambda v: _integer(v, 1, MAX_COMPUTE_SLICES), None),
        count=_count(reader),
        models=_models(reader),
        same_node=reader.take("same_node", _boolean, False),
        node=reader.take("node", _node, None),
    )


def _gpu(reader: _Reader) -> GpuAsk:
    return GpuAsk(
        models=_models(reader),
        memory_mib=_memory(reader),
        count=_count(reader),
        same_node=reader.take("same_node", _boolean, False),
        node=reader.take("node", _node, None),
    )


def _share(reader: _Reader) -> ShareAsk:
    memory_mib = _memory(reader)
    memory_pct = reader.take("memory_pct", lambda v: _integer(v, 1, ALL_PCT), None)
    given = [name for name in ("memory_mib", "memory_pct") if reader.raw.get(name) is not None]
    if not given:
        reader.wrong("memory_mib", "required", instead=["memory_pct"])
    elif len(given) == 2:
        reader.wrong("memory_pct", "not_together", other="memory_mib")
    guaranteed, limit = reader.take("compute", lambda v: _compute(reader, v), (0, ALL_PCT))
    if reader.raw.get("compute") is None:
        reader.wrong("compute", "required")
    sharing = reader.take("sharing", _sharing, None)
    accepted = reader.take("accept_not_enforced", _boolean, False)
    if sharing is Sharing.TIMESLICE and not accepted:
        reader.wrong("accept_not_enforced", "not_enforced")
    return ShareAsk(
        memory_mib=memory_mib,
        memory_pct=memory_pct,
        guaranteed=guaranteed,
        limit=limit,
        count=_count(reader),
        models=_models(reader),
        same_node=reader.take("same_node", _boolean, False),
        node=reader.take("node", _node, None),
        sharing=sharing,
        accept_not_enforced=accepted,
    )


def _compute(outer: _Reader, value: object) -> tuple[int, int]:
    """(guaranteed, limit); where only one is given, the other is the same."""
    if not isinstance(value, Mapping):
        raise _Wrong("not_an_object")
    reader = _Reader(value, f"{outer.pointer}/compute")
    _refuse_unknown(reader, _COMPUTE)
    guaranteed = reader.take("guaranteed", lambda v: _integer(v, 0, ALL_PCT), None)
    limit = reader.take("limit", lambda v: _integer(v, 1, ALL_PCT), None)
    if all(value.get(name) is None for name in _COMPUTE):
        reader.wrong("guaranteed", "required", instead=["limit"])
    elif guaranteed is not None and limit is not None and limit < guaranteed:
        reader.wrong("limit", "too_small", min=guaranteed, value=limit)
    elif guaranteed == 0 and limit is None and not reader.errors:
        # Without a limit of its own nothing at all would be asked.
        reader.wrong("limit", "required")
    outer.errors += reader.errors
    low = guaranteed if guaranteed is not None else limit or 0
    return low, limit if limit is not None else low


def _sharing(value: object) -> Sharing:
    if not isinstance(value, str) or value not in set(Sharing):
        raise _Wrong("not_a_choice", choices=[kind.value for kind in Sharing])
    return Sharing(value)


_OF_KIND: Mapping[str, Callable[[_Reader], Ask]] = {"gpu": _gpu, "share": _share}


def _refuse_unknown(reader: _Reader, fields: Collection[str]) -> None:
    unknown = sorted(_shown(key) for key in reader.raw if key not in fields)
    for name in unknown[:_MAX_UNKNOWN]:
        reader.wrong(name, "unknown_field", known=sorted(fields))


def _shown(key: object) -> str:
    """A key as a JSON pointer can carry it: short, printable, escaped."""
    text = str(key).encode("ascii", "backslashreplace").decode("ascii")[:_MAX_NAME]
    return "".join(c if c.isprintable() else "?" for c in text).replace("~", "~0").replace("/", "~1")


def _count(reader: _Reader) -> int:
    if "count" in reader.raw and reader.raw["count"] is None:
        reader.wrong("count", "required", min=1, max=MAX_COUNT)
    return reader.take("count", lambda v: _integer(v, 1, MAX_COUNT), 1)


def _memory(reader: _Reader) -> int | None:
    return reader.take("memory_mib", lambda v: _integer(v, 1, mig.MAX_MEMORY_MIB), None)


def _models(reader: _Reader) -> tuple[str, ...]:
    if reader.raw.get("model") is None:
        return reader.take("models", _names, ())
    if reader.raw.get("models") is not None:
        reader.wrong("model", "not_together", other="models")
    return reader.take("model", lambda v: (_text(v),), ())


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _Wrong("not_a_list")
    if not 1 <= len(value) <= MAX_MODELS:
        raise _Wrong("too_few" if not value else "too_many", min=1, max=MAX_MODELS)
    return tuple(dict.fromkeys(_text(v) for v in value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("not_a_string")
    # Also keeps out NUL and lone surrogates, which the database cannot store.
    if not value.strip() or len(value) > _MAX_NAME or not value.isprintable():
        raise _Wrong("malformed", max_length=_MAX_NAME)
    return value.strip()


def _node(value: object) -> str:
    name = _text(value)
    if not re.fullmatch(wire.NODE_NAME.strip("^$"), name):
        raise _Wrong("malformed", max_length=63)
    return name


def _profile(value: object, known: frozenset[str] | None) -> str:
    name = _text(value).removeprefix("MIG ")
    if known is not None and name not in known:
        raise _Wrong("unknown_profile", known=sorted(known))
    return name


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("not_a_boolean")
    return value


def _integer(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong("not_an_integer", min=low, max=high)
    if value < low:
        raise _Wrong("too_small", min=low, max=high, **_echo(value))
    if value > high:
        raise _Wrong("too_large", min=low, max=high, **_echo(value))
    return value


def _echo(value: int) -> dict[str, int]:
    """The number that was asked, as long as every JSON reader keeps it exact."""
    return {"value": value} if abs(value) < 2**53 else {}
