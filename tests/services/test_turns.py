"""What comes of a turn in the line: given, or offered, accepted, let lapse; and who is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.errors import Code
from pool.models import Allocation, Gpu, OutboxMessage, Pool, Reservation
from pool.services import giving, lanes, reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused, settle
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One whole GPU."""
    # However slow the machine is: each run of the lane thinks.
    monkeypatch.setattr(giving, "LONG", 1000.0)
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=1)
    return made


def now_as(row: Reservation) -> tuple[str, str]:
    row.refresh_from_db()
    return row.state, row.state_reason


def told(kind: str) -> list[str]:
    return [one.recipient.username for one in OutboxMessage.objects.filter(kind=kind).order_by("pk")]


def offered(scene: Scene, **more: object) -> Reservation:
    row = join(scene, asks_first=True, **more)
    lanes.due(now=NOON)
    assert now_as(row) == ("held", "offered")
    return row


def test_what_asks_nobody_first_starts_at_once_and_its_owner_is_told(scene: Scene) -> None:
    row = join(scene)
    lanes.due(now=NOON)
    assert now_as(row) == ("starting", "waiting_for_node")
    assert told("started_from_wait") == ["lena"]


def test_an_offer_is_held_for_a_quarter_of_an_hour_and_room_for_all_of_its_time_behind_it(
    scene: Scene,
) -> None:
    row = offered(scene)
    assert (row.hold_until, row.from_wait) == (NOON + 15 * MINUTE, True)
    assert Allocation.objects.get(reservation=row).period.upper == NOON + hours(1) + 15 * MINUTE
    message = OutboxMessage.objects.get(kind="offered")
    assert message.data["hold_until"] == (NOON + 15 * MINUTE).isoformat()


def test_an_offer_is_never_held_beyond_what_its_window_allows(scene: Scene) -> None:
    row = offered(scene, latest=NOON + hours(1) + 5 * MINUTE)
    assert row.hold_until == NOON + 5 * MINUTE
    assert row.period.upper == NOON + hours(1) + 5 * MINUTE


def test_accepted_it_begins_then_and_lasts_for_all_of_its_time(scene: Scene) -> None:
    row = offered(scene)
    at = NOON + 10 * MINUTE
    reservations.confirm(actor=scene.lena, reservation_id=row.pk, now=at)
    assert now_as(row) == ("starting", "waiting_for_node")
    assert (row.period.lower, row.period.upper) == (at, at + hours(1))
    one = Allocation.objects.get(reservation=row)
    assert (one.period.upper, one.blocked.upper) == (at + hours(1), at + hours(1))
    settle(scene.pool, Gpu.objects.get(), now=at + SECOND)
    assert now_as(row)[0] == "active"


def test_only_its_owner_and_who_asked_for_it_accept(scene: Scene) -> None:
    row = offered(scene)
    refused(Code.FORBIDDEN, lambda: reservations.confirm(actor=scene.milo, reservation_id=row.pk, now=NOON))
    Reservation.objects.filter(pk=row.pk).update(owner=scene.milo)
    reservations.confirm(actor=scene.milo, reservation_id=row.pk, now=NOON)


def test_an_offer_that_lapses_goes_to_the_next_and_its_owner_to_the_end_of_the_line(scene: Scene) -> None:
    first = offered(scene)
    second = join(scene, actor=scene.milo)
    at = NOON + 15 * MINUTE
    refused(Code.LAPSED, lambda: reservations.confirm(actor=scene.lena, reservation_id=first.pk, now=at))
    lanes.due(now=at)
    assert now_as(first)[0] == "waiting"
    assert now_as(second)[0] == "starting"
    assert (first.waiting_since, first.from_wait, first.period.upper - first.period.lower) == (
        at,
        False,
        hours(1),
    )
    assert not Allocation.objects.filter(reservation=first).exists()
    assert told("offer_lapsed") == ["lena"]


def test_the_second_offer_that_lapses_ends_the_wait(scene: Scene) -> None:
    row = offered(scene)
    lanes.due(now=NOON + 15 * MINUTE)
    assert now_as(row)[0] == "held"
    lanes.due(now=NOON + 30 * MINUTE)
    assert now_as(row) == ("expired", "offer_lapsed")
    told_so = OutboxMessage.objects.filter(kind="offer_lapsed").order_by("pk")
    assert [one.data["waits"] for one in told_so] == [True, False]


def test_an_offer_that_its_owner_declines_is_free_for_the_next_at_once(scene: Scene) -> None:
    row = offered(scene)
    second = join(scene, actor=scene.milo)
    reservations.release(actor=scene.lena, reservation_id=row.pk, now=NOON + SECOND)
    assert now_as(row) == ("cancelled", "cancelled")
    lanes.due(now=NOON + 2 * SECOND)
    assert now_as(second)[0] == "starting"


def test_an_offer_of_fewer_pieces_that_lapses_asks_for_all_of_them_again(scene: Scene) -> None:
    row = offered(scene, ask=gpus(2), partial_ok=True)
    assert row.ask["count"] == 1
    Pool.objects.update(frozen=True)
    lanes.due(now=NOON + 15 * MINUTE)
    assert now_as(row) == ("waiting", "offer_lapsed")
    assert row.ask["count"] == 2


def test_one_who_holds_something_may_be_offered_something_else_beside_it(scene: Scene) -> None:
    add_node(scene.pool, "b", mig_gpus=0, whole_gpus=1)
    reservations.hold(actor=scene.lena, team="vision", pool="main", ask=WHOLE, duration=hours(1), now=NOON)
    row = offered(scene)
    assert row.state == "held"


def test_whose_wait_is_over_is_told_once(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(9))
    row = join(scene, latest=NOON + hours(2))
    for at in (NOON + hours(1) + SECOND, NOON + hours(1) + 3 * SECOND):
        lanes.due(now=at)
    assert now_as(row) == ("expired", "wait_lapsed")
    assert told("wait_lapsed") == ["lena"]
