"""Rows as a check reads them: limits with grants, and teams above and below."""

from __future__ import annotations

import pytest

from pool.models import QuotaGrant, Team
from pool.queries import consistency_rows as read
from tests.queries import damaged
from tests.scene import NOON, hours

pytestmark = pytest.mark.django_db


def test_a_grant_is_on_top_while_it_is_valid_and_not_at_its_end() -> None:
    scene = damaged.quiet()
    QuotaGrant.objects.create(
        team=scene.vision, pool=scene.pool, cap_milli=500, valid=(NOON, NOON + hours(1))
    )
    book = read.book(scene.pool.pk, "main", NOON)
    caps = [book.limit(scene.vision.pk, "", "cap", NOON + hours(number)) for number in (-1, 0, 1)]
    assert caps == [3000, 3500, 3000]
    assert book.limit(scene.vision.pk, "H100-80GB", "cap", NOON) is None
    assert book.limit(scene.vision.pk, "", "memory", NOON) is None


def test_a_grant_without_a_line_stands_for_itself() -> None:
    scene = damaged.quiet()
    valid = (NOON, NOON + hours(1))
    QuotaGrant.objects.create(team=scene.vision, pool=scene.pool, model="X", cap_milli=500, valid=valid)
    book = read.book(scene.pool.pk, "main", NOON)
    assert [book.limit(scene.vision.pk, "X", "cap", NOON + hours(n)) for n in (0, 1)] == [500, 0]


def test_teams_have_those_above_and_below_them() -> None:
    scene = damaged.quiet()
    child = Team.objects.create(name="video", parent=scene.vision)
    book = read.book(scene.pool.pk, "main", NOON)
    assert book.path(child.pk) == [child.pk, scene.vision.pk]
    assert book.below(scene.vision.pk) == {child.pk, scene.vision.pk}


def test_a_use_is_what_holds_in_its_own_time_with_the_memory_of_its_part() -> None:
    scene = damaged.busy()
    uses = read.book(scene.pool.pk, "main", NOON).uses
    assert sorted((use.milli, use.memory, use.since) for use in uses) == [
        (102, 8192, NOON + hours(1)),
        (500, 81559 // 2, NOON),
        (1000, 81559, NOON + hours(1)),
    ]
