"""Holding an offer: what is set aside, who may book it, and how it is let go."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import Ask, MigAsk
from pool.models import Allocation, Command, Event, Pool, QuotaLine, Reservation
from pool.services import lanes, reservations
from pool.services.idempotency import Claim
from tests.scene import HALF, NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
SOON = NOON + hours(1)
LATE = NOON + timedelta(minutes=5)


@pytest.fixture
def scene() -> Scene:
    """One GPU for slices."""
    made = make_scene()
    add_node(made.pool)
    return made


def hold(
    scene: Scene,
    ask: Ask = HALF,
    *,
    start: datetime | None = SOON,
    now: datetime = NOON,
    **more: Any,
) -> Reservation:
    """As Lena, for an hour from one o'clock."""
    wanted = {"actor": scene.lena, "team": "vision", "pool": scene.pool.name, "duration": hours(1)} | more
    return reservations.hold(ask=ask, start=start, now=now, **wanted)


def confirm(scene: Scene, held: Reservation, *, now: datetime = NOON, **more: Any) -> Reservation:
    return reservations.confirm(**{"actor": scene.lena, "reservation_id": held.pk, "now": now} | more)


def state(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


# --- Holding ----------------------------------------------------------------------


def test_it_is_set_aside_for_five_minutes(scene: Scene) -> None:
    held = hold(scene)
    assert (held.state, held.state_reason, held.hold_until) == ("held", "offered", LATE)
    assert Allocation.objects.filter(holds=True, wanted_at=None).count() == 1
    assert Event.objects.get().verb == "reservation.held"
    assert not Command.objects.exists()


def test_nobody_else_gets_what_is_held(scene: Scene) -> None:
    hold(scene), hold(scene, actor=scene.milo)
    refused(Code.NO_CAPACITY, lambda: scene.book(HALF, start=NOON + hours(1), actor=scene.sam, team="speech"))


def test_it_counts_in_quota(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=500, guaranteed_milli=500)
    hold(scene)
    refused(Code.QUOTA_EXCEEDED, lambda: scene.book(ONE_SLICE, start=NOON + hours(1)))


def test_each_person_holds_one_thing_and_is_told_which(scene: Scene) -> None:
    held = hold(scene)
    other = Pool.objects.create(name="other")
    add_node(other, "dgx-09")
    QuotaLine.objects.create(team=scene.vision, pool=other, guaranteed_milli=9000, cap_milli=9000)
    for pool in (scene.pool.name, "other"):
        told = refused(Code.ONE_HOLD, lambda pool=pool: hold(scene, pool=pool))
        assert told == {"reservation": str(held.pk), "hold_until": LATE.isoformat()}
    assert hold(scene, actor=scene.milo).state == "held"
    assert Reservation.objects.count() == 2


def test_it_never_outlasts_its_own_time(scene: Scene) -> None:
    held = hold(scene, start=None, duration=timedelta(minutes=2))
    assert held.hold_until == NOON + timedelta(minutes=2)


def test_a_key_that_comes_again_holds_once(scene: Scene) -> None:
    claim = Claim("user:1", "POST", "/api/v1/reservations/hold", "k", "f")
    first, again = hold(scene, claim=claim), hold(scene, claim=claim)
    assert (first.pk, again.replayed) == (again.pk, True)


# --- Confirming -------------------------------------------------------------------


def test_what_is_held_is_booked_on_the_same_place(scene: Scene) -> None:
    held = hold(scene)
    place = Allocation.objects.values_list("pk", "gpu", "span").get()
    booked = confirm(scene, held)
    assert (booked.state, booked.state_reason, booked.version) == ("scheduled", "booked", 2)
    assert Allocation.objects.values_list("pk", "gpu", "span").get(holds=True) == place
    assert [e.verb for e in Event.objects.order_by("pk")] == ["reservation.held", "reservation.scheduled"]
    assert hold(scene).state == "held"


def test_what_is_to_start_now_starts(scene: Scene) -> None:
    held = hold(scene, start=None)
    booked = confirm(scene, held, now=NOON + SECOND)
    assert (booked.state, booked.state_reason) == ("starting", "waiting_for_node")
    assert Command.objects.count() == 1


def test_it_is_refused_once_it_has_lapsed_whether_or_not_a_lane_has_seen_it(scene: Scene) -> None:
    held = hold(scene)
    told = refused(Code.LAPSED, lambda: confirm(scene, held, now=LATE))
    assert told == {"hold_until": LATE.isoformat()}
    lanes.due(now=LATE)
    refused(Code.LAPSED, lambda: confirm(scene, held, now=LATE))
    assert state(held) == ("expired", "hold_lapsed")


def test_only_whom_it_is_held_for_may_book_it(scene: Scene) -> None:
    held = hold(scene)
    refused(Code.FORBIDDEN, lambda: confirm(scene, held, actor=scene.milo))
    refused(Code.NOT_FOUND, lambda: confirm(scene, held, actor=scene.sam))


def test_what_is_not_held_cannot_be_confirmed(scene: Scene) -> None:
    held = hold(scene)
    confirm(scene, held)
    told = refused(Code.WRONG_STATE, lambda: confirm(scene, held))
    assert told == {"state": "scheduled", "doing": "confirm"}
    refused(Code.STALE, lambda: confirm(scene, held, version=1))


def test_confirming_twice_with_one_key_is_one_thing(scene: Scene) -> None:
    claim = Claim("user:1", "POST", "/confirm", "k", "f")
    held = hold(scene)
    first, again = confirm(scene, held, claim=claim), confirm(scene, held, claim=claim)
    assert (first.replayed, again.replayed, again.version) == (False, True, 2)


# --- Letting go -------------------------------------------------------------------


def test_the_due_lane_lets_go_what_has_lapsed(scene: Scene) -> None:
    held = hold(scene)
    lanes.due(now=LATE - SECOND)
    assert state(held) == ("held", "offered")
    swept = lanes.due(now=LATE)
    assert (swept.ended if swept else 0) == 1
    assert state(held) == ("expired", "hold_lapsed")
    assert not Allocation.objects.filter(holds=True).exists()
    hold(scene, MigAsk(profile="7g.80gb"), now=LATE)


def test_a_lapsed_one_is_not_in_the_way_of_the_next_even_before_the_lane_comes(scene: Scene) -> None:
    old = hold(scene, MigAsk(profile="7g.80gb"))
    new = hold(scene, MigAsk(profile="7g.80gb"), now=LATE)
    assert (state(old)[0], state(new)[0]) == ("expired", "held")


def test_it_can_be_given_back(scene: Scene) -> None:
    held = hold(scene)
    gone = reservations.release(actor=scene.lena, reservation_id=held.pk, now=NOON)
    assert (gone.state, gone.state_reason) == ("cancelled", "cancelled")
    assert not Allocation.objects.filter(holds=True).exists()


def test_it_cannot_be_extended_before_it_is_booked(scene: Scene) -> None:
    held = hold(scene)
    refused(
        Code.WRONG_STATE,
        lambda: reservations.extend(actor=scene.lena, reservation_id=held.pk, duration=hours(1), now=NOON),
    )


# --- Wished free until then -------------------------------------------------------


def test_it_is_placed_where_it_could_be_extended_if_there_is_such_a_place(scene: Scene) -> None:
    add_node(scene.pool, "dgx-02", mig_gpus=0, whole_gpus=2)
    first, second = (gpu.pk for gpu in scene.pool.nodes.get(name="dgx-02").gpus.order_by("index"))
    later = scene.book(WHOLE, start=NOON + hours(3))
    busy = Allocation.objects.get(reservation=later).gpu_id
    held = hold(scene, WHOLE, start=NOON, duration=hours(3), free_until=NOON + hours(5))
    place = Allocation.objects.get(reservation=held)
    assert place.gpu_id == ({first, second} - {busy}).pop()
    assert place.period.upper == NOON + hours(3)
    other = hold(scene, WHOLE, actor=scene.milo, start=NOON, duration=hours(3), free_until=NOON + hours(5))
    assert Allocation.objects.get(reservation=other).gpu_id == busy
