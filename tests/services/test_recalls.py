"""What is due for what is taken back: the word before the end, and who need not leave any more."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.shapes import GpuAsk
from pool.core.terms import Preempt, Terms
from pool.models import Command, Gpu, Node, Pool, QuotaLine, Reservation
from pool.services import lanes, recalls
from tests.scene import H100, NOON, WHOLE, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db

SOON = NOON + timedelta(minutes=5)
SIGNAL = Terms(preempt=Preempt("SIGUSR1", timedelta(minutes=2)))


@pytest.fixture
def scene() -> Scene:
    """One GPU, guaranteed to speech; vision borrows it."""
    made = make_scene(cap=9000, guaranteed=0)
    add_node(made.pool, mig_gpus=0, whole_gpus=1)
    QuotaLine.objects.filter(team=made.speech).update(guaranteed_milli=1000)
    Pool.objects.update(min_run_seconds=0)
    return made


def held(at: datetime) -> list[dict[str, Any]]:
    """What the GPU is commanded to hold, after the lane has run."""
    lanes.due(now=at)
    gpu = Gpu.objects.get()
    assert gpu.wanted is not None
    found: list[dict[str, Any]] = gpu.wanted["held"]
    return found


def test_the_signal_is_commanded_so_long_before_as_was_asked_and_once(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(4), terms=SIGNAL)
    settle(scene.pool, Gpu.objects.get())
    scene.book(WHOLE, actor=scene.sam, team="speech")
    (before,) = held(SOON - timedelta(minutes=2, seconds=1))
    assert (before["phase"], before["signal"]) == ("run", "")
    (then,) = held(SOON - timedelta(minutes=2))
    assert (then["phase"], then["signal"]) == ("checkpoint", "SIGUSR1")
    commands = Command.objects.count()
    held(SOON - timedelta(minutes=1))
    assert Command.objects.count() == commands


def test_who_asked_for_no_signal_gets_none(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(4))
    settle(scene.pool, Gpu.objects.get())
    scene.book(WHOLE, actor=scene.sam, team="speech")
    (one,) = held(SOON - timedelta(seconds=1))
    assert (one["phase"], one["signal"]) == ("run", "")
    assert recalls.to_warn(scene.pool.pk, SOON) == set()


def test_on_a_frozen_node_nobody_leaves(scene: Scene) -> None:
    victim = scene.book(WHOLE, duration=hours(4))
    scene.book(WHOLE, actor=scene.sam, team="speech")
    Node.objects.update(frozen=True)
    assert list(recalls.due(scene.pool.pk, SOON)) == []
    Node.objects.update(frozen=False)
    assert [row.pk for row in recalls.due(scene.pool.pk, SOON)] == [victim.pk]
    assert list(recalls.due(scene.pool.pk, SOON - timedelta(seconds=1))) == []


def test_who_need_not_leave_is_found_once_nobody_wants_the_place(scene: Scene) -> None:
    victim = scene.book(GpuAsk(models=(H100,)), duration=hours(4))
    mine = scene.book(WHOLE, actor=scene.sam, team="speech")
    assert list(recalls.unneeded(scene.pool.pk, NOON)) == []
    Reservation.objects.filter(pk=mine.pk).update(state="cancelled")
    assert [row.pk for row in recalls.unneeded(scene.pool.pk, NOON)] == [victim.pk]
    Reservation.objects.filter(pk=victim.pk).update(recall_for=None)
    assert [row.pk for row in recalls.unneeded(scene.pool.pk, NOON)] == [victim.pk]
    assert list(recalls.unneeded(scene.pool.pk, SOON)) == []
