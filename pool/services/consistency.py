"""A look at all rows as they are at one moment. Nothing is written, and nobody is kept waiting."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db import connection, transaction

from pool.queries import consistency
from pool.queries.consistency import Difference


@transaction.atomic(durable=True)
def check(*, now: datetime, pools: Collection[str] = ()) -> list[Difference]:
    """What differs, and what is only kept from before a limit was changed (`kept`); on one snapshot."""
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    return consistency.differences(now, pools)
