"""Those who wait get what comes to them: in order, beside what is kept for the first, and once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models import F

from pool.core.waitline import Given
from pool.models import Event, Pool, QuotaLine, Reservation, SetAside
from pool.services import giving, lanes, lineup, reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Two whole GPUs, of which nothing is guaranteed to anybody."""
    # However slow the machine is: each run of the lane thinks.
    monkeypatch.setattr(giving, "LONG", 1000.0)
    made = make_scene(guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def serve(scene: Scene, after: timedelta = SECOND) -> list[tuple[UUID, Exception]]:
    """One run; what was set aside."""
    aside: list[tuple[UUID, Exception]] = []
    giving.serve(
        pool_id=scene.pool.pk, now=NOON + after, hidden=(), aside=lambda pk, why: aside.append((pk, why))
    )
    return aside


def states(*rows: Reservation) -> list[tuple[str, str]]:
    for row in rows:
        row.refresh_from_db()
    return [(row.state, row.state_reason) for row in rows]


def test_the_first_that_fits_in_is_given_and_the_next_waits(scene: Scene) -> None:
    first, second, third = (join(scene, actor=who) for who in (scene.lena, scene.milo, scene.lena))
    assert serve(scene) == []
    assert [state for state, _ in states(first, second, third)] == ["starting", "starting", "waiting"]


def test_a_smaller_one_passes_only_where_it_cannot_delay_the_first(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(2))
    first = join(scene, gpus(2), length=hours(4))
    longer = join(scene, length=hours(2) + MINUTE)
    shorter = join(scene, length=hours(1.5))
    assert serve(scene) == []
    assert states(first, longer) == [("waiting", "no_capacity"), ("waiting", "not_its_turn")]
    assert states(shorter)[0][0] == "starting"
    passed = Event.objects.filter(verb="reservation.passed")
    assert {event.reservation_id for event in passed} == {first.pk, longer.pk}


def test_who_was_passed_too_often_is_passed_no_more(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(2))
    first = join(scene, gpus(2), length=hours(4))
    for _ in range(20):
        Event.objects.create(
            at=NOON, actor_label="system", verb="reservation.passed", reservation_id=first.pk
        )
    shorter = join(scene, length=MINUTE * 30)
    assert serve(scene) == []
    assert states(first, shorter) == [("waiting", "no_capacity"), ("waiting", "not_its_turn")]


def test_running_it_twice_gives_nothing_twice(scene: Scene) -> None:
    row = join(scene)
    serve(scene)
    events = Event.objects.count()
    serve(scene)
    assert states(row)[0][0] == "starting"
    assert Event.objects.count() == events


def test_nothing_is_thought_about_again_before_something_has_changed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.book(gpus(2), duration=hours(5))
    join(scene)
    looks: list[int] = []
    decide = lineup.decide

    def counted(*args: Any, **more: Any) -> Any:
        looks.append(1)
        return decide(*args, **more)

    monkeypatch.setattr(lineup, "decide", counted)
    for after in (SECOND, 3 * SECOND, 5 * SECOND):
        serve(scene, after)
    assert len(looks) == 1
    Pool.objects.update(change=F("change") + 1)
    serve(scene, 7 * SECOND)
    assert len(looks) == 2
    serve(scene, 2 * MINUTE)
    assert len(looks) == 3


def test_a_frozen_pool_gives_nothing(scene: Scene) -> None:
    row = join(scene)
    Pool.objects.update(frozen=True)
    serve(scene)
    assert states(row)[0][0] == "waiting"


def test_who_leaves_while_it_is_decided_gets_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = join(scene), join(scene, actor=scene.milo)
    give = giving._give

    def left_before(*, one: Given, **more: Any) -> bool:
        if one.waiting.id == first.pk:
            reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON + SECOND)
        return give(one=one, **more)

    monkeypatch.setattr(giving, "_give", left_before)
    assert serve(scene) == []
    assert states(first, second) == [("cancelled", "cancelled"), ("starting", "waiting_for_node")]


def test_what_somebody_books_meanwhile_is_not_given_a_second_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = join(scene, gpus(2))
    give = giving._give

    def booked_before(**more: Any) -> bool:
        scene.book(WHOLE, actor=scene.sam, team="speech", now=NOON + SECOND)
        return give(**more)

    monkeypatch.setattr(giving, "_give", booked_before)
    assert serve(scene) == []
    assert states(row) == [("waiting", "no_capacity")]


def test_one_that_breaks_is_set_aside_and_the_others_get_theirs(scene: Scene) -> None:
    bad, good = join(scene), join(scene, actor=scene.milo)
    Reservation.objects.filter(pk=bad.pk).update(ask={"kind": "no such kind"})
    lanes.due(now=NOON + SECOND)
    assert [one.subject for one in SetAside.objects.all()] == [str(bad.pk)]
    Pool.objects.update(change=F("change") + 1)
    lanes.due(now=NOON + 3 * SECOND)
    assert states(good)[0][0] == "starting"


def test_what_starts_later_is_scheduled_ahead(scene: Scene) -> None:
    row = join(scene, start=NOON + hours(3))
    assert serve(scene) == []
    assert states(row) == [("scheduled", "booked")]
    assert row.period.lower == NOON + hours(3)


def test_while_a_holder_of_a_guarantee_waits_nobody_borrows(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    scene.book(WHOLE, duration=hours(9))
    holder = join(scene, gpus(2), actor=scene.sam, asks_first=True)
    borrower = join(scene)
    assert serve(scene) == []
    assert states(holder, borrower) == [("waiting", "no_capacity"), ("waiting", "borrowing_stopped")]
    reservations.release(actor=scene.sam, reservation_id=holder.pk, now=NOON + SECOND)
    assert serve(scene, 3 * SECOND) == []
    assert states(borrower)[0][0] == "starting"


def test_what_waits_within_its_guarantee_takes_back_what_was_lent(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    lent = scene.book(gpus(2), duration=hours(9))
    holder = join(scene, gpus(2), actor=scene.sam)
    assert serve(scene) == []
    lent.refresh_from_db()
    assert lent.recall_at is not None
    assert lent.recall_for == holder
    assert states(holder)[0][0] == "scheduled"
    assert (holder.period.lower, holder.period.upper - holder.period.lower) == (lent.recall_at, hours(1))


def test_what_asks_first_takes_nothing_back(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    lent = scene.book(gpus(2), duration=hours(9))
    holder = join(scene, gpus(2), actor=scene.sam, asks_first=True)
    assert serve(scene) == []
    lent.refresh_from_db()
    assert (lent.recall_at, states(holder)[0][0]) == (None, "waiting")
