"""Times as REST writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(at: datetime | None) -> str | None:
    """RFC 3339 in UTC with Z; None stays null."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None
