"""Defragmentation: shown first, applied as shown or not at all, and never to what runs."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.mix import Form, Kind, Mix
from pool.core.shapes import Class, MigAsk
from pool.models import Allocation, Event, Gpu, Pool, PoolMix, Reservation
from pool.queries import mixes
from pool.services import defrag, reservations
from pool.services.idempotency import Claim
from tests.scene import NOON, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

SLICE = MigAsk(profile="1g.10gb")
LATER = NOON + hours(2)


@pytest.fixture
def scene() -> Scene:
    """Two nodes with a GPU each, of which people usually ask for all."""
    made = make_scene()
    add_node(made.pool, "dgx-01")
    add_node(made.pool, "dgx-02")
    usual = Mix((Kind(Form.MIG, profile="7g.80gb"),), (1.0,))
    PoolMix.objects.create(pool=made.pool, mix=usual.as_json(), at=NOON)
    mixes.forget()
    return made


def on(scene: Scene, node: str, **more: Any) -> Reservation:
    """A small slice that was placed there and may be anywhere."""
    more = {"start": LATER} | more
    booked = scene.book(MigAsk(profile="1g.10gb", node=node), **more)
    booked.ask.pop("node")
    booked.save()
    return booked


def find(scene: Scene, now: Any = NOON) -> defrag.Found:
    return defrag.find(actor=scene.otto, pool="main", now=now)


def apply(scene: Scene, key: str, **more: Any) -> int:
    return defrag.apply(actor=scene.otto, pool="main", key=key, now=more.pop("now", NOON), **more)


def held(booked: Reservation) -> set[str]:
    rows = Allocation.objects.filter(reservation=booked, holds=True)
    return set(rows.values_list("gpu__node__name", flat=True))


def test_it_shows_what_would_move_and_moves_nothing(scene: Scene) -> None:
    both = [on(scene, "dgx-01"), on(scene, "dgx-02")]
    found = find(scene)
    assert len(found.plan.steps) == 1
    assert found.plan.after.lost < found.plan.before.lost
    assert [held(one) for one in both] == [{"dgx-01"}, {"dgx-02"}]
    assert find(scene).key == found.key


def test_applied_it_is_as_it_was_shown(scene: Scene) -> None:
    both = [on(scene, "dgx-01"), on(scene, "dgx-02")]
    found = find(scene)
    change = Pool.objects.get().change
    assert apply(scene, found.key) == 1
    assert held(both[0]) == held(both[1])
    assert Pool.objects.get().change == change + 1
    moved = Reservation.objects.get(pk=found.plan.steps[0].move.reservation)
    assert (moved.state, moved.state_reason) == ("scheduled", "moved")
    one = Allocation.objects.get(reservation=moved)
    assert (one.period, one.wanted_at, one.charge_milli) == (moved.period, None, moved.charge_milli)
    assert find(scene).plan.steps == ()


def test_the_audit_has_who_moved_what_from_where_to_where(scene: Scene) -> None:
    on(scene, "dgx-01"), on(scene, "dgx-02")
    apply(scene, find(scene).key)
    event = Event.objects.get(verb="reservation.moved")
    assert event.actor == scene.otto
    ids = [said["allocations"][0]["gpu_id"] for said in (event.before, event.after)]
    assert set(ids) == set(Gpu.objects.values_list("pk", flat=True))


def test_what_runs_never_moves(scene: Scene) -> None:
    running = on(scene, "dgx-01", start=NOON, duration=hours(9))
    for state in ("starting", "active", "paused", "ending"):
        Reservation.objects.filter(pk=running.pk).update(state=state)
        assert find(scene).plan.steps == ()
    other = on(scene, "dgx-02")
    Reservation.objects.filter(pk=running.pk).update(state="active")
    found = find(scene)
    assert [step.move.reservation for step in found.plan.steps] == [other.pk]
    before = Allocation.objects.get(reservation=running)
    apply(scene, found.key)
    assert held(other) == {"dgx-01"}
    assert Allocation.objects.values().get(pk=before.pk) == _columns(before)


def _columns(row: Allocation) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.fields}


def test_online_work_and_what_is_set_aside_stay(scene: Scene) -> None:
    on(scene, "dgx-01", klass=Class.ONLINE)
    on(scene, "dgx-02", klass=Class.ONLINE)
    assert find(scene).plan.steps == ()


def test_a_plan_that_is_another_by_now_is_not_applied(scene: Scene) -> None:
    first, second = on(scene, "dgx-01"), on(scene, "dgx-02")
    key = find(scene).key
    reservations.release(actor=scene.lena, reservation_id=second.pk, now=NOON)
    refused(Code.STALE, lambda: apply(scene, key))
    refused(Code.STALE, lambda: apply(scene, ""))
    assert held(first) == {"dgx-01"}


def test_what_changes_between_the_look_and_the_lock_stops_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [on(scene, "dgx-01"), on(scene, "dgx-02")]
    found = find(scene)
    monkeypatch.setattr(defrag, "find", lambda **_: found)
    (step,) = found.plan.steps
    moving = Reservation.objects.get(pk=step.move.reservation)
    for state in ("starting", "active"):
        Reservation.objects.filter(pk=moving.pk).update(state=state)
        refused(Code.STALE, lambda: apply(scene, found.key))
    Reservation.objects.filter(pk=moving.pk).update(state="scheduled")
    Allocation.objects.filter(reservation=moving).update(wanted_at=NOON)
    refused(Code.STALE, lambda: apply(scene, found.key))
    Allocation.objects.filter(reservation=moving).update(wanted_at=None)
    (target,) = {pick.gpu_id for pick in step.move.picks}
    Gpu.objects.filter(pk=target).update(frozen=True)
    refused(Code.STALE, lambda: apply(scene, found.key))
    Gpu.objects.filter(pk=target).update(frozen=False)
    refused(Code.STALE, lambda: apply(scene, found.key, now=LATER))
    assert [held(one) for one in both] == [{"dgx-01"}, {"dgx-02"}]
    assert apply(scene, found.key) == 1


def test_a_place_that_was_taken_meanwhile_stops_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    on(scene, "dgx-01"), on(scene, "dgx-02")
    found = find(scene)
    monkeypatch.setattr(defrag, "find", lambda **_: found)
    (pick,) = found.plan.steps[0].move.picks
    scene.book(MigAsk(profile="7g.80gb"), start=LATER - hours(1))
    node = Gpu.objects.select_related("node").get(pk=pick.gpu_id).node.name
    while not Allocation.objects.filter(gpu=pick.gpu_id, span__contains=pick.start, period__startswith=LATER):
        on(scene, node)
    refused(Code.STALE, lambda: apply(scene, found.key))


def test_the_same_request_twice_moves_once(scene: Scene) -> None:
    on(scene, "dgx-01"), on(scene, "dgx-02")
    key = find(scene).key
    claim = Claim("user:1", "POST", "/x", "one", "body")
    assert apply(scene, key, claim=claim) == apply(scene, key, claim=claim) == 1
    assert Event.objects.filter(verb="reservation.moved").count() == 1


def test_only_operators_see_and_apply_it(scene: Scene) -> None:
    on(scene, "dgx-01"), on(scene, "dgx-02")
    key = find(scene).key
    refused(Code.FORBIDDEN, lambda: defrag.find(actor=scene.lena, pool="main", now=NOON))
    refused(Code.FORBIDDEN, lambda: defrag.apply(actor=scene.lena, pool="main", key=key, now=NOON))
    refused(Code.NOT_FOUND, lambda: defrag.find(actor=scene.otto, pool="other", now=NOON))


def test_a_frozen_pool_keeps_everything_where_it_is(scene: Scene) -> None:
    on(scene, "dgx-01"), on(scene, "dgx-02")
    Pool.objects.update(frozen=True)
    assert find(scene).plan.steps == ()


def test_by_its_policy_a_pool_moves_what_is_worth_it(scene: Scene) -> None:
    both = [on(scene, "dgx-01"), on(scene, "dgx-02")]
    assert defrag.by_policy(now=NOON) == 0
    Pool.objects.update(defragment=Pool.Defragment.APPLY)
    assert defrag.by_policy(now=NOON) == 1
    assert held(both[0]) == held(both[1])
    event = Event.objects.get(verb="reservation.moved")
    assert (event.actor, event.actor_label) == (None, "system")
    assert defrag.by_policy(now=NOON) == 0


def test_by_policy_nothing_moves_that_is_about_to_begin_or_is_in_a_frozen_pool(scene: Scene) -> None:
    both = [on(scene, "dgx-01"), on(scene, "dgx-02")]
    Pool.objects.update(defragment=Pool.Defragment.APPLY, frozen=True)
    assert defrag.by_policy(now=NOON) == 0
    Pool.objects.update(frozen=False)
    assert defrag.by_policy(now=LATER - defrag.NEAR) == 0
    assert [held(one) for one in both] == [{"dgx-01"}, {"dgx-02"}]


def test_by_policy_a_plan_that_was_overtaken_is_left_for_the_next_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = on(scene, "dgx-01"), on(scene, "dgx-02")
    Pool.objects.update(defragment=Pool.Defragment.APPLY)
    found = find(scene)
    monkeypatch.setattr(defrag, "_found", lambda *_: found)
    for one in (first, second):
        reservations.release(actor=scene.lena, reservation_id=one.pk, now=NOON)
    assert defrag.by_policy(now=NOON) == 0
