"""What a slice counts, and the most that is in use at any one instant.

Charges are thousandths of a GPU (milli). Whether a booking fits a team's quota is decided in admission.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pool.core.period import Period

#: One whole GPU.
WHOLE = 1000


def charge_milli(size: int, grid: int) -> int:
    """What `size` memory slices of `grid` count: rounded down, so that a GPU never sums above 1000."""
    if not 1 <= size <= grid:
        raise ValueError(f"size {size} of grid {grid}")
    return WHOLE * size // grid


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
