"""Which of many reservations the database refuses to change, when it has refused them together.

They are looked for in halves, with the values that were refused, and nothing of it stays. That
they are at fault is for the caller to see: it tries each of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.db.models import F

from pool.models import Reservation
from pool.services import locks

#: So many are looked for at once: each takes some statements under the pool's lock.
MOST = 8

_KEPT = "tried"


@dataclass(frozen=True, slots=True)
class _Tried:
    ids: Sequence[UUID]
    values: Mapping[str, Any]


def update(ids: Sequence[UUID], values: Mapping[str, Any]) -> None:
    """Set the same values on all, and raise their versions; the error knows what was tried (`among`)."""
    try:
        _update(ids, values)
    except DatabaseError as error:
        vars(error)[_KEPT] = _Tried(ids, values)
        raise


def among(error: Exception, *, pool_id: int) -> set[UUID]:
    """At most `MOST` of those for whom an `update` failed; none for another error, or when it goes now."""
    tried = vars(error).get(_KEPT)
    return _among(pool_id=pool_id, tried=tried) if isinstance(tried, _Tried) else set()


@locks.use_case
def _among(*, pool_id: int, tried: _Tried) -> set[UUID]:
    locks.pool(pool_id)
    found = set(islice(_refused(tried.ids, tried.values), MOST))
    transaction.set_rollback(True)
    return found


def _refused(ids: Sequence[UUID], values: Mapping[str, Any]) -> Iterator[UUID]:
    if not ids or _goes(ids, values):
        return
    if len(ids) == 1:
        yield ids[0]
        return
    half = len(ids) // 2
    for part in (ids[:half], ids[half:]):
        yield from _refused(part, values)


def _goes(ids: Sequence[UUID], values: Mapping[str, Any]) -> bool:
    try:
        with locks.part():
            _update(ids, values)
    except (OperationalError, InterfaceError):
        raise
    except DatabaseError:
        return False
    return True


def _update(ids: Sequence[UUID], values: Mapping[str, Any]) -> None:
    Reservation.objects.filter(pk__in=ids).update(version=F("version") + 1, **values)
