"""Those who wait as the core knows them: windows, what they would take, and who holds a guarantee."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.period import Period
from pool.core.waitline import Waiting
from pool.models import Event, Pool, QuotaLine, Reservation
from pool.queries import fleets, standing
from pool.queries import waiting as queries
from tests.scene import H100, NOON, WHOLE, Scene, add_node, hours, make_scene
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture
def scene() -> Scene:
    """Two whole GPUs, one guaranteed to each team."""
    made = make_scene(guaranteed=1000)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def read(pool: Pool, *rows: Reservation) -> list[Waiting]:
    fleet = fleets.current(pool.pk)
    where = standing.of(pool.pk, fleet, Period(NOON, NOON + MINUTE))
    ordered = queries.read(rows or list(queries.line(pool.pk)), fleet, where, NOON)
    return queries.with_guarantees(ordered, where, NOON)


def stopped(scene: Scene, without: Reservation | None = None) -> frozenset[str]:
    fleet = fleets.current(scene.pool.pk)
    where = standing.of(scene.pool.pk, fleet, Period(NOON, NOON + MINUTE))
    pk = without.pk if without else None
    return queries.guaranteed_waiting(scene.pool.pk, fleet, where, NOON, without=pk)


def test_one_that_waits_is_known_with_what_it_would_count(scene: Scene) -> None:
    row = join(scene, gpus(2), latest=NOON + hours(9), partial_ok=True)
    (one,) = read(scene.pool)
    assert (one.id, one.milli, one.models, one.length) == (row.pk, 2000, frozenset({H100}), hours(1))
    assert (one.window.end, one.partial_ok, one.guaranteed, one.firm) == (NOON + hours(9), True, False, False)


def test_who_asks_first_takes_a_quarter_of_an_hour_more_where_the_window_allows_it(scene: Scene) -> None:
    wide, tight = join(scene, asks_first=True), join(scene, asks_first=True, latest=NOON + 64 * MINUTE)
    assert queries.taken(wide, NOON) == Period(NOON, NOON + 75 * MINUTE)
    assert queries.taken(tight, NOON) == Period(NOON, NOON + 64 * MINUTE)
    assert queries.hold_until(tight, NOON) == NOON + 4 * MINUTE
    assert queries.last_start(tight) == NOON + 3 * MINUTE
    later = join(scene, asks_first=True, start=NOON + hours(1))
    assert queries.taken(later, NOON) == Period(NOON + hours(1), NOON + hours(2))


def test_what_can_no_longer_be_met_is_left_out(scene: Scene) -> None:
    row = join(scene, latest=NOON + hours(1))
    assert len(read(scene.pool, row)) == 1
    assert not queries.read([row], fleets.current(scene.pool.pk), _where(scene), NOON + MINUTE)


def _where(scene: Scene) -> standing.Standing:
    return standing.of(scene.pool.pk, fleets.current(scene.pool.pk), Period(NOON, NOON + MINUTE))


def test_how_often_it_was_passed_is_counted_in_its_events(scene: Scene) -> None:
    row = join(scene)
    for _ in range(3):
        Event.objects.create(at=NOON, actor_label="system", verb="reservation.passed", reservation_id=row.pk)
    assert read(scene.pool)[0].passes == 3


def test_each_takes_what_its_team_is_guaranteed_until_it_is_used(scene: Scene) -> None:
    rows = [join(scene), join(scene), join(scene, actor=scene.sam), join(scene, start=NOON + hours(1))]
    found = {one.id: one.guaranteed for one in read(scene.pool)}
    assert [found[row.pk] for row in rows] == [True, False, True, False]


def test_the_line_of_its_model_is_taken_before_that_for_any(scene: Scene) -> None:
    QuotaLine.objects.create(
        team=scene.vision, pool=scene.pool, model=H100, guaranteed_milli=1000, cap_milli=9000
    )
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=0)
    rows = [join(scene), join(scene), join(scene)]
    assert [one.guaranteed for one in read(scene.pool, *rows)] == [True, True, False]


def test_borrowing_stops_while_a_holder_of_a_guarantee_waits_and_for_nobody_else(scene: Scene) -> None:
    assert stopped(scene) == frozenset()
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=0)
    join(scene)
    assert stopped(scene) == frozenset()
    holder = join(scene, actor=scene.sam)
    assert stopped(scene) == {H100}
    assert stopped(scene, without=holder) == frozenset()


def test_what_was_restarted_comes_before_all_others(scene: Scene) -> None:
    first = join(scene)
    head = join(scene)
    Reservation.objects.filter(pk=head.pk).update(waiting_order=-1)
    assert [row.pk for row in queries.line(scene.pool.pk)] == [head.pk, first.pk]


def test_of_one_that_waits_or_is_offered_its_window_is_told(scene: Scene) -> None:
    row = join(scene, latest=NOON + hours(4), asks_first=True)
    told = queries.wait_of(row)
    assert told is not None
    assert (told.earliest, told.latest, told.asks_first) == (NOON, NOON + hours(4), True)
    assert queries.wait_of(scene.book(WHOLE)) is None
