"""A pool in which something of everything goes on, and ways to damage it; for the tests of consistency."""

from __future__ import annotations

from django.db import connection

from pool.models import Gpu
from pool.queries import consistency
from pool.services import lanes, reservations
from tests.scene import HALF, NOON, SHARE, WHOLE, Scene, add_node, add_shares, hours, make_scene, settle


def quiet() -> Scene:
    """Four GPUs, one for slices and one for shares; two teams with a guarantee of one GPU each."""
    made = make_scene(cap=3000, guaranteed=1000)
    add_node(made.pool, mig_gpus=1, whole_gpus=2)
    add_shares(made.pool)
    return made


def busy() -> Scene:
    """A slice that runs, a whole GPU that is to come, a share, and one that was cancelled."""
    scene = quiet()
    scene.book(HALF)
    scene.book(WHOLE, start=NOON + hours(1))
    scene.book(SHARE, actor=scene.sam, team="speech", start=NOON + hours(1))
    gone = scene.book(WHOLE, start=NOON + hours(3))
    reservations.release(actor=scene.lena, reservation_id=gone.pk, now=NOON)
    settle(scene.pool, Gpu.objects.get(node__name="dgx-01", index=0))
    lanes.due(now=NOON)
    return scene


def rules() -> set[str]:
    """What differs, and is not only kept from before."""
    return {one.rule for one in consistency.differences(NOON) if not one.kept}


def damage(sql: str) -> None:
    """Behind the back of every trigger."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(sql)
        cursor.execute("SET session_replication_role = origin")
