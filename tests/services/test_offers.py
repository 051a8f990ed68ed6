"""Offers on a database: each can be booked as it is, within quota and window; or it is said why not."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.offers import Good, Offer
from pool.core.shapes import Ask, Class, GpuAsk, MigAsk
from pool.models import Allocation, Gpu, Node, Pool, QuotaLine, Reservation
from pool.services import offers, reservations
from pool.services.offers import Found
from tests.scene import (
    HALF,
    NOON,
    ONE_SLICE,
    SHARE,
    WHOLE,
    Scene,
    add_node,
    add_shares,
    hours,
    make_scene,
    refused,
)

pytestmark = pytest.mark.django_db

ASKS: tuple[Ask, ...] = (
    ONE_SLICE,
    HALF,
    WHOLE,
    SHARE,
    GpuAsk(count=2, same_node=True),
    MigAsk(profile="1g.10gb+me"),
    MigAsk(profile="1g.10gb", count=3),
)


@pytest.fixture
def scene() -> Scene:
    """Two GPUs for slices, two whole, one for shares."""
    made = make_scene()
    add_node(made.pool, mig_gpus=2, whole_gpus=2)
    add_shares(made.pool)
    return made


def find(scene: Scene, ask: Ask = WHOLE, length: float = 2, **more: Any) -> Found:
    """For Lena, from noon on."""
    wanted = {"actor": scene.lena, "team": "vision", "pool": scene.pool.name, "now": NOON} | more
    return offers.find(ask=ask, duration=hours(length), **wanted)


def starts(found: Found) -> list[float]:
    return [(one.period.start - NOON) / hours(1) for one in found.offers]


def busy(scene: Scene, ask: Ask, start: float, length: float) -> Reservation:
    return scene.book(ask, start=NOON + hours(start), duration=hours(length), actor=scene.sam, team="speech")


def places(reservation: Reservation) -> set[tuple[int, int]]:
    rows = Allocation.objects.filter(reservation=reservation)
    return {(one.gpu_id, one.span.lower) for one in rows}


# --- Every offer can be booked ------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_every_offer_can_be_held_on_the_unchanged_database(scene: Scene, seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(14):
        ask, begins, lasts = drawn.choice(ASKS), drawn.randrange(1, 20), drawn.randrange(1, 6)
        with suppress(Refusal):  # what does not fit is left out
            busy(scene, ask, begins, lasts)
    for ask in ASKS:
        found = find(scene, ask, drawn.randrange(1, 5), end=NOON + hours(24))
        assert found.offers or found.refusal
        for one in found.offers:
            held = _hold(scene, ask, one)
            assert places(held) == {(pick.gpu_id, pick.start) for pick in one.picks}
            _undo(held)


def _hold(scene: Scene, ask: Ask, one: Offer) -> Reservation:
    return reservations.hold(
        actor=scene.lena,
        team="vision",
        pool=scene.pool.name,
        ask=ask,
        start=one.period.start,
        end=one.period.end,
        free_until=one.free_until,
        now=NOON,
    )


def _undo(held: Reservation) -> None:
    """As it was before: the database that the other offers were made on."""
    Allocation.objects.filter(reservation=held).delete()
    held.delete()


# --- Window and quota ---------------------------------------------------------------


def test_the_soonest_is_when_the_first_one_ends(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 3)
    found = find(scene)
    assert starts(found)[0] == 3
    assert Good.SOONEST in found.offers[0].good_for
    assert found.window.start == NOON
    assert found.window.end == NOON + offers.WINDOW


def test_a_window_begins_where_it_is_said_to_begin(scene: Scene) -> None:
    found = find(scene, start=NOON + hours(5), end=NOON + hours(8))
    assert all(5 <= start <= 6 for start in starts(found))


@pytest.mark.parametrize(
    ("end", "code"), [(NOON + hours(1), "too_early"), (NOON + timedelta(days=32), "too_late")]
)
def test_a_window_that_is_too_short_or_too_long_is_refused(scene: Scene, end: datetime, code: str) -> None:
    (error,) = refused(Code.INVALID, lambda: find(scene, end=end))["errors"]
    assert error["code"] == code


def test_quota_closes_times_and_what_is_offered_lies_outside_them(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1000, guaranteed_milli=1000)
    scene.book(WHOLE, start=NOON + hours(1), duration=hours(4))
    assert starts(find(scene))[0] == 5
    assert starts(find(scene, length=1))[0] == 0


def test_online_work_is_offered_only_inside_the_guaranteed(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=2000, guaranteed_milli=1000)
    scene.book(WHOLE, start=NOON, duration=hours(4), klass=Class.ONLINE)
    assert starts(find(scene, klass=Class.ONLINE))[0] == 4
    assert starts(find(scene))[0] == 0


def test_time_for_scrubbing_is_kept_free_between_two_bookings(scene: Scene) -> None:
    Pool.objects.update(scrub_seconds=1800)
    for start in (0, 5):
        for _ in range(2):
            busy(scene, WHOLE, start, 3)
    found = find(scene, length=1)
    assert starts(found)[0] == 3.5
    assert found.offers[0].period.end == NOON + hours(4.5)
    assert starts(find(scene, length=1.5))[0] == 8.5


# --- None ---------------------------------------------------------------------------


def test_nothing_in_the_window_says_why_and_when_it_would(scene: Scene) -> None:
    for _ in range(2):
        busy(scene, WHOLE, 0, 30)
    found = find(scene, end=NOON + hours(12))
    assert found.offers == ()
    assert found.refusal is not None
    told = found.refusal.data
    assert (found.refusal.code, told["asked"], told["free"], told["offered"]) == (Code.NO_CAPACITY, 1, 0, 2)
    assert told["first_time"] == (NOON + hours(30)).isoformat()
    assert told["largest"] is None
    fewer = find(scene, MigAsk(profile="7g.80gb", count=3), end=NOON + hours(12)).refusal
    assert fewer is not None
    assert fewer.data["largest"] == {"kind": "mig", "profile": "7g.80gb", "count": 2}


def test_it_is_said_what_would_have_to_move(scene: Scene) -> None:
    other = add_node(scene.pool, "dgx-09", mig_gpus=0, whole_gpus=2)
    here, there = busy(scene, WHOLE, 1, 2), busy(scene, WHOLE, 1, 2)
    Allocation.objects.filter(reservation=here).update(gpu=Gpu.objects.get(node__name="dgx-01", index=2))
    Allocation.objects.filter(reservation=there).update(gpu=other[0])
    both = GpuAsk(count=2, same_node=True)
    found = find(scene, both, 4, end=NOON + hours(5))
    assert found.offers == ()
    assert found.shift is not None
    (move,) = found.shift.moves
    assert move.reservation in (here.pk, there.pk)
    assert found.shift.charge_milli == 1000
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1500, guaranteed_milli=0)
    assert find(scene, both, 4, end=NOON + hours(5)).shift is None


def test_what_the_pool_can_never_hold_has_no_first_time(scene: Scene) -> None:
    found = find(scene, GpuAsk(count=3))
    assert found.refusal is not None
    assert found.refusal.data["first_time"] is None


def test_without_quota_it_is_said_that_there_is_none(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).delete()
    found = find(scene)
    assert found.refusal is not None
    assert found.refusal.code == Code.QUOTA_EXCEEDED


def test_who_may_not_book_gets_no_offers(scene: Scene) -> None:
    refused(Code.NOT_FOUND, lambda: find(scene, actor=scene.sam))


def test_nothing_is_written(scene: Scene) -> None:
    find(scene)
    assert not Reservation.objects.exists()
    assert not Allocation.objects.exists()


# --- Cpu and memory of nodes --------------------------------------------------------


def test_a_start_far_behind_many_at_which_the_node_has_no_cpu_left_is_found(scene: Scene) -> None:
    Node.objects.update(cpu_milli=64_000)
    models = GpuAsk(models=WHOLE.models, node="dgx-01", node_cpu_milli=64_000)
    for hour in range(1, 71):
        scene.book(models, start=NOON + hours(hour), duration=hours(0.9))
    (first, *_) = find(scene, models, 2).offers
    assert first.period.start == NOON + hours(70.9)
    told = refused(Code.NO_CAPACITY, lambda: scene.book(models, duration=hours(2)))
    assert told["first_time"] == (NOON + hours(70.9)).isoformat()


def test_it_is_extendable_only_as_long_as_the_node_has_cpu_for_it(scene: Scene) -> None:
    Node.objects.update(cpu_milli=64_000)
    ask = GpuAsk(models=WHOLE.models, node="dgx-01", node_cpu_milli=32_000)
    scene.book(replace(ask, node_cpu_milli=64_000), start=NOON + hours(5), duration=hours(200))
    found = find(scene, ask, 2)
    assert found.offers[0].extendable_until == NOON + hours(5)
