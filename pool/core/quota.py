"""Charges, and whether a booking fits a team's quota lines over time.

Amounts are thousandths of a GPU (milli). The limit is the peak at any
instant, never a sum over a window. Who may borrow is not decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_lines import NO_LIMITS, Grant, Limits, Line, Unit

__all__ = [
    "NO_LIMITS",
    "WHOLE",
    "Grant",
    "Limits",
    "Line",
    "Unit",
    "Use_",
    "charge_milli",
    "check",
    "closed",
    "left",
    "peak",
]

#: One whole GPU.
WHOLE = 1000


def charge_milli(size: int, grid: int) -> int:
    """What `size` memory slices of `grid` count: rounded down, so that a GPU never sums above 1000."""
    if not 1 <= size <= grid:
        raise ValueError(f"size {size} of grid {grid}")
    return WHOLE * size // grid


class Use_(NamedTuple):
    """An amount in use over a period."""

    period: Period
    milli: int


def peak(uses: Iterable[tuple[Period, int]], within: Period) -> int:
    """The most that is in use at any one instant of `within`.

    Periods are half-open: at one instant, what ends is gone before what starts counts.
    """
    changes: list[tuple[datetime, int]] = []
    for period, milli in uses:
        if not period.overlaps(within):
            continue
        changes.append((max(period.start, within.start), milli))
        if period.end is not None:
            changes.append((period.end, -milli))
    # At one instant the negative amounts sort first.
    changes.sort()
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def left(line: Line, uses: Iterable[tuple[Period, int]], period: Period) -> int:
    """What the line still allows at every instant of `period`, in milli; never below 0."""
    return max(0, line.cap_milli - peak(uses, period))


def closed(line: Line, uses: Iterable[tuple[Period, int]], milli: int, within: Period) -> list[Period]:
    """When in `within` the line has less left than `milli`: half-open periods, in order."""
    changes: dict[datetime, int] = defaultdict(int)
    changes[within.start] += 0
    for period, amount in uses:
        if period.overlaps(within):
            changes[max(period.start, within.start)] += amount
            if period.end is not None:
                changes[period.end] -= amount
    found: list[Period] = []
    now, since = 0, None
    for instant in sorted(changes):
        now += changes[instant]
        if now + milli > line.cap_milli:
            since = since or instant
        elif since is not None:
            found.append(Period(since, instant))
            since = None
    return found if since is None else [*found, Period(since, None)]


def check(
    lines: Sequence[Line],
    model_charges: Mapping[str, int],
    uses_by_line: Mapping[int, Iterable[tuple[Period, int]]],
    period: Period,
) -> None:
    """Refuses with QUOTA_EXCEEDED when a line has less left than the booking adds to it.

    `model_charges`: milli asked per GPU model. Each model counts on its own
    line, if there is one, and on the line for any, if there is one; a model
    without either has cap 0. Data: reason (over_cap or no_line), line (id or
    None), model (None: any), cap, used (the peak in `period`), asked, in milli.
    """
    asked = _asked_by_line(lines, model_charges)
    for line in lines:
        if not asked[line.id]:
            continue
        used = peak(uses_by_line.get(line.id, ()), period)
        if used + asked[line.id] > line.cap_milli:
            raise _refusal("over_cap", line.model, line.cap_milli, used, asked[line.id], line=line.id)


def _asked_by_line(lines: Sequence[Line], model_charges: Mapping[str, int]) -> dict[int, int]:
    asked = {line.id: 0 for line in lines}
    for model, milli in model_charges.items():
        on = [line for line in lines if line.model in (model, None)]
        if not on:
            raise _refusal("no_line", model, 0, 0, milli, line=None)
        for line in on:
            asked[line.id] += milli
    return asked


def _refusal(reason: str, model: str | None, cap: int, used: int, asked: int, **data: Any) -> Refusal:
    return Refusal(Code.QUOTA_EXCEEDED, reason=reason, model=model, cap=cap, used=used, asked=asked, **data)
