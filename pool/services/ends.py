"""Tells the owners of what runs: that its end is near, and that it started later than it was booked for.

An end is told 30 minutes before it, or when a tenth of the time is left, whichever is later: once for
each end, so again after it was extended. Where the same owner goes on without a break nothing is told.
"""

from __future__ import annotations

from datetime import datetime

from pool.queries import ends
from pool.services import locks, notices


@locks.use_case
def tell(*, now: datetime) -> int:
    """Tell of what ends soon and of what started late; how many messages are new. Twice tells once."""
    told = 0
    for row in ends.ending(now):
        data = {"end": row.period.upper.isoformat(), "left_s": int((row.period.upper - now).total_seconds())}
        key = ends.end_key(row)
        told += notices.tell(
            notices.concerned(row), "ends_soon", key=key, now=now, reservation=row, data=data
        )
    for row in ends.late(now):
        assert row.started_at is not None
        data = {"planned": row.period.lower.isoformat(), "start": row.started_at.isoformat()}
        key = ends.late_key(row)
        told += notices.tell(
            notices.concerned(row), "started_late", key=key, now=now, reservation=row, data=data
        )
    return told
