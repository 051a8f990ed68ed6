"""Which reported values make sense, and how fresh a node's reports are.

A nonsense value is dropped alone, counted, and shown as not measured; its
report is still taken. The clock is the caller's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

import msgspec

from pool.core import wire

#: Reports in a row that a node may miss before its GPUs are unknown.
MISSED = 3
#: Reports in a row that an unknown node must send to be back.
GOOD = 2

_SOURCE = re.compile(r"[a-z0-9_-]{1,16}", re.ASCII)


class Kind(StrEnum):
    """What a window measures; the unit is the one in the wire's field name."""

    UTILIZATION = "utilization"
    MEMORY = "memory"
    POWER = "power"
    TEMPERATURE = "temperature"


#: Lowest and highest value that makes sense: percent, MiB, watts, degrees Celsius.
BOUNDS: dict[Kind, tuple[float, float]] = {
    Kind.UTILIZATION: (0, 100),
    Kind.MEMORY: (0, 4 * 1024 * 1024),
    Kind.POWER: (0, 5000),
    Kind.TEMPERATURE: (-50, 150),
}

#: Used memory may exceed a total that was rounded.
_MEMORY_SLACK = 1.02
#: A mean that was rounded may leave its window by so much.
_ROUNDING = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """A window with what made sense; None is not measured."""

    min: float | None
    mean: float | None
    max: float | None
    last: float | None
    source: str


def clean_window(raw: object, kind: Kind | str, total_mib: float | None = None) -> tuple[Reading | None, int]:
    """The wire.Window (or its JSON) without its nonsense, and how many values that were.

    Dropped: what is no window at all (as one value); what is no finite number,
    or lies outside `BOUNDS` (memory also above 102 % of `total_mib`); and min,
    mean and max together when they contradict one another. None when nothing
    is left.
    """
    if raw is None:
        return None, 0
    window = _window(raw)
    if window is None:
        return None, 1
    low, high = BOUNDS[Kind(kind)]
    if kind == Kind.MEMORY and total_mib is not None:
        high = min(high, total_mib * _MEMORY_SLACK)
    given = (window.min, window.mean, window.max, window.last)
    least, mean, most, last = (_number(value, low, high) for value in given)
    if not _ordered(least, mean, most):
        least = mean = most = None
    kept = (least, mean, most, last)
    dropped = sum(v is not None for v in given) - sum(v is not None for v in kept)
    if all(v is None for v in kept):
        return None, dropped
    source = window.source if _SOURCE.fullmatch(window.source) else "unknown"
    return Reading(least, mean, most, last, source), dropped


def _window(raw: object) -> wire.Window | None:
    if isinstance(raw, wire.Window):
        return raw
    try:
        return msgspec.convert(raw, wire.Window)
    except msgspec.ValidationError:
        return None


def _number(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # The bounds come first: a huge int has no float.
    return float(value) if low <= value <= high and math.isfinite(value) else None


def _ordered(least: float | None, mean: float | None, most: float | None) -> bool:
    present = [v for v in (least, mean, most) if v is not None]
    return all(a <= b + _ROUNDING for a, b in pairwise(present))


def clean_int(value: object, low: int, high: int) -> tuple[int | None, int]:
    """The whole number within the bounds and 0, or None and how many values were dropped (0 or 1).

    None is not measured and drops nothing. A float without fraction counts as whole.
    """
    if value is None:
        return None, 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, 1
    if not low <= value <= high or value != int(value):
        return None, 1
    return int(value), 0


def stale(last_received: datetime | None, now: datetime, report_s: float, missed: int = MISSED) -> bool:
    """Whether `missed` reports, due every `report_s` seconds, have not come. Never heard is stale.

    Both times are the portal's own, so a node's clock has no say.
    """
    return last_received is None or now - last_received > timedelta(seconds=report_s * missed)


@dataclass(frozen=True, slots=True)
class Freshness:
    """`unknown_since` None: known. `good`: reports in a row since it went unknown."""

    unknown_since: datetime | None
    good: int


def heard(before: Freshness) -> Freshness:
    """After a report: an unknown node is back with its second good one."""
    if before.unknown_since is None:
        return before
    good = before.good + 1
    return Freshness(None, 0) if good >= GOOD else Freshness(before.unknown_since, good)


def silent(before: Freshness, last_received: datetime | None, now: datetime, report_s: float) -> Freshness:
    """After a look at the clock: a stale node is unknown since it was last heard.

    Unknown stays unknown since then; good reports before a new silence do not count.
    """
    if not stale(last_received, now, report_s):
        return before
    return Freshness(before.unknown_since or last_received or now, 0)
