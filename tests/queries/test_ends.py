"""The keys of what is worth a word; the rest is tested through services.ends."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from psycopg.types.range import TimestamptzRange

from pool.models import Reservation
from pool.queries import ends

START, END = datetime(2027, 3, 1, 12, tzinfo=UTC), datetime(2027, 3, 1, 13, tzinfo=UTC)


def test_another_end_is_another_matter() -> None:
    row = Reservation(pk=UUID(int=1), period=TimestamptzRange(START, END))
    first = ends.end_key(row)
    assert first == f"ends_soon:{row.pk}:{int(END.timestamp())}"
    row.period = TimestamptzRange(START, END.replace(hour=14))
    assert ends.end_key(row) != first
    assert ends.late_key(row) == f"started_late:{row.pk}"
