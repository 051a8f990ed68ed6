"""Everything that can be recomputed from the rows, recomputed: what differs is listed.

Independent of the code that decides, where it can be; the parts are in consistency_*.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pool.queries import consistency_places as places
from pool.queries import consistency_quota as quota
from pool.queries import consistency_states as states
from pool.queries.consistency_rows import Difference as Difference
from pool.queries.consistency_rows import book, rows


def differences(now: datetime, pools: Collection[str] = ()) -> list[Difference]:
    """Of these pools, or of all: places, states and quota, in this order. () when all agrees."""
    found: list[Difference] = []
    for pk, name in rows("SELECT id, name FROM pool_pool ORDER BY id"):
        if not pools or name in pools:
            read = book(pk, name, now)
            for part in (places, states, quota):
                found += part.differences(read)
    return found
