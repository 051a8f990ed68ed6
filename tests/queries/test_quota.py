"""Quota lines with what is used of them at the busiest moment."""

from __future__ import annotations

import pytest
from psycopg.types.range import TimestamptzRange

from pool.core.period import Period
from pool.models import QuotaGrant, QuotaLine, Team
from pool.queries import quota
from pool.services import reservations
from tests.scene import H100, HALF, NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

DAY = Period(NOON, NOON + hours(24))


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=4000, guaranteed=1000)
    add_node(made.pool, mig_gpus=2)
    return made


def usage(scene: Scene, period: Period = DAY, team: Team | None = None) -> list[quota.Usage]:
    rows = QuotaLine.objects.filter(team=team or scene.vision, pool=scene.pool).order_by("model")
    return quota.used_of(scene.pool, list(rows), period)


def used(scene: Scene, period: Period = DAY) -> list[tuple[str | None, int]]:
    return [(one.model, one.used_milli) for one in usage(scene, period)]


def test_it_is_the_peak_and_no_sum_over_the_window(scene: Scene) -> None:
    scene.book(HALF, start=NOON + hours(1))
    scene.book(HALF, start=NOON + hours(2))
    assert used(scene) == [(None, 500)]
    scene.book(start=NOON + hours(2))
    assert used(scene) == [(None, 625)]
    assert used(scene, Period(NOON, NOON + hours(1))) == [(None, 0)]


def test_a_model_has_its_own_line_and_counts_on_the_one_for_any(scene: Scene) -> None:
    for model in (H100, "A100-80GB"):
        QuotaLine.objects.create(team=scene.vision, pool=scene.pool, model=model, cap_milli=500)
    scene.book(HALF)
    assert used(scene) == [(None, 500), ("A100-80GB", 0), (H100, 500)]


def test_what_is_over_or_of_another_team_does_not_count(scene: Scene) -> None:
    scene.book(HALF, actor=scene.sam, team="speech")
    gone = scene.book(HALF, start=NOON + hours(1))
    reservations.release(actor=scene.lena, reservation_id=gone.pk, now=NOON)
    assert used(scene) == [(None, 0)]


def test_the_bars_are_those_of_ones_own_teams(scene: Scene) -> None:
    (bar,) = quota.bars(list(quota.visible_to(scene.milo)), NOON)
    assert (bar.team, bar.pool, bar.cap_milli, bar.guaranteed_milli) == ("vision", "main", 4000, 1000)
    assert len(quota.bars(list(quota.visible_to(scene.otto)), NOON)) == 2


def test_what_a_team_below_uses_counts_on_the_line_above_too(scene: Scene) -> None:
    child = Team.objects.create(name="child", parent=scene.vision)
    QuotaLine.objects.create(team=child, pool=scene.pool, cap_milli=2000)
    scene.book(HALF, team="child")
    scene.book(HALF)
    assert used(scene) == [(None, 1000)]
    (line,) = usage(scene, team=child)
    assert line.used_milli == 500


def test_a_grant_adds_to_its_line_while_it_lasts(scene: Scene) -> None:
    grant(scene, cap=2000, guaranteed=500)
    (line,) = usage(scene)
    assert (line.cap_milli, line.guaranteed_milli, line.granted) == (6000, 1500, True)
    (line,) = usage(scene, Period(NOON + hours(24), NOON + hours(25)))
    assert (line.cap_milli, line.granted) == (4000, False)


def test_a_budget_stands_beside_its_line(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(budget_milli_hours=4000)
    scene.book(HALF, duration=hours(4))
    rows = list(quota.visible_to(scene.milo))
    (bar,) = quota.bars(rows, NOON)
    assert bar.burn is not None
    assert (bar.burn.budget, bar.burn.spent) == (4000, 2000)


@pytest.mark.parametrize(("who", "teams"), [("milo", ["vision"]), ("sam", ["speech"]), ("otto", None)])
def test_who_is_in_no_team_sees_no_line_unless_all(scene: Scene, who: str, teams: list[str] | None) -> None:
    found = [line.team.name for line in quota.visible_to(getattr(scene, who))]
    assert found == (teams or ["speech", "vision"])


def test_promises_stand_beside_what_there_is(scene: Scene) -> None:
    child = Team.objects.create(name="child", parent=scene.vision)
    QuotaLine.objects.create(team=child, pool=scene.pool, cap_milli=500, guaranteed_milli=100)
    QuotaLine.objects.create(team=scene.speech, pool=scene.pool, model=H100, cap_milli=300)
    grant(scene, cap=2000, guaranteed=500)
    scene.book(HALF)
    of_model, all_together = quota.supply(scene.pool, NOON)
    assert (of_model.model, of_model.guaranteed, of_model.caps) == (H100, 0, 300)
    assert (all_together.guaranteed, all_together.caps) == (2500, 6300)
    assert all_together.capacity == of_model.capacity == 2000
    assert (all_together.used, all_together.unknown) == (500, 0)


def test_the_fair_share_of_every_team_with_a_line_is_at_least_its_guarantee(scene: Scene) -> None:
    scene.book(HALF)
    shares = quota.fair_shares(scene.pool, NOON)
    # Neither asks for more than half a GPU now; what they are guaranteed is their due all the same.
    assert shares == {scene.vision.pk: 1000, scene.speech.pk: 1000}


def test_a_line_that_was_never_set_has_a_cap_of_0(scene: Scene) -> None:
    line = quota.line_of(scene.vision, scene.pool, H100)
    assert (line.pk, line.cap_milli, line.version) == (None, 0, 0)
    assert quota.line_of(scene.vision, scene.pool, "").cap_milli == 4000


def test_rules_are_told_as_they_would_be(scene: Scene) -> None:
    line = quota.line_of(scene.vision, scene.pool, "")
    line.cap_milli = 9000
    would_be = quota.rules_with(scene.pool, line)
    assert [one.cap_milli for one in would_be.lines if one.team == scene.vision.pk] == [9000]
    assert len(would_be.lines) == len(quota.rules(scene.pool).lines)
    assert quota.models_of(scene.pool) == [H100]


def grant(scene: Scene, *, cap: int, guaranteed: int) -> None:
    QuotaGrant.objects.create(
        team=scene.vision,
        pool=scene.pool,
        cap_milli=cap,
        guaranteed_milli=guaranteed,
        valid=TimestamptzRange(NOON, NOON + hours(24)),
    )
