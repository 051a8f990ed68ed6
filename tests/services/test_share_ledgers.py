"""A day of shares, drawn by chance: what is granted fits at every instant, and what is refused did not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.shapes import Class, ShareAsk
from pool.core.shares import shareable_mib
from pool.models import Allocation, Gpu, Pool, Reservation
from pool.queries import clock
from pool.services import inventory, lanes, reservations
from tests.cast import Cast, enrol_node
from tests.scene import NOON, Scene, add_shares, hours, make_scene

pytestmark = pytest.mark.django_db

MOST = 4
HOURS = range(8)


def held(gpu: Gpu, at: datetime) -> list[Allocation]:
    return list(gpu.allocations.filter(holds=True, blocked__contains=at))


def fits(gpu: Gpu, more: Sequence[tuple[int, int, str]], start: int, length: int) -> bool:
    """Whether these (MiB, percent, account) can be added on this GPU for all of those hours."""
    for hour in range(start, start + length):
        there = [
            (one.share_memory_mib or 0, one.share_compute_pct or 0, one.mps_user or "")
            for one in held(gpu, NOON + hours(hour))
        ]
        now = [*there, *more]
        if sum(memory for memory, _, _ in now) > shareable_mib(gpu.memory_mib or 0):
            return False
        if sum(compute for _, compute, _ in now) > 100 or len(now) > MOST:
            return False
        if gpu.sharing == Gpu.Sharing.MPS and len({user for _, _, user in now}) > 1:
            return False
    return True


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    Pool.objects.update(most_shares=MOST)
    add_shares(made.pool, "a")
    add_shares(made.pool, "b", sharing=Gpu.Sharing.HAMI, model="A30-24GB")
    for person in (made.lena, made.sam):
        person.posix_name = person.username
        person.save()
    return made


@pytest.mark.parametrize("seed", range(4))
def test_what_is_granted_fits_at_every_instant_and_what_is_refused_does_not(scene: Scene, seed: int) -> None:
    dice = random.Random(seed)
    gpus = list(Gpu.objects.all())
    granted = []
    for _ in range(40):
        start, length = dice.choice(HOURS), dice.randint(1, 4)
        actor, team = dice.choice([(scene.lena, "vision"), (scene.sam, "speech")])
        pct, compute = dice.choice([10, 25, 40, 70]), dice.choice([0, 10, 25, 60])
        ask = ShareAsk(memory_pct=pct, guaranteed=compute, limit=max(compute, 1))
        wanted = {
            gpu.pk: [(pct * shareable_mib(gpu.memory_mib or 0) // 100, compute, _user(gpu, actor.username))]
            for gpu in gpus
        }
        possible = [gpu for gpu in gpus if fits(gpu, wanted[gpu.pk], start, length)]
        begin, lasts = NOON + hours(start), hours(length)
        booked = answered(scene, ask, actor=actor, team=team, start=begin, duration=lasts, klass=Class.BATCH)
        if isinstance(booked, Refusal):
            assert (booked.code, possible) == (Code.NO_CAPACITY, [])
            continue
        assert booked.allocations.get().gpu_id in {gpu.pk for gpu in possible}
        granted.append((booked, actor))
        if dice.random() < 0.2:
            row, owner = granted.pop(dice.randrange(len(granted)))
            reservations.release(actor=owner, reservation_id=row.pk, now=NOON)
    assert len(granted) > 8
    for gpu in gpus:
        assert all(fits(gpu, (), hour, 1) for hour in range(12))


def answered(scene: Scene, ask: ShareAsk, **wanted: Any) -> Reservation | Refusal:
    """The booking, or why there is none."""
    try:
        return scene.book(ask, **wanted)
    except Refusal as refusal:
        return refusal


def _user(gpu: Gpu, name: str) -> str:
    return name if gpu.sharing == Gpu.Sharing.MPS else ""


def test_a_share_lives_from_its_booking_to_its_end_on_a_node_that_reports(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    node.send(node.report(sharing=("mps", "timeslice")))
    uuids = [gpu.uuid for gpu in node.gpus]
    inventory.set_use(actor=cast.otto, gpus=uuids, use="share", sharing="mps", now=clock.now())
    inventory.set_managed(actor=cast.otto, gpus=uuids, managed=True, now=clock.now())
    node.follow()
    ask = ShareAsk(memory_mib=8192, guaranteed=20, limit=20)
    rows = [
        reservations.book(
            actor=cast.lena, team="vision", pool="main", ask=ask, duration=timedelta(hours=n), now=clock.now()
        )
        for n in (1, 2)
    ]
    node.follow()
    for row in rows:
        row.refresh_from_db()
        assert (row.state, row.state_reason) == ("active", "applied")
    end = rows[0].period.upper
    lanes.due(now=end)
    node.follow(now=end)
    for row in rows:
        row.refresh_from_db()
    assert [row.state for row in rows] == ["ended", "active"]
    assert [one.held for one in node.gpus] == [(str(rows[1].allocations.get().pk),)]
