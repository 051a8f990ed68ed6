"""How fragmented what has been reported is, and that unknown stays unknown."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.mix import Form, Kind, Mix
from pool.core.shapes import MigAsk
from pool.models import Gpu, Node, Pool, PoolMix
from pool.queries import clock, mixes
from pool.queries.fragmentation import Now
from tests.scene import HALF, NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=1, whole_gpus=2)
    mixes.forget()
    return made


def usual(scene: Scene, *kinds: Kind) -> None:
    known = Mix(kinds, tuple(1 / len(kinds) for _ in kinds))
    PoolMix.objects.create(pool=scene.pool, mix=known.as_json(), at=NOON)


def test_what_is_booked_at_the_moment_counts_and_nothing_later(scene: Scene) -> None:
    usual(scene, Kind(Form.MIG, profile="7g.80gb"), Kind(gpus=2))
    scene.book(HALF, start=NOON + hours(2))
    assert Now(NOON).of_pool(scene.pool).share == 0.0
    later = Now(NOON + hours(2)).of_pool(scene.pool)
    assert (later.free, later.lost) == (2500.0, 500.0)


def test_it_is_told_of_each_gpu_and_node(scene: Scene) -> None:
    usual(scene, Kind(gpus=2))
    scene.book(WHOLE)
    now = Now(NOON)
    taken, left = (now.of_gpu(gpu) for gpu in Gpu.objects.filter(use="whole").order_by("index"))
    assert (taken.share, left.share) == (None, 1.0)
    assert now.of_node(Node.objects.get()) == now.of_pool(scene.pool)


def test_what_is_not_heard_is_unknown(scene: Scene) -> None:
    Node.objects.update(received_at=clock.real_now() - hours(1))
    now = Now(NOON)
    assert now.of_pool(scene.pool).share is None
    assert now.of_node(Node.objects.get()).share is None
    assert {now.of_gpu(gpu).share for gpu in Gpu.objects.all()} == {None}


def test_an_empty_pool_is_unknown() -> None:
    pool = Pool.objects.create(name="nothing")
    assert (Now(NOON).of_pool(pool).share, Now(NOON).blocks(pool)) == (None, None)


def test_blocks_have_slurms_figure(scene: Scene) -> None:
    add_node(scene.pool, "dgx-02")
    scene.pool.block_sizes = [2]
    scene.pool.save()
    Node.objects.update(block="rack-1")
    assert Now(NOON).blocks(scene.pool) == 0
    scene.book(MigAsk(profile="1g.10gb"))
    assert Now(NOON).blocks(scene.pool) == 2


def test_a_pool_is_read_once_however_much_is_asked(scene: Scene) -> None:
    now, gpus = Now(NOON), list(Gpu.objects.select_related("node"))
    now.of_pool(scene.pool)
    with CaptureQueriesContext(connection) as seen:
        for gpu in gpus:
            now.of_gpu(gpu)
            now.of_node(gpu.node)
    assert len(seen) == 0
