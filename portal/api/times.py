"""Times as REST writes them, and what is borrowed over time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pool.core.admission import Loan


def instant(at: datetime | None) -> str | None:
    """RFC 3339 in UTC with Z; None stays null."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None


def loans(borrowed: Iterable[Loan]) -> list[dict[str, Any]]:
    """When how much may be taken back, in thousandths of a GPU; `end` null: it has none."""
    return [
        {"start": instant(one.period.start), "end": instant(one.period.end), "milli": one.milli}
        for one in borrowed
    ]
