"""What can be asked for: MIG slices, whole GPUs, shares of GPUs; how an ask is read and written.

A door hands over decoded JSON and gets an `Ask`, or every wrong field at
once. Whether an ask fits anywhere is decided in placement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pool.core import mig, wire
from pool.core.asks import ALL_PCT, Ask, Class, GpuAsk, MigAsk, ShareAsk, Sharing, Spread
from pool.core.errors import FieldError, Invalid, invalid

__all__ = [
    "ALL_PCT",
    "MAX_COUNT",
    "Ask",
    "Class",
    "GpuAsk",
    "MigAsk",
    "ShareAsk",
    "Sharing",
    "Spread",
    "ask_json",
    "check_class",
    "kind_of",
    "parse_ask",
    "stored_ask",
]

MAX_COUNT = 1024
MAX_MODELS = 16
MAX_COMPUTE_SLICES = mig.MAX_GRID
#: The most that an ask can want of a node for each of its pieces: 4,096 cpus, 64 TiB.
MAX_CPU_MILLI = 4_096_000
MAX_NODE_MIB = 1 << 26
_MAX_NAME = 100
#: So many unknown fields are named; the rest add nothing.
_MAX_UNKNOWN = 20

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_WHERE = ("same_node", "node", "spread", "node_cpu_milli", "node_memory_mib")
_COMMON = ("kind", "model", "models", "memory_mib", "count", *_WHERE)
#: What needs traffic between GPUs: no slice and no share has any.
_LINKED = ("same_nvlink_domain", "segment")
_FIELDS = {
    "mig": (*_COMMON, "profile", "profile_any", "compute_slices"),
    "gpu": (*_COMMON, *_LINKED),
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


def kind_of(ask: Ask) -> str:
    """mig, gpu or share."""
    return _KIND[type(ask)]


def ask_json(ask: Ask) -> dict[str, Any]:
    """The ask as JSON, without what is unset; `stored_ask` reads it back."""
    out: dict[str, Any] = {"kind": _KIND[type(ask)]}
    if isinstance(ask, MigAsk):
        out |= {"profile": ask.profile, "profile_any": list(ask.profile_any) or None}
        out |= {"compute_slices": ask.compute_slices}
    out |= {"memory_mib": ask.memory_mib, "count": ask.count, "models": list(ask.models) or None}
    out |= {"same_node": ask.same_node or None, "node": ask.node, "spread": ask.spread}
    out |= {"node_cpu_milli": ask.node_cpu_milli or None, "node_memory_mib": ask.node_memory_mib or None}
    if isinstance(ask, GpuAsk):
        out |= {"same_nvlink_domain": ask.same_nvlink_domain or None, "segment": ask.segment}
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
    sizes = ("profile", "profile_any", "memory_mib", "compute_slices")
    if not any(reader.raw.get(f) is not None for f in sizes) and reader.raw.get("kind") == "mig":
        reader.wrong("profile", "required", instead=["memory_mib", "compute_slices", "profile_any"])
    if reader.raw.get("profile") is not None and reader.raw.get("profile_any") is not None:
        reader.wrong("profile_any", "not_together", other="profile")
    return MigAsk(
        profile=reader.take("profile", lambda v: _profile(v, known), None),
        profile_any=reader.take("profile_any", lambda v: _list(v, lambda one: _profile(one, known)), ()),
        memory_mib=_memory(reader),
        compute_slices=reader.take("compute_slices", lambda v: _integer(v, 1, MAX_COMPUTE_SLICES), None),
        count=_count(reader),
        models=_models(reader),
        **_where(reader),
    )


def _gpu(reader: _Reader) -> GpuAsk:
    count = _count(reader)
    segment = reader.take("segment", lambda v: _integer(v, 1, MAX_COUNT), None)
    if segment is not None and segment < count and count % segment:
        reader.wrong("segment", "does_not_divide", count=count, segment=segment)
    return GpuAsk(
        models=_models(reader),
        memory_mib=_memory(reader),
        count=count,
        same_nvlink_domain=reader.take("same_nvlink_domain", _boolean, False),
        segment=segment,
        **_where(reader),
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
    sharing = reader.take("sharing", lambda v: _choice(v, Sharing), None)
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
        sharing=sharing,
        accept_not_enforced=accepted,
        **_where(reader),
    )


def _where(reader: _Reader) -> dict[str, Any]:
    """The fields that say on which nodes, and what each piece takes of its node."""
    same_node = reader.take("same_node", _boolean, False)
    spread = reader.take("spread", lambda v: _choice(v, Spread), None)
    node = reader.take("node", _node, None)
    if spread is not None and (same_node or node is not None):
        reader.wrong("spread", "not_together", other="same_node" if same_node else "node")
    return {
        "same_node": same_node,
        "node": node,
        "spread": spread,
        "node_cpu_milli": reader.take("node_cpu_milli", lambda v: _integer(v, 0, MAX_CPU_MILLI), 0),
        "node_memory_mib": reader.take("node_memory_mib", lambda v: _integer(v, 0, MAX_NODE_MIB), 0),
    }


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


def _choice(value: object, choices: type[E]) -> E:
    if not isinstance(value, str) or value not in set(choices):
        raise _Wrong("not_a_choice", choices=[one.value for one in choices])
    return choices(value)


_OF_KIND: Mapping[str, Callable[[_Reader], Ask]] = {"gpu": _gpu, "share": _share}


def _refuse_unknown(reader: _Reader, fields: Collection[str]) -> None:
    elsewhere = set(_LINKED) - set(fields) if "kind" in fields else set()
    for name in sorted(elsewhere):
        if reader.raw.get(name) not in (None, False):
            reader.wrong(name, "only_whole_gpus")
    unknown = sorted(_shown(key) for key in reader.raw if key not in fields and key not in elsewhere)
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
    return _list(value, _text)


def _list(value: object, read: Callable[[object], str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _Wrong("not_a_list")
    if not 1 <= len(value) <= MAX_MODELS:
        raise _Wrong("too_few" if not value else "too_many", min=1, max=MAX_MODELS)
    return tuple(dict.fromkeys(read(v) for v in value))


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
