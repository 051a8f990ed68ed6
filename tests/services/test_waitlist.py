"""Joining the wait list: the window, what no waiting brings, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import Ask, Class, GpuAsk
from pool.models import Event, Gpu, Pool, QuotaLine, Reservation, User
from pool.services import lanes, reservations, waitlist
from pool.services.idempotency import Claim
from pool.services.wishes import Asked
from tests.scene import AN_HOUR, H100, NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


@pytest.fixture
def scene() -> Scene:
    """Two whole GPUs."""
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def gpus(count: int) -> GpuAsk:
    return GpuAsk(models=(H100,), count=count)


def asked(
    scene: Scene,
    ask: Ask = WHOLE,
    *,
    actor: User | None = None,
    start: datetime | None = None,
    length: timedelta = AN_HOUR,
    now: datetime = NOON,
) -> Asked:
    who = actor or scene.lena
    team = "speech" if who == scene.sam else "vision"
    return Asked(
        actor=who,
        team=team,
        pool="main",
        title="",
        ask=ask,
        start=start,
        end=None,
        duration=length,
        klass=Class.BATCH,
        owner=None,
        visibility="team",
        restartable=None,
        now=now,
    )


def join(scene: Scene, ask: Ask = WHOLE, *, claim: Claim | None = None, **more: Any) -> Reservation:
    own = {name: more.pop(name) for name in ("latest", "partial_ok", "asks_first") if name in more}
    return reservations.join(asked=asked(scene, ask, **more), claim=claim, **own)


def test_it_waits_within_its_window_and_holds_nothing(scene: Scene) -> None:
    row = join(scene, start=NOON + hours(2), latest=NOON + hours(8), length=hours(3))
    assert (row.state, row.state_reason, row.charge_milli) == ("waiting", "not_yet", 0)
    assert (row.window.lower, row.window.upper) == (NOON + hours(2), NOON + hours(8))
    assert row.period.upper - row.period.lower == hours(3)
    told = Event.objects.get(verb="reservation.joined").after
    assert told is not None
    assert told["latest"] == (NOON + hours(8)).isoformat()


def test_without_a_latest_end_it_waits_for_a_week(scene: Scene) -> None:
    assert join(scene).window.upper == NOON + hours(1) + timedelta(days=7)


def test_its_window_has_to_be_as_long_as_it_lasts(scene: Scene) -> None:
    told = refused(Code.INVALID, lambda: join(scene, latest=NOON + hours(1) - SECOND))
    assert told["errors"][0] | {"min": ""} == {"pointer": "/latest", "code": "too_early", "min": ""}
    told = refused(Code.INVALID, lambda: join(scene, latest=NOON + hours(1), asks_first=True))
    assert told["errors"][0]["min"] == (NOON + hours(1) + timedelta(minutes=1)).isoformat()
    told = refused(Code.INVALID, lambda: join(scene, latest=NOON + timedelta(days=367)))
    assert told["errors"][0]["code"] == "too_far"
    assert join(scene, latest=NOON + hours(1)).window.upper == NOON + hours(1)


def test_what_the_pool_never_has_is_refused_at_once(scene: Scene) -> None:
    told = refused(Code.NO_CAPACITY, lambda: join(scene, gpus(3)))
    assert (told["asked"], told["offered"]) == (3, 2)
    assert join(scene, gpus(3), partial_ok=True).state == "waiting"


def test_what_may_come_back_is_waited_for(scene: Scene) -> None:
    Gpu.objects.filter(index=1).update(frozen=True)
    assert join(scene, gpus(2)).state == "waiting"


def test_above_the_cap_no_waiting_helps_but_a_full_cap_is_waited_for(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1000, guaranteed_milli=0)
    told = refused(Code.QUOTA_EXCEEDED, lambda: join(scene, gpus(2)))
    assert (told["cap"], told["asked"]) == (1000, 2000)
    scene.book(WHOLE)
    assert join(scene).state == "waiting"


def test_what_needs_an_approver_is_not_waited_for(scene: Scene) -> None:
    Pool.objects.update(approve_above_milli=1000)
    told = refused(Code.NEEDS_APPROVAL, lambda: join(scene, gpus(2)))
    assert told == {"reason": "not_from_wait", "above_milli": 1000, "asked_milli": 2000}
    assert join(scene).state == "waiting"


def test_the_same_request_joins_once(scene: Scene) -> None:
    claim = Claim("user:1", "POST", "/api/v1/waiting", "k", "f")
    first, again = join(scene, claim=claim), join(scene, claim=claim)
    assert (first.pk, first.replayed, again.replayed) == (again.pk, False, True)
    assert Reservation.objects.count() == 1


def test_one_person_has_twenty_waiting_at_most(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitlist, "MOST", 2)
    join(scene)
    join(scene)
    told = refused(Code.INVALID, lambda: join(scene))
    assert told["errors"][0] == {"pointer": "/pool", "code": "too_many", "max": 2}
    assert join(scene, actor=scene.milo).state == "waiting"


def test_whoever_may_not_book_may_not_wait(scene: Scene) -> None:
    stranger = replace(asked(scene, actor=scene.sam), team="vision")
    refused(Code.NOT_FOUND, lambda: reservations.join(asked=stranger))


def test_what_is_to_start_later_is_booked_ahead_or_waits_for_its_time(scene: Scene) -> None:
    scene.book(gpus(2), start=NOON + hours(1), duration=hours(1))
    row, other = join(scene, start=NOON + hours(1)), join(scene, start=NOON + hours(2))
    lanes.due(now=NOON + SECOND)
    for one in (row, other):
        one.refresh_from_db()
    assert (row.state, row.state_reason) == ("waiting", "not_yet")
    assert (other.state, other.period.lower) == ("scheduled", NOON + hours(2))


def test_when_its_time_can_no_longer_be_met_the_wait_is_over(scene: Scene) -> None:
    scene.book(gpus(2), duration=hours(9))
    row = join(scene, latest=NOON + hours(3))
    lanes.due(now=NOON + hours(2))
    row.refresh_from_db()
    assert row.state == "waiting"
    lanes.due(now=NOON + hours(2) + SECOND)
    row.refresh_from_db()
    assert (row.state, row.state_reason) == ("expired", "wait_lapsed")


def test_fewer_pieces_come_only_to_whom_they_will_do(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(5))
    all_or_nothing = join(scene, gpus(2))
    some = join(scene, gpus(2), partial_ok=True)
    lanes.due(now=NOON + SECOND)
    for row in (all_or_nothing, some):
        row.refresh_from_db()
    assert (all_or_nothing.state, some.state) == ("waiting", "starting")
    assert (some.ask["count"], some.charge_milli) == (1, 1000)
    before = Event.objects.get(verb="reservation.placed").before
    assert before is not None
    assert before["ask"]["count"] == 2
