"""Room made by moving what has not begun: shown first, then all of it or nothing, and never what runs."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.models import Allocation, Event, Gpu, Node, Pool, QuotaLine, Reservation
from pool.services import moves, reservations
from pool.services.idempotency import Claim
from pool.services.moves import For, Found
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

BOTH = GpuAsk(count=2, same_node=True)


@pytest.fixture
def scene() -> Scene:
    """Two nodes with two whole GPUs each, on each of which Sam has one from one o'clock on."""
    made = make_scene()
    for name in ("dgx-01", "dgx-02"):
        add_node(made.pool, name, mig_gpus=0, whole_gpus=2)
        booked = made.book(
            GpuAsk(node=name), start=NOON + hours(1), duration=hours(2), actor=made.sam, team="speech"
        )
        booked.ask.pop("node")
        booked.save()
    return made


def wish(ask: Any = BOTH, length: float = 4, **more: Any) -> For:
    return For("vision", "main", ask, NOON + hours(1), duration=hours(length), **more)


def find(scene: Scene, asked: For | None = None, **more: Any) -> Found:
    return moves.find(actor=more.pop("actor", scene.otto), wish=asked or wish(), now=more.pop("now", NOON))


def apply(scene: Scene, key: str, asked: For | None = None, **more: Any) -> int:
    how: dict[str, Any] = {"actor": scene.otto, "wish": asked or wish(), "now": NOON} | more
    return moves.apply(key=key, **how)


def nodes() -> list[str]:
    rows = Allocation.objects.filter(holds=True, reservation__team__name="speech")
    return sorted(rows.values_list("gpu__node__name", flat=True))


def test_it_shows_what_would_move_and_moves_nothing(scene: Scene) -> None:
    found = find(scene)
    assert (len(found.steps), found.charge_milli, found.fits) == (1, 1000, False)
    assert len(found.picks) == 2
    assert nodes() == ["dgx-01", "dgx-02"]
    assert find(scene).key == found.key


def test_applied_what_did_not_fit_can_be_booked(scene: Scene) -> None:
    assert refused(Code.NO_CAPACITY, lambda: scene.book(BOTH, start=NOON + hours(1), duration=hours(4)))
    change = Pool.objects.get().change
    assert apply(scene, find(scene).key) == 1
    assert len(set(nodes())) == 1
    assert Pool.objects.get().change == change + 1
    assert scene.book(BOTH, start=NOON + hours(1), duration=hours(4)).state == "scheduled"


def test_who_moved_what_is_in_the_audit_and_its_owner_sees_that_it_was_moved(scene: Scene) -> None:
    apply(scene, find(scene).key)
    event = Event.objects.get(verb="reservation.moved")
    assert event.actor == scene.otto
    moved = Reservation.objects.get(pk=event.reservation_id)
    assert (moved.state, moved.state_reason, moved.charge_milli) == ("scheduled", "moved", 1000)


def test_where_it_fits_there_is_nothing_to_move(scene: Scene) -> None:
    found = find(scene, wish(WHOLE))
    assert (found.fits, found.steps, found.key) == (True, (), "")


def test_where_nothing_helps_nothing_is_moved(scene: Scene) -> None:
    Reservation.objects.update(klass=Class.ONLINE)
    found = find(scene)
    assert (found.fits, found.steps, found.key) == (False, (), "")
    refused(Code.STALE, lambda: apply(scene, ""))


def test_what_begins_meanwhile_stops_all_of_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(scene)
    monkeypatch.setattr(moves, "find", lambda **_: found)
    (step,) = found.steps
    moving = Reservation.objects.filter(pk=step.move.reservation)
    for state in ("starting", "active", "cancelled"):
        moving.update(state=state)
        refused(Code.STALE, lambda: apply(scene, found.key))
    moving.update(state="scheduled")
    (target,) = {pick.gpu_id for pick in step.move.picks}
    Gpu.objects.filter(pk=target).update(frozen=True)
    refused(Code.STALE, lambda: apply(scene, found.key))
    Gpu.objects.update(frozen=False)
    assert nodes() == ["dgx-01", "dgx-02"]
    assert apply(scene, found.key) == 1


def test_room_that_is_taken_meanwhile_stops_it_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(scene)
    monkeypatch.setattr(moves, "find", lambda **_: found)
    freed = {pick.gpu_id for pick in found.picks} - {gpu for gpu, _, _ in found.steps[0].before}
    node = Node.objects.get(gpus__in=freed)
    taken = scene.book(GpuAsk(node=node.name), start=NOON + hours(4), duration=hours(1))
    refused(Code.STALE, lambda: apply(scene, found.key))
    assert nodes() == ["dgx-01", "dgx-02"]
    reservations.release(actor=scene.lena, reservation_id=taken.pk, now=NOON)
    assert apply(scene, found.key) == 1


def test_a_key_of_another_wish_is_stale(scene: Scene) -> None:
    key = find(scene).key
    refused(Code.STALE, lambda: apply(scene, key, wish(length=3)))


def test_sent_twice_it_moves_once(scene: Scene) -> None:
    key, claim = find(scene).key, Claim(f"user:{scene.otto.pk}", "POST", "/room", "k-1", "h")
    assert [apply(scene, key, claim=claim) for _ in range(2)] == [1, 1]
    assert Event.objects.filter(verb="reservation.moved").count() == 1


def test_only_operators_see_or_move(scene: Scene) -> None:
    refused(Code.FORBIDDEN, lambda: find(scene, actor=scene.lena))
    refused(Code.FORBIDDEN, lambda: apply(scene, find(scene).key, actor=scene.lena))


def test_for_whom_it_is_has_to_be_of_the_team(scene: Scene) -> None:
    (error,) = refused(Code.INVALID, lambda: find(scene, wish(owner="sam")))["errors"]
    assert error["code"] == "not_a_member"
    assert find(scene, wish(owner="lena")).steps


def test_without_quota_for_it_nothing_moves(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1500, guaranteed_milli=0)
    assert find(scene).steps == ()


def test_what_goes_on_where_its_owner_is_stays(scene: Scene) -> None:
    """Two bookings of one owner without a break are one stay: moving the second would end it."""
    for booked in list(Reservation.objects.all()):
        on = booked.allocations.get().gpu
        earlier = scene.book(
            GpuAsk(node=on.node.name), start=NOON, duration=hours(1), actor=scene.sam, team="speech"
        )
        Allocation.objects.filter(reservation=earlier).update(gpu=on)
    assert find(scene).steps == ()


def test_a_slice_keeps_its_kind_of_gpu_and_what_it_counts(scene: Scene) -> None:
    add_node(scene.pool, "dgx-03", mig_gpus=2, whole_gpus=0)
    for _ in range(2):
        scene.book(MigAsk(profile="1g.10gb"), start=NOON + hours(1), duration=hours(2))
    first, second = Allocation.objects.filter(kind="mig")
    other = Gpu.objects.exclude(pk=first.gpu_id).get(node__name="dgx-03")
    Allocation.objects.filter(pk=second.pk).update(gpu=other)
    found = find(scene, wish(MigAsk(profile="7g.80gb")))
    (step,) = found.steps
    assert [pick.model for pick in step.move.picks] == [first.model]
    assert found.charge_milli == first.charge_milli
