"""Everything is recomputed from the rows: nothing differs in a pool that works."""

from __future__ import annotations

import pytest

from pool.models import Gpu, QuotaLine
from pool.queries import consistency
from tests.queries import damaged
from tests.scene import NOON, hours

pytestmark = pytest.mark.django_db


def test_nothing_differs_where_everything_was_done_by_the_rules() -> None:
    damaged.busy()
    assert consistency.differences(NOON) == []


def test_only_the_pools_that_are_asked_for_are_looked_at() -> None:
    scene = damaged.busy()
    damaged.damage("UPDATE pool_reservation SET state = 'active'")
    assert consistency.differences(NOON, ["another"]) == []
    assert {one.pool for one in consistency.differences(NOON, [scene.pool.name])} == {"main"}


def test_what_was_is_not_looked_at_but_what_is_and_will_be() -> None:
    scene = damaged.busy()
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=999, guaranteed_milli=999)
    assert damaged.rules() == {"over_cap"}
    assert "over_cap" not in {one.rule for one in consistency.differences(NOON + hours(2))}


def test_a_pool_without_gpus_and_quota_has_nothing_that_differs() -> None:
    damaged.quiet()
    QuotaLine.objects.all().delete()
    Gpu.objects.update(retired_at=NOON)
    assert consistency.differences(NOON) == []
