"""What one team lends is borrowed once, and what a parent may have is had once by its children."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from pool.core.errors import Code, Refusal
from pool.core.shapes import GpuAsk
from pool.models import Allocation, Membership, QuotaLine, Reservation, Team
from pool.services import reservations
from tests.races.runners import codes, overlaps, spread, think_together, together, without_the_lock
from tests.scene import H100, NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

LATER = NOON + hours(1)


def a_team(scene: Scene, name: str, parent: Team | None = None) -> Team:
    """Without a guarantee; Lena leads it, too."""
    team = Team.objects.create(name=name, parent=parent)
    Membership.objects.create(team=team, user=scene.lena, role="lead")
    QuotaLine.objects.create(team=team, pool=scene.pool, cap_milli=1000)
    return team


def book_for(scene: Scene, *teams: str) -> list[Any]:
    return together(*[lambda team=team: scene.book(WHOLE, team=team, start=LATER) for team in teams])


@pytest.fixture
def lent() -> Scene:
    """Two GPUs, both guaranteed to speech, which lends one of them; vision and audio have nothing."""
    scene = make_scene(cap=2000, guaranteed=0)
    add_node(scene.pool, mig_gpus=0, whole_gpus=2)
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000, lend_milli=1000)
    a_team(scene, "audio")
    return scene


def test_without_the_lock_two_teams_borrow_what_is_lent_once(
    lent: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    spread(monkeypatch)
    assert codes(book_for(lent, "vision", "audio")) == {"ok": 2}


def test_one_of_two_teams_borrows_it_and_the_other_hears_that_it_is_not_lent(
    lent: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    spread(monkeypatch)
    results = book_for(lent, "vision", "audio")
    assert codes(results) == {"ok": 1, Code.QUOTA_EXCEEDED: 1}
    (refusal,) = (one for one in results if isinstance(one, Refusal))
    assert refusal.data["reason"] == "not_lent"


@pytest.fixture
def family() -> Scene:
    """Vision may have one GPU; its two children may each have one."""
    scene = make_scene(cap=1000, guaranteed=0)
    add_node(scene.pool, mig_gpus=0, whole_gpus=2)
    a_team(scene, "faces", scene.vision)
    a_team(scene, "places", scene.vision)
    return scene


def test_without_the_lock_two_children_have_more_than_their_parent_may(
    family: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    spread(monkeypatch)
    assert codes(book_for(family, "faces", "places")) == {"ok": 2}


def test_one_of_two_children_is_refused_by_their_parents_line(
    family: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    spread(monkeypatch)
    results = book_for(family, "faces", "places")
    assert codes(results) == {"ok": 1, Code.QUOTA_EXCEEDED: 1}
    (refusal,) = (one for one in results if isinstance(one, Refusal))
    assert (refusal.data["reason"], refusal.data["team"]) == ("over_cap", family.vision.pk)


def test_of_a_hundred_at_once_exactly_the_limit_is_granted() -> None:
    scene = make_scene(cap=1250, guaranteed=0)
    add_node(scene.pool, mig_gpus=4)

    def one(number: int) -> Any:
        try:
            return scene.book(ONE_SLICE, start=LATER)
        except Refusal as refusal:
            return refusal
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as threads:
        results = list(threads.map(one, range(100)))
    assert codes(results) == {"ok": 10, Code.QUOTA_EXCEEDED: 90}
    assert sum(Reservation.objects.values_list("charge_milli", flat=True)) == 1250
    assert overlaps() == 0


def test_two_who_take_back_at_once_do_not_take_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are guaranteed one of the two GPUs that a third borrows."""
    scene = make_scene(cap=2000, guaranteed=1000)
    add_node(scene.pool, mig_gpus=0, whole_gpus=2)
    a_team(scene, "audio")
    QuotaLine.objects.filter(team__name="audio").update(cap_milli=2000)
    for _ in range(2):
        scene.book(WHOLE, team="audio", start=LATER, duration=hours(9))
    begin = threading.Barrier(2)
    monkeypatch.setattr("pool.services.booking.TURN_S", 0.0)

    def take(actor: Any, team: str) -> Any:
        begin.wait(20)
        return scene.book(WHOLE, actor=actor, team=team, start=LATER)

    results = together(lambda: take(scene.lena, "vision"), lambda: take(scene.sam, "speech"))
    assert codes(results) == {"ok": 2}
    assert Reservation.objects.filter(team__name="audio", state="preempted").count() == 2
    assert Allocation.objects.filter(reservation__in=results).values("gpu").distinct().count() == 2
    assert overlaps() == 0


def test_what_is_taken_back_while_its_owner_gives_it_back_is_had_either_way() -> None:
    scene = make_scene(cap=2000, guaranteed=0)
    add_node(scene.pool, mig_gpus=0, whole_gpus=2)
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    borrowed = scene.book(GpuAsk(models=(H100,), count=2), start=LATER, duration=hours(9))
    results = together(
        lambda: reservations.release(actor=scene.lena, reservation_id=borrowed.pk, now=NOON),
        lambda: scene.book(WHOLE, actor=scene.sam, team="speech", start=LATER),
    )
    assert codes(results)["ok"] >= 1
    (mine,) = Reservation.objects.filter(team=scene.speech)
    assert mine.state == "scheduled"
    assert overlaps() == 0
