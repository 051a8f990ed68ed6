"""What runs and is worth a word to its owner: it ends soon, or it started later than it was to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from pool.models import Reservation

#: So long before an end, or at this part of the whole time, if that is later.
BEFORE_END = timedelta(minutes=30)
PART = 10
#: What started by so much later than it was to is told of, while it is news.
LATE = timedelta(minutes=2)
NEWS = timedelta(hours=1)
#: So many at once.
MOST = 500

# What goes on with the same owner and team without a break does not end, and what is recalled was told so.
_ENDING = """
SELECT mine.id FROM pool_reservation mine
WHERE mine.state = 'active' AND mine.recall_at IS NULL
    AND upper(mine.period) > %(now)s AND upper(mine.period) <= %(now)s + %(before)s
    AND upper(mine.period)
        - least(%(before)s, (upper(mine.period) - lower(mine.period)) / %(part)s) <= %(now)s
    AND NOT EXISTS (
        SELECT FROM pool_outboxmessage told WHERE told.reservation_id = mine.id
        AND told.key = concat('ends_soon:', mine.id, ':',
            floor(extract(epoch FROM upper(mine.period)))::bigint))
    AND NOT EXISTS (
        SELECT FROM pool_reservation next WHERE next.pool_id = mine.pool_id AND next.state = 'scheduled'
        AND next.owner_id = mine.owner_id AND next.team_id = mine.team_id AND next.ask = mine.ask
        AND lower(next.period) = upper(mine.period))
ORDER BY upper(mine.period), mine.id LIMIT %(most)s
"""

_LATE = """
SELECT mine.id FROM pool_reservation mine
WHERE mine.state = 'active' AND mine.started_at > %(now)s - %(news)s
    AND mine.started_at > lower(mine.period) + %(late)s
    AND NOT EXISTS (
        SELECT FROM pool_outboxmessage told WHERE told.reservation_id = mine.id
        AND told.key = concat('started_late:', mine.id))
ORDER BY mine.started_at, mine.id LIMIT %(most)s
"""


def ending(now: datetime) -> list[Reservation]:
    """What ends soon and whose owner was not told of this end, the soonest first."""
    return _rows(_ENDING, {"now": now, "before": BEFORE_END, "part": PART, "most": MOST})


def late(now: datetime) -> list[Reservation]:
    """What started late and whose owner was not told, in the order of the starts."""
    return _rows(_LATE, {"now": now, "late": LATE, "news": NEWS, "most": MOST})


def end_key(row: Reservation) -> str:
    """The matter of an end: another end is another matter."""
    return f"ends_soon:{row.pk}:{int(row.period.upper.timestamp())}"


def late_key(row: Reservation) -> str:
    return f"started_late:{row.pk}"


def _rows(sql: str, wanted: Mapping[str, Any]) -> list[Reservation]:
    with connection.cursor() as cursor:
        cursor.execute(sql, wanted)
        ids = [pk for (pk,) in cursor.fetchall()]
    found = Reservation.objects.select_related("team", "owner", "booked_by").in_bulk(ids)
    return [found[pk] for pk in ids]
