"""The rows behind a decision: named where the viewer may see them, else counted."""

from __future__ import annotations

import pytest

from pool.core.period import Period
from pool.models import QuotaLine, Team
from pool.queries import explanations as queries
from pool.queries import fleets, standing
from tests.scene import H100, NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    """Three whole GPUs."""
    made = make_scene(guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=3)
    return made


def test_rows_are_named_as_far_as_they_may_be_seen(scene: Scene) -> None:
    own = scene.book(WHOLE, title="ours")
    other = scene.book(WHOLE, actor=scene.sam, team="speech", title="theirs")
    shown_to_all = scene.book(WHOLE, actor=scene.sam, team="speech", visibility="everyone")
    amounts = {own.pk: 1000, other.pk: 700, shown_to_all.pk: 500}
    found = queries.rows(scene.lena, amounts)
    assert [(row.id, row.milli) for row in found.shown] == [(own.pk, 1000), (shown_to_all.pk, 500)]
    assert (found.more, found.others, found.others_milli) == (0, 1, 700)


def test_of_many_the_largest_are_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST", 1)
    small, large = scene.book(WHOLE), scene.book(WHOLE)
    found = queries.rows(scene.lena, {small.pk: 1, large.pk: 2})
    assert ([row.id for row in found.shown], found.more) == ([large.pk], 1)


def test_on_a_line_counts_the_team_and_all_below_it(scene: Scene) -> None:
    below = Team.objects.create(name="below", parent=scene.vision)
    QuotaLine.objects.create(team=below, pool=scene.pool, guaranteed_milli=0, cap_milli=9000)
    own, child = scene.book(WHOLE), scene.book(WHOLE, team="below")
    scene.book(WHOLE, actor=scene.sam, team="speech")
    where = standing.of(scene.pool.pk, fleets.current(scene.pool.pk), Period(NOON, NOON + hours(1)))
    assert queries.counted(where, scene.vision.pk, H100, NOON) == {own.pk: 1000, child.pk: 1000}
    assert queries.counted(where, below.pk, None, NOON) == {child.pk: 1000}
    assert queries.counted(where, below.pk, "no such model", NOON) == {}
    assert queries.counted(where, below.pk, None, NOON + hours(2)) == {}


def test_on_the_gpus_is_what_overlaps_the_period_but_for_one(scene: Scene) -> None:
    first, later = scene.book(WHOLE), scene.book(WHOLE, start=NOON + hours(3))
    fleet = fleets.current(scene.pool.pk)
    assert queries.on(fleet, [H100], Period(NOON, NOON + hours(2))) == {first.pk: 1000}
    assert queries.on(fleet, [H100], Period(NOON, NOON + hours(4)), but=first.pk) == {later.pk: 1000}
    assert queries.on(fleet, [], Period(NOON, NOON + hours(4))) == {}


def test_the_event_of_its_state_is_found(scene: Scene) -> None:
    row = scene.book(WHOLE)
    event = queries.decided(row)
    assert event is not None
    assert event.verb == "reservation.booked"
    assert queries.recall(row) is None
