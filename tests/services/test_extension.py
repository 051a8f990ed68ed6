"""Extending: the added time is checked like a new booking, on the same GPUs and spans."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.models import Allocation, Blocker, Event, Gpu, Node, Pool, QuotaLine
from pool.services import reservations
from portal.errortable import IN_THE_WAY
from tests.scene import HALF, NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

END = NOON + hours(1)


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def extend(scene: Scene, booked: Any, **more: Any) -> Any:
    actor = more.pop("actor", scene.lena)
    if "end" not in more and "duration" not in more:
        more["duration"] = hours(1)
    return reservations.extend(actor=actor, reservation_id=booked.pk, now=more.pop("now", NOON), **more)


def test_a_duration_is_added_to_the_present_end(scene: Scene) -> None:
    longer = extend(scene, scene.book(), duration=hours(2))
    one = Allocation.objects.get()
    assert longer.period.upper == one.period.upper == one.blocked.upper == END + hours(2)
    assert (one.period.lower, longer.version) == (NOON, 2)


def test_an_end_replaces_the_present_one(scene: Scene) -> None:
    longer = extend(scene, scene.book(), end=END + timedelta(minutes=5))
    assert longer.period.upper == END + timedelta(minutes=5)


def test_it_draws_a_change_number_and_tells_the_audit(scene: Scene) -> None:
    booked = scene.book()
    change = Pool.objects.get().change
    extend(scene, booked)
    assert Pool.objects.get().change == change + 1
    event = Event.objects.filter(verb="reservation.extended").get()
    assert (event.before["end"], event.after["end"]) == (END.isoformat(), (END + hours(1)).isoformat())


def test_the_next_booking_on_its_span_is_in_the_way_and_says_how_far_it_may_go() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    booked = scene.book(WHOLE)
    scene.book(WHOLE, start=END + hours(2))
    told = refused(Code.NO_CAPACITY, lambda: extend(scene, booked, duration=hours(3)))
    assert (told["asked"], told["free"], told["counts"]) == (1, 0, {"busy": 1})
    assert told["latest_end"] == (END + hours(2)).isoformat()
    assert extend(scene, booked, duration=hours(2)).period.upper == END + hours(2)


def test_a_booking_beside_it_is_not_in_the_way(scene: Scene) -> None:
    booked = scene.book(HALF)
    scene.book(HALF, duration=hours(5))
    assert extend(scene, booked, duration=hours(1)).period.upper == END + hours(1)


def test_a_profile_that_is_used_up_by_then_is_in_the_way(scene: Scene) -> None:
    media = MigAsk(profile="1g.10gb+me")
    booked = scene.book(media)
    scene.book(media, start=END)
    refused(Code.NO_CAPACITY, lambda: extend(scene, booked))


def test_the_added_time_counts_in_quota(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=750, guaranteed_milli=0)
    add_node(scene.pool, "other")
    booked = scene.book(replace(HALF, node="dgx-01"))
    scene.book(replace(HALF, node="other"), start=END + hours(1))
    told = refused(Code.QUOTA_EXCEEDED, lambda: extend(scene, booked, duration=hours(2)))
    assert (told["cap"], told["used"], told["asked"]) == (750, 500, 500)
    extend(scene, booked, duration=hours(1))


def test_online_work_stays_within_the_guaranteed(scene: Scene) -> None:
    booked = scene.book(HALF, klass=Class.ONLINE)
    QuotaLine.objects.update(guaranteed_milli=400)
    assert refused(Code.QUOTA_EXCEEDED, lambda: extend(scene, booked))["reason"] == "online_over_guaranteed"


@pytest.mark.parametrize(
    ("rows", "values", "why"),
    [(Node, {"unknown_since": NOON}, "unknown"), (Gpu, {"frozen": True}, "frozen")],
)
def test_what_is_not_known_or_frozen_is_not_free(
    scene: Scene, rows: Any, values: dict[str, Any], why: str
) -> None:
    booked = scene.book()
    rows.objects.update(**values)
    assert refused(Code.NO_CAPACITY, lambda: extend(scene, booked))["counts"] == {why: 1}


@pytest.mark.parametrize(
    ("kind", "why"),
    [("overrun", "overrun"), ("foreign", "foreign"), ("unknown", "unknown"), ("health", "unhealthy")],
)
def test_what_stands_there_without_being_booked_is_named(scene: Scene, kind: str, why: str) -> None:
    booked = scene.book()
    there = Allocation.objects.get()
    Blocker.objects.create(gpu_id=there.gpu_id, span=there.span, since=NOON, kind=kind)
    told = refused(Code.NO_CAPACITY, lambda: extend(scene, booked))
    assert (told["counts"], told["latest_end"]) == ({why: 1}, None)
    assert IN_THE_WAY[why]


def test_a_booking_in_the_way_is_named_before_what_stands_there_too() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    booked = scene.book(WHOLE)
    scene.book(WHOLE, start=END + hours(0.5))
    Blocker.objects.create(gpu=Gpu.objects.get(), span=(0, 8), since=NOON, kind="foreign")
    assert refused(Code.NO_CAPACITY, lambda: extend(scene, booked))["counts"] == {"busy": 1}


@pytest.mark.parametrize(
    ("times", "code"),
    [
        ({"end": END}, "not_later"),
        ({"end": NOON + hours(0.5)}, "not_later"),
        ({"duration": timedelta(days=366)}, "too_large"),
        ({"end": END + hours(1), "duration": hours(1)}, "one_of"),
    ],
)
def test_it_refuses_an_end_that_cannot_be(scene: Scene, times: dict[str, Any], code: str) -> None:
    booked = scene.book()
    (error,) = refused(Code.INVALID, lambda: extend(scene, booked, **times))["errors"]
    assert error["code"] == code


def test_what_is_ending_gets_no_more_time(scene: Scene) -> None:
    booked = scene.book()
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    assert refused(Code.WRONG_STATE, lambda: extend(scene, booked))["state"] == "ending"


def test_it_refuses_somebody_who_read_an_older_version(scene: Scene) -> None:
    booked = scene.book()
    extend(scene, booked, version=1)
    assert refused(Code.STALE, lambda: extend(scene, booked, version=1)) == {"version": 2, "known": 1}


def test_owner_and_lead_may_extend_and_nobody_else(scene: Scene) -> None:
    booked = scene.book(actor=scene.milo)
    extend(scene, booked, actor=scene.milo)
    extend(scene, booked, actor=scene.lena)
    refused(Code.FORBIDDEN, lambda: extend(scene, booked, actor=scene.otto))
    refused(Code.NOT_FOUND, lambda: extend(scene, booked, actor=scene.sam))


def test_a_member_may_not_extend_what_another_owns(scene: Scene) -> None:
    booked = scene.book()
    refused(Code.FORBIDDEN, lambda: extend(scene, booked, actor=scene.milo))


def test_a_node_that_has_given_its_cpu_to_others_by_then_refuses() -> None:
    scene = make_scene()
    gpus = add_node(scene.pool, mig_gpus=0, whole_gpus=2)
    Node.objects.update(cpu_milli=32_000)
    booked = scene.book(GpuAsk(node_cpu_milli=20_000))
    later = scene.book(GpuAsk(node_cpu_milli=20_000), start=END + hours(1), duration=hours(1))
    Allocation.objects.filter(reservation=booked).update(gpu=gpus[0])
    Allocation.objects.filter(reservation=later).update(gpu=gpus[1])
    told = refused(Code.NO_CAPACITY, lambda: extend(scene, booked, duration=hours(2)))
    assert told["counts"] == {"node_full": 1}
    assert extend(scene, booked, duration=hours(1)).period.upper == END + hours(1)
