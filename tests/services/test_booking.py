"""Booking: what is refused with which numbers, that a refusal writes nothing, and the same request twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from pool.core.errors import Code
from pool.core.shapes import Class, MigAsk
from pool.models import (
    Allocation,
    Blocker,
    Command,
    Gpu,
    GpuState,
    IdempotencyKey,
    Node,
    Pool,
    QuotaLine,
    Reservation,
)
from pool.queries import clock
from pool.queries.snapshot import Snapshot
from pool.services import plans
from pool.services.idempotency import Claim
from pool.services.plans import Plan, Wanted
from tests.scene import H100, HALF, NOON, ONE_SLICE, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


# --- No room --------------------------------------------------------------------


def test_it_refuses_an_overlapping_period_with_the_numbers_and_the_first_free_time(scene: Scene) -> None:
    scene.book(MigAsk(profile="1g.10gb", count=6))
    told = refused(Code.NO_CAPACITY, lambda: scene.book(MigAsk(profile="1g.10gb", count=2)))
    assert (told["asked"], told["free"], told["offered"]) == (2, 1, 7)
    assert told["first_time"] == (NOON + hours(1)).isoformat()


def test_it_refuses_more_than_the_pool_has_and_names_no_time(scene: Scene) -> None:
    told = refused(Code.NO_CAPACITY, lambda: scene.book(MigAsk(profile="1g.10gb", count=1000)))
    assert (told["asked"], told["free"], told["first_time"]) == (1000, 7, None)


@pytest.mark.parametrize("busy_for", [5, 24 * 59])
def test_the_first_free_time_is_found_within_sixty_days(scene: Scene, busy_for: int) -> None:
    scene.book(MigAsk(profile="7g.80gb"), duration=hours(busy_for))
    assert refused(Code.NO_CAPACITY, scene.book)["first_time"] == (NOON + hours(busy_for)).isoformat()


def test_beyond_sixty_days_no_time_is_promised(scene: Scene) -> None:
    scene.book(MigAsk(profile="7g.80gb"), duration=hours(24 * 60 + 1))
    assert refused(Code.NO_CAPACITY, scene.book)["first_time"] is None


def test_a_pool_without_any_report_has_no_capacity() -> None:
    scene = make_scene()
    told = refused(Code.NO_CAPACITY, scene.book)
    assert (told["free"], told["offered"]) == (0, 0)


def test_a_gpu_that_was_never_reported_has_no_capacity(scene: Scene) -> None:
    GpuState.objects.all().delete()
    assert refused(Code.NO_CAPACITY, scene.book)["counts"] == {"unknown": 1}


@pytest.mark.parametrize(
    ("rows", "values", "why"),
    [
        (Gpu, {"managed": False}, "observe"),
        (Gpu, {"frozen": True}, "frozen"),
        (Gpu, {"retired_at": NOON}, "retired"),
        (GpuState, {"lost": True}, "lost"),
        (Node, {"frozen": True}, "frozen"),
        (Node, {"agent_frozen": True}, "frozen"),
        (Node, {"unknown_since": NOON}, "unknown"),
        (Node, {"received_at": None}, "unknown"),
    ],
)
def test_only_gpus_that_can_be_had_are_offered(
    scene: Scene, rows: Any, values: dict[str, Any], why: str
) -> None:
    rows.objects.update(**values)
    assert refused(Code.NO_CAPACITY, lambda: scene.book(start=NOON + hours(1)))["counts"] == {why: 1}


def test_a_node_that_missed_three_reports_is_not_offered_before_any_lane_has_noticed(scene: Scene) -> None:
    Node.objects.update(received_at=clock.real_now() - timedelta(seconds=46))
    assert refused(Code.NO_CAPACITY, scene.book)["counts"] == {"unknown": 1}


def test_what_occupies_a_gpu_without_being_booked_is_in_the_way(scene: Scene) -> None:
    gpu = Gpu.objects.get()
    Blocker.objects.create(gpu=gpu, span=(0, 8), since=NOON, kind="foreign")
    refused(Code.NO_CAPACITY, lambda: scene.book(start=NOON + hours(100)))
    Blocker.objects.all().delete()
    scene.book(start=NOON + hours(100))


def test_in_a_frozen_pool_it_books_and_the_start_waits(scene: Scene) -> None:
    Pool.objects.update(frozen=True)
    booked = scene.book()
    assert (booked.state, booked.state_reason) == ("starting", "frozen")
    assert Allocation.objects.get(reservation=booked).wanted_at is None
    assert not Command.objects.exists()


def test_it_prefers_a_span_that_is_clean_already(scene: Scene) -> None:
    first = scene.book(HALF)
    Reservation.objects.filter(pk=first.pk).update(state="ending")
    later = scene.book(HALF, now=NOON + hours(1))
    spans = Allocation.objects.values_list("span", flat=True)
    assert len(set(spans)) == 2
    assert later.state_reason == "waiting_for_node"


def test_a_booking_on_a_span_that_is_not_clean_waits_for_it() -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=1)
    first = scene.book(WHOLE)
    Reservation.objects.filter(pk=first.pk).update(state="ending")
    later = scene.book(WHOLE, now=NOON + hours(1))
    assert (later.state, later.state_reason) == ("starting", "waiting_for_cleanup")
    assert Allocation.objects.get(reservation=later).wanted_at is None


# --- Overtaken ------------------------------------------------------------------


def test_overtaken_twice_it_decides_the_third_time_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene()
    add_node(scene.pool, mig_gpus=0, whole_gpus=3)
    choose, quicker = plans.choose, iter(range(2))

    def one_and_be_overtaken(snap: Snapshot, wanted: Wanted) -> list[Plan]:
        found = choose(snap, wanted)[:1]
        if snap.change in quicker:
            # Somebody takes just that GPU before we can confirm.
            with monkeypatch.context() as usual:
                usual.setattr(plans, "choose", choose)
                scene.book(WHOLE, actor=scene.sam, team="speech", start=NOON + hours(1))
        return found

    monkeypatch.setattr(plans, "choose", one_and_be_overtaken)
    booked = scene.book(WHOLE, start=NOON + hours(1))
    gpus = list(Allocation.objects.values_list("gpu", flat=True))
    assert len(gpus) == len(set(gpus)) == 3
    assert Allocation.objects.get(reservation=booked).gpu_id == max(gpus)


def test_a_change_elsewhere_does_not_cost_the_plan(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = plans.choose

    def change_meanwhile(snap: Snapshot, wanted: Wanted) -> list[Plan]:
        found = choose(snap, wanted)
        Pool.objects.filter(change=0).update(change=5)
        return found

    monkeypatch.setattr(plans, "choose", change_meanwhile)
    scene.book()
    assert Pool.objects.get().change == 6


def test_a_refusal_on_a_reading_that_was_changed_meanwhile_is_looked_at_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gpu.objects.update(frozen=True)
    choose = plans.choose

    def thaw_meanwhile(snap: Snapshot, wanted: Wanted) -> list[Plan]:
        if Gpu.objects.filter(frozen=True).update(frozen=False):
            Pool.objects.update(change=F("change") + 1)
        return choose(snap, wanted)

    monkeypatch.setattr(plans, "choose", thaw_meanwhile)
    assert scene.book().state == "starting"


# --- Quota ----------------------------------------------------------------------


def test_it_refuses_what_exceeds_the_cap_with_the_peak_that_is_used(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=500, guaranteed_milli=0)
    scene.book(start=NOON + hours(1))
    scene.book(start=NOON + hours(2))
    told = refused(Code.QUOTA_EXCEEDED, lambda: scene.book(HALF, start=NOON, duration=hours(3)))
    assert (told["reason"], told["cap"], told["used"], told["asked"]) == ("over_cap", 500, 125, 500)


def test_it_books_up_to_the_cap_exactly(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=500, guaranteed_milli=0)
    assert scene.book(HALF).charge_milli == 500


def test_what_another_team_uses_does_not_count(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=500, guaranteed_milli=0)
    scene.book(HALF, actor=scene.sam, team="speech")
    scene.book(HALF)


def test_without_any_line_nothing_is_granted(scene: Scene) -> None:
    QuotaLine.objects.all().delete()
    told = refused(Code.QUOTA_EXCEEDED, scene.book)
    assert (told["reason"], told["cap"]) == ("no_line", 0)


def test_a_line_for_the_model_counts_beside_the_line_for_any(scene: Scene) -> None:
    QuotaLine.objects.create(team=scene.vision, pool=scene.pool, model=H100, cap_milli=250)
    scene.book(MigAsk(profile="1g.10gb", count=2))
    told = refused(Code.QUOTA_EXCEEDED, scene.book)
    assert (told["model"], told["cap"], told["used"], told["asked"]) == (H100, 250, 250, 125)


def test_online_work_stays_within_the_guaranteed(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=1000, guaranteed_milli=500)
    scene.book(HALF, klass=Class.ONLINE)
    told = refused(Code.QUOTA_EXCEEDED, lambda: scene.book(klass=Class.ONLINE))
    assert (told["reason"], told["cap"], told["used"]) == ("online_over_guaranteed", 500, 500)
    scene.book(klass=Class.BATCH)


def test_a_model_without_quota_left_gives_way_to_one_that_has(scene: Scene) -> None:
    add_node(scene.pool, "a100", model="A100-80GB")
    QuotaLine.objects.filter(team=scene.vision).update(model="A100-80GB")
    booked = scene.book(ONE_SLICE)
    assert Allocation.objects.get(reservation=booked).model == "A100-80GB"


# --- The same request once more ---------------------------------------------------


def key(fingerprint: str = "f") -> Claim:
    return Claim("user:1", "POST", "/api/v1/reservations", "k", fingerprint)


def test_the_same_key_with_the_same_body_answers_the_first_result(scene: Scene) -> None:
    first = scene.book(claim=key())
    again = scene.book(claim=key())
    assert (again.pk, first.replayed, again.replayed) == (first.pk, False, True)
    assert Reservation.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(scene: Scene) -> None:
    scene.book(claim=key())
    refused(Code.KEY_REUSED, lambda: scene.book(claim=key("other")))


def test_a_replay_is_answered_although_it_could_not_be_booked_any_more(scene: Scene) -> None:
    first = scene.book(HALF, start=NOON + hours(1), claim=key())
    scene.book(HALF, start=NOON + hours(1))
    assert scene.book(HALF, start=NOON + hours(1), now=NOON + hours(9), claim=key()).pk == first.pk


def test_a_refusal_leaves_the_key_free(scene: Scene) -> None:
    QuotaLine.objects.update(cap_milli=0, guaranteed_milli=0)
    refused(Code.QUOTA_EXCEEDED, lambda: scene.book(claim=key()))
    assert not IdempotencyKey.objects.exists()
    QuotaLine.objects.update(cap_milli=F("cap_milli") + 1000)
    assert not scene.book(claim=key()).replayed
