"""Peaks above caps, firm work that is borrowed, what is not lent, guarantees without a place: found."""

from __future__ import annotations

import pytest
from django.db import connection

from pool.core.shapes import Class
from pool.models import Gpu, QuotaLine, Reservation, Team
from pool.queries import consistency
from tests.queries import damaged
from tests.queries.damaged import rules
from tests.scene import NOON, WHOLE

pytestmark = pytest.mark.django_db


def test_a_peak_above_a_cap_is_found_and_one_above_a_lowered_cap_is_kept() -> None:
    scene = damaged.busy()
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=999, guaranteed_milli=999)
    assert rules() == {"over_cap"}
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pool_event (at, actor_label, request_id, verb, team_id, pool_id)"
            " VALUES (now(), 'x', '', 'quota.set', %s, %s)",
            [scene.vision.pk, scene.pool.pk],
        )
    assert rules() == set()
    assert [(one.rule, one.kept) for one in consistency.differences(NOON)] == [("over_cap", True)]


def test_memory_has_a_peak_too() -> None:
    scene = damaged.busy()
    QuotaLine.objects.filter(team=scene.vision).update(memory_mib=81_559)
    assert rules() == set()
    QuotaLine.objects.filter(team=scene.vision).update(memory_mib=81_558)
    assert rules() == {"over_memory"}


def test_the_cap_of_a_team_above_counts_what_the_teams_below_use() -> None:
    scene = damaged.quiet()
    child = Team.objects.create(name="video", parent=scene.vision)
    QuotaLine.objects.create(team=child, pool=scene.pool, guaranteed_milli=0, cap_milli=3000)
    scene.book(WHOLE, team="video")
    assert rules() == set()
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=999, guaranteed_milli=0)
    assert rules() == {"over_cap"}


def test_firm_work_that_is_not_inside_its_guarantee_is_found() -> None:
    scene = damaged.busy()
    Reservation.objects.filter(state="scheduled", team=scene.vision).update(klass=Class.ONLINE)
    assert rules() == set()
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=999)
    assert rules() == {"firm_over_guaranteed"}


def test_what_is_borrowed_of_what_is_not_lent_is_found() -> None:
    scene = damaged.quiet()
    for _ in range(2):
        scene.book(WHOLE, klass=Class.BATCH)
    assert rules() == set()
    # Four GPUs: two are in use, one of them borrowed, and speech keeps three for itself.
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=3000, lend_milli=0)
    assert rules() == {"not_lent"}


def test_a_guarantee_that_has_no_place_is_found() -> None:
    scene = damaged.quiet()
    booked = scene.book(WHOLE)
    Gpu.objects.filter(use="mig").update(retired_at=NOON)
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=1000)
    assert rules() == set()
    # Of the two GPUs of one node one is in use: no two of them are left together, unless it makes way.
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000, unit="node", unit_size=2)
    assert rules() == set()
    Reservation.objects.filter(pk=booked.pk).update(preemptible=False)
    assert rules() == {"not_obtainable"}


def test_more_promised_than_there_is_is_nobodys_fault() -> None:
    damaged.quiet()
    QuotaLine.objects.update(guaranteed_milli=3000)
    found = consistency.differences(NOON)
    assert {(one.rule, one.kept) for one in found} == {("not_obtainable", True)}
