"""Orders of steps that once broke what must hold; each as small as it could be made."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.models import Gpu, Membership, QuotaLine, Reservation, Team
from pool.queries import consistency
from pool.services import lanes, reservations
from tests.scene import HALF, NOON, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db

FULL = MigAsk(profile="7g.80gb")


def a_pool(
    *, wholes: int = 0, migs: int = 0, unit: str = "gpu", **guaranteed: tuple[int, int | None]
) -> Scene:
    """Each team's guaranteed, and what of it is lent; Lena leads all of them."""
    scene = make_scene(cap=4000, guaranteed=0)
    for name, (milli, lend) in guaranteed.items():
        team, _ = Team.objects.get_or_create(name=name)
        Membership.objects.get_or_create(team=team, user=scene.lena, role="lead")
        line = {"guaranteed_milli": milli, "cap_milli": 4000, "lend_milli": lend, "unit": "gpu"}
        QuotaLine.objects.update_or_create(team=team, pool=scene.pool, defaults=line)
    add_node(scene.pool, whole_gpus=wholes, mig_gpus=migs)
    return scene


def differs(now: object = NOON) -> set[str]:
    return {one.rule for one in consistency.differences(now) if not one.kept}  # type: ignore[arg-type]


def run_and_report(scene: Scene, minutes: int) -> None:
    """The lane, what the nodes say to it, and the lane again."""
    now = NOON + timedelta(minutes=minutes)
    lanes.due(now=now)
    for gpu in Gpu.objects.order_by("pk"):
        settle(scene.pool, gpu, now=now)
    lanes.due(now=now)
    assert differs(now) == set()


def states(team: str) -> list[str]:
    rows = Reservation.objects.filter(team__name=team).order_by("created_at", "pk")
    return list(rows.values_list("state", flat=True))


def test_what_is_taken_back_comes_back_and_every_step_of_it_has_its_event() -> None:
    scene = a_pool(wholes=4, owner=(2000, None), vision=(0, None))
    for _ in range(2):
        scene.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6))
    run_and_report(scene, 0)
    mine = scene.book(GpuAsk(count=2), team="owner", duration=hours(2))
    assert (mine.state, mine.state_reason, mine.period.lower) == (
        "scheduled",
        "reclaiming",
        NOON + hours(1 / 6),
    )
    assert differs() == set()
    run_and_report(scene, 5)
    assert states("vision") == ["active", "active"]
    run_and_report(scene, 10)
    run_and_report(scene, 11)
    assert (states("owner"), sorted(states("vision"))) == (["active"], ["active", "preempted", "waiting"])
    run_and_report(scene, 130)
    run_and_report(scene, 131)
    assert (states("owner"), sorted(states("vision"))) == (["ended"], ["active", "active", "preempted"])


def test_what_turns_out_not_to_be_needed_stays() -> None:
    scene = a_pool(wholes=4, owner=(2000, None), vision=(0, None))
    for _ in range(2):
        scene.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6))
    run_and_report(scene, 0)
    mine = scene.book(GpuAsk(count=2), team="owner", duration=hours(2))
    reservations.release(actor=scene.lena, reservation_id=mine.pk, now=NOON)
    run_and_report(scene, 1)
    run_and_report(scene, 20)
    assert states("vision") == ["active", "active"]
    assert not Reservation.objects.exclude(recall_at=None).exists()


def test_what_is_kept_is_left_alone_by_who_lends() -> None:
    scene = a_pool(wholes=4, lender=(2000, None), keeper=(1000, 0), vision=(0, None))
    scene.book(GpuAsk(count=3), klass=Class.BATCH, duration=hours(6))
    scene.book(GpuAsk(), team="lender")
    assert differs() == set()


def test_what_comes_inside_later_does_not_stand_where_anothers_place_is() -> None:
    scene = a_pool(migs=2, owner=(1000, None), vision=(1000, None))
    first, *_ = [scene.book(HALF, duration=hours(6)) for _ in range(3)]
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    run_and_report(scene, 0)
    assert scene.book(FULL, team="owner").period.lower <= NOON + hours(1)
