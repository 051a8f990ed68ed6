"""Which reported values make sense, how fresh a node's reports are, and what a fault of a GPU calls for.

A nonsense value is dropped alone, counted, and shown as not measured; its
report is still taken. The clock is the caller's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType

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


# --- Faults -------------------------------------------------------------------


class Action(StrEnum):
    """What a fault calls for; stable names, kept with the fault."""

    #: A program's own mistake: put down, nothing else.
    NOTE = "note"
    #: The program that it hit has to end; the GPU goes on.
    END = "end"
    #: Nothing new starts on the GPU until an operator has looked.
    DRAIN = "drain"
    #: As drain, and the GPU is reset once it is empty.
    RESET = "reset"
    #: The GPU is gone; nothing on it goes on.
    LOST = "lost"


#: Faults that keep new bookings off the GPU until it is given back.
OUT_OF_USE = frozenset({Action.DRAIN, Action.RESET, Action.LOST})

#: Xid -> action. Source: the table of Xids that NVIDIA publishes with its driver (deploy/xid-errors), by what
#: it says is to be done at once. 63 and 64 stand for a remapping that only a reset completes; 154 repeats
#: what the Xid before it asked for, and its own event does not say what that was.
XIDS: Mapping[int, Action] = MappingProxyType(
    {
        **dict.fromkeys((8, 13, 31, 32, 37, 43, 45, 68, 69, 92, 109, 154), Action.NOTE),
        94: Action.END,
        **dict.fromkeys((46, 48, 62, 63, 64, 95, 119, 120, 140), Action.RESET),
        74: Action.DRAIN,
        79: Action.LOST,
    }
)


def action(xid: int) -> Action:
    """What this Xid calls for. One that is not in the table drains: it may be hardware, so a person looks."""
    return XIDS.get(xid, Action.DRAIN)


class FaultKind(StrEnum):
    XID = "xid"
    #: Its handle answers nothing any more.
    LOST = "lost"
    #: Rows of memory wait for a reset to be replaced.
    REMAP = "remap"
    #: No spare rows are left: a reset does not help.
    REMAP_FAILED = "remap_failed"


def signs(*, lost: bool, pending: bool | None, failure: bool | None) -> dict[FaultKind, Action]:
    """What the state of a GPU itself says is wrong with it now, beside any Xid. None is not known."""
    found = {}
    if lost:
        found[FaultKind.LOST] = Action.LOST
    if pending:
        found[FaultKind.REMAP] = Action.RESET
    if failure:
        found[FaultKind.REMAP_FAILED] = Action.DRAIN
    return found


#: A reset that nobody has to carry out any more: the node was booted, which resets its GPUs.
BY_BOOT = 0


def is_good(action: Action, asked: int | None, done: int, *, readable: bool, signs: Collection[str]) -> bool:
    """Whether a report counts towards the return of a GPU with an open fault of `action`.

    It describes the GPU and shows nothing that takes it out of use; and what
    calls for a reset has had it: number `asked` (None: not yet asked for) is
    among the `done`.
    """
    if not readable or signs:
        return False
    return action != Action.RESET or (asked is not None and done >= asked)
