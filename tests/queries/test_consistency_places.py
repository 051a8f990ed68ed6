"""What lies where it must not, and what counts wrongly, is found."""

from __future__ import annotations

import pytest
from django.db import connection

from pool.models import Allocation, Reservation
from pool.queries.consistency_places import Ground
from pool.queries.consistency_rows import Card, Line
from tests.queries import damaged

pytestmark = pytest.mark.django_db


CARDS = [Card(number, f"node/{number}", number // 4, "A", True) for number in range(8)]


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("UPDATE pool_allocation SET charge_milli = 7 WHERE kind = 'share'", "wrong_charge"),
        ("UPDATE pool_allocation SET charge_milli = 499 WHERE kind = 'mig'", "wrong_charge"),
        ("UPDATE pool_allocation SET share_memory_mib = 90000 WHERE kind = 'share'", "ledger_overflows"),
    ],
)
def test_damage_is_found(sql: str, rule: str) -> None:
    damaged.busy()
    damaged.damage(sql)
    assert rule in damaged.rules()


def test_two_on_one_span_are_found_without_the_constraint() -> None:
    damaged.busy()
    row = Allocation.objects.get(kind="mig")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE pool_allocation DROP CONSTRAINT allocation_no_overlap")
    row.pk = row.tenancy = Reservation.objects.values_list("pk", flat=True)[0]
    row.save(force_insert=True)
    assert "overlap_span" in damaged.rules()


def claim(milli: int, unit: str = "slots", size: int = 1, model: str = "A") -> tuple[Line, int]:
    return Line(1, model, milli, milli, None, unit, size, None), milli


@pytest.mark.parametrize(
    ("claims", "missing"),
    [
        ([claim(8000)], None),
        ([claim(8001)], 1),
        ([claim(4000), claim(4000, model="")], None),
        ([claim(4000), claim(4001, model="")], 1),
        ([claim(8000, "node", 4)], None),
        ([claim(6000, "node", 3)], None),
        ([claim(9000, "node", 3)], 1000),
        # Two groups of three leave one GPU on each node: no third group, but slices enough.
        ([claim(6000, "node", 3), claim(2000)], None),
        ([claim(5000, "node", 5)], 5000),
        ([claim(1000, model="B")], None),
    ],
)
def test_what_could_not_be_given_even_at_best_is_missing(
    claims: list[tuple[Line, int]], missing: int | None
) -> None:
    found = Ground(CARDS, ()).missing(claims)
    assert (found and found[1]) == missing
