"""All rows are looked at as they are at one moment."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.utils import InternalError, OperationalError

from pool.services import consistency
from tests.queries import damaged
from tests.scene import NOON


@pytest.mark.django_db(transaction=True)
def test_it_looks_at_one_snapshot_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged.busy()
    damaged.damage("UPDATE pool_reservation SET charge_milli = 1 WHERE state = 'scheduled'")
    found = consistency.check(now=NOON)
    assert {one.rule for one in found} == {"charges_do_not_add_up"}

    def look(*_: object) -> list[object]:
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("repeatable read",)
            cursor.execute("UPDATE pool_pool SET frozen = true")
        return []

    monkeypatch.setattr(consistency.consistency, "differences", look)
    with pytest.raises((InternalError, OperationalError), match="read-only"):
        consistency.check(now=NOON)
    assert not transaction.get_connection().in_atomic_block
