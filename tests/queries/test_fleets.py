"""The fleet that is kept is what a whole reading would be, after every write and whoever commits first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from pool.core.fleet import Fleet
from pool.core.fleet_rows import ROW
from pool.models import Allocation, Blocker, Gpu, GpuMark, GpuState, Node, Pool, Reservation
from pool.queries import clock, fleets
from pool.services import inventory, reservations
from tests.scene import HALF, NOON, SHARE, WHOLE, Scene, add_node, add_shares, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

FIRST = "GPU-dgx-01-0"


@pytest.fixture
def scene() -> Iterator[Scene]:
    fleets.forget()
    made = make_scene()
    add_node(made.pool, mig_gpus=2, whole_gpus=2)
    add_shares(made.pool)
    yield made
    fleets.forget()


def told(fleet: Fleet) -> tuple[Any, ...]:
    """All that a fleet says, comparable. `geometries` may stand in another order."""
    rows = sorted(tuple(str(row[name]) for name in ROW.names or ()) for row in fleet.rows())
    offered = [fleet.geometries[number] for number in fleet.geometry]
    names = ("node", "model", "domain", "block", "memory", "grid", "full", "use", "sharing", "usable")
    columns = [getattr(fleet, name).tolist() for name in names]
    rules = (fleet.change, fleet.most_shares, fleet.one_user, fleet.block_sizes, fleet.stale)
    accounts = {number: fleet.accounts[number] for number in fleet.rows()["account"].tolist() if number}
    return fleet.cards, fleet.nodes, rows, offered, columns, rules, accounts


def whole(pool: Pool) -> Fleet:
    """Of a process that has just begun."""
    kept = dict(fleets._kept)
    fleets.forget()
    fresh = fleets.current(pool.pk)
    fleets._kept.update(kept)
    return fresh


def in_sql(text: str) -> Callable[[Scene], object]:
    def write(scene: Scene) -> None:
        with connection.cursor() as cursor:
            cursor.execute(text)

    return write


def on_gpu(**of: Any) -> Callable[[Scene], object]:
    return lambda scene: Gpu.objects.filter(uuid=FIRST).update(**of)


def on_node(**of: Any) -> Callable[[Scene], object]:
    return lambda scene: Node.objects.filter(name="dgx-01").update(**of)


def on_state(**of: Any) -> Callable[[Scene], object]:
    return lambda scene: GpuState.objects.filter(gpu__uuid=FIRST).update(**of)


def on_pool(**of: Any) -> Callable[[Scene], object]:
    return lambda scene: Pool.objects.filter(pk=scene.pool.pk).update(**of)


def release(scene: Scene) -> None:
    booked = Reservation.objects.filter(state__in=["scheduled", "starting", "active"]).order_by("pk")[0]
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON + hours(0.5))


def freeze(frozen: bool) -> Callable[[Scene], object]:
    return lambda scene: inventory.freeze(actor=scene.otto, target="gpu", id=FIRST, frozen=frozen, now=NOON)


def to_another_pool(scene: Scene) -> None:
    Node.objects.filter(name="dgx-01").update(pool=Pool.objects.create(name="other"))


def another_gpu_gone(scene: Scene) -> None:
    add_node(scene.pool, "dgx-09")
    gpu = Gpu.objects.get(node__name="dgx-09")
    fleets.current(scene.pool.pk)
    GpuState.objects.filter(gpu=gpu).delete()
    gpu.delete()


#: In this order, each on what those before it left.
WRITES: dict[str, Callable[[Scene], object]] = {
    "a slice is booked": lambda scene: scene.book(HALF),
    "later slices are booked": lambda scene: scene.book(HALF, start=NOON + hours(30)),
    "a GPU is booked": lambda scene: scene.book(WHOLE, start=NOON + hours(2)),
    "a share is booked": lambda scene: scene.book(SHARE),
    "another's share is booked": lambda scene: scene.book(
        SHARE, actor=scene.sam, team="speech", start=NOON + hours(9)
    ),
    "a booking is released": release,
    "one moves to another GPU": in_sql(
        "UPDATE pool_allocation SET gpu_id = (SELECT max(id) FROM pool_gpu WHERE use = 'whole')"
        " WHERE holds AND kind = 'gpu'"
    ),
    "one has been on its GPU": in_sql(
        "UPDATE pool_allocation SET wanted_at = '2027-03-01' WHERE holds AND kind = 'gpu'"
    ),
    "one is no longer scheduled": in_sql("UPDATE pool_reservation SET state = 'active'"),
    "one gets another owner": in_sql(
        "UPDATE pool_reservation SET owner_id = (SELECT id FROM pool_user WHERE username = 'milo')"
    ),
    "one takes cpu of its node": in_sql("UPDATE pool_allocation SET cpu_milli = 4000 WHERE kind = 'share'"),
    "one lasts longer": in_sql(
        "UPDATE pool_allocation SET blocked = tstzrange(lower(blocked), upper(blocked) + '1 min') WHERE holds"
    ),
    "a blocker comes": lambda scene: Blocker.objects.create(
        gpu=Gpu.objects.get(uuid=FIRST), span=(0, 2), since=NOON, kind="foreign"
    ),
    "a blocker grows": lambda scene: Blocker.objects.update(span=(0, 4)),
    "a fault": lambda scene: Blocker.objects.update(kind="health"),
    "blockers go": lambda scene: Blocker.objects.all().delete(),
    "a share overruns": lambda scene: Blocker.objects.create(
        gpu=Gpu.objects.get(use="share"), span=(0, 8), since=NOON, kind="overrun"
    ),
    "it is told to end": in_sql("UPDATE pool_reservation SET state = 'ending' WHERE ask->>'kind' = 'share'"),
    "a GPU is frozen": freeze(True),
    "a GPU thaws": freeze(False),
    "a GPU is only observed": on_gpu(managed=False),
    "a GPU is managed again": on_gpu(managed=True),
    "a GPU is lost": on_state(lost=True),
    "a GPU is back": on_state(lost=False),
    "a GPU changes its mode": on_state(mig=True),
    "a GPU was never seen": on_state(received_at=None),
    "a GPU is given for anything": on_gpu(use="auto"),
    "a GPU offers other profiles": on_gpu(profiles=[]),
    "a GPU has other links": on_gpu(links=[{"peer": None, "kind": "nvlink", "count": 18}]),
    "a GPU is in a fabric": on_gpu(fabric_cluster="0c1d", fabric_clique=3),
    "a GPU is retired": on_gpu(retired_at=NOON),
    "a node is frozen by its agent": on_node(agent_frozen=True),
    "its agent thaws it": on_node(agent_frozen=False),
    "a node is unknown": on_node(unknown_since=NOON),
    "a node is back": on_node(unknown_since=None),
    "a node is another's": on_node(managed_by=["slurmd"]),
    "a node stands in a block": on_node(block="rack-7", cpu_milli=64_000, memory_mib=512_000, imex="READY"),
    "a node has another name": on_node(name="zeta"),
    "a node is silent": lambda scene: Node.objects.filter(name="dgx-02").update(
        received_at=clock.real_now() - timedelta(hours=1)
    ),
    "a node comes": lambda scene: add_node(scene.pool, "abacus", mig_gpus=1),
    "a GPU moves to another node": lambda scene: Gpu.objects.filter(node__name="abacus").update(
        node=Node.objects.get(name="dgx-02"), index=5
    ),
    "a GPU comes and goes": another_gpu_gone,
    "the pool allows more shares": on_pool(most_shares=3, mps_multi_user=True, block_sizes=[4, 8]),
    "bookings are taken off the tables": lambda scene: Allocation.objects.all().delete(),
    "a node joins another pool": lambda scene: (on_node(name="dgx-01"), to_another_pool(scene)),
}
#: These change what nobody sees, or what is read anew each time.
UNSEEN = {"a GPU comes and goes"}


def test_what_is_kept_is_what_a_whole_reading_tells_after_every_kind_of_write(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told(fleets.current(scene.pool.pk))
    for name, write in WRITES.items():
        if name == "a node joins another pool":
            Node.objects.filter(name="zeta").update(name="dgx-01")
            before = told(fleets.current(scene.pool.pk))
        write(scene)
        with monkeypatch.context() as patch:
            patch.setattr(fleets, "_whole", None)
            now = told(fleets.current(scene.pool.pk))
        assert now == told(whole(scene.pool)), name
        assert (now == before) == (name in UNSEEN), name
        before = now


def test_reports_that_tell_nothing_new_mark_nothing(scene: Scene) -> None:
    GpuMark.objects.all().delete()
    GpuState.objects.update(received_at=clock.real_now(), readings={"power": 1})
    Node.objects.update(received_at=clock.real_now(), seq=7)
    Gpu.objects.update(generation=3, wanted={})
    Allocation.objects.update(ready_at=NOON)
    assert not GpuMark.objects.exists()


def test_a_gpu_has_one_mark_and_the_newest(scene: Scene) -> None:
    for _ in range(3):
        on_gpu(frozen=True)(scene)
        on_gpu(frozen=False)(scene)
    gpu = Gpu.objects.get(uuid=FIRST)
    (mark,) = GpuMark.objects.filter(gpu_id=gpu.pk)
    assert mark.pool_id == scene.pool.pk
    assert mark.xid == max(GpuMark.objects.values_list("xid", flat=True))


def test_who_commits_late_is_not_missed(scene: Scene) -> None:
    """Its transaction's number is lower than those that have been read, and it locked no pool."""
    params = connection.get_connection_params()
    keys = ("host", "port", "dbname", "user", "password")
    with psycopg.connect(**{key: params[key] for key in keys if params.get(key)}) as other:
        other.execute("UPDATE pool_gpu SET frozen = true WHERE uuid = %s", [FIRST])
        on_gpu_2 = Gpu.objects.exclude(uuid=FIRST).order_by("pk")[0]
        Gpu.objects.filter(pk=on_gpu_2.pk).update(frozen=True)
        seen = fleets.current(scene.pool.pk)
        assert why(seen, FIRST) == ""
        assert why(seen, on_gpu_2.uuid) == "frozen"
        # Marking waits for nobody: the same GPU is marked here while the other goes on.
        GpuState.objects.filter(gpu__uuid=FIRST).update(mig=True)
        fleets.current(scene.pool.pk)
        other.commit()
    assert why(fleets.current(scene.pool.pk), FIRST) == "frozen"
    assert told(fleets.current(scene.pool.pk)) == told(whole(scene.pool))


def why(fleet: Fleet, uuid: str) -> str:
    return next(card.why for card in fleet.cards if card.uuid == uuid)


def test_what_a_transaction_wrote_is_seen_in_it_and_kept_only_when_it_is_committed(scene: Scene) -> None:
    fleets.current(scene.pool.pk)
    kept = fleets._kept[scene.pool.pk]
    with transaction.atomic():
        on_gpu(frozen=True)(scene)
        assert why(fleets.current(scene.pool.pk), FIRST) == "frozen"
        on_gpu(frozen=False, managed=False)(scene)
        assert why(fleets.current(scene.pool.pk), FIRST) == "observe"
        assert fleets._kept[scene.pool.pk] is kept
        transaction.set_rollback(True)
    assert why(fleets.current(scene.pool.pk), FIRST) == ""
    assert told(fleets.current(scene.pool.pk)) == told(whole(scene.pool))


def test_emptied_tables_are_read_anew(scene: Scene) -> None:
    pool, gone = scene.pool, fleets.current(scene.pool.pk)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pool_gpu, pool_gpumark CASCADE")
    assert (len(gone.cards), len(fleets.current(pool.pk).cards)) == (5, 0)


def test_some_gpus_are_read_alone_and_now(scene: Scene) -> None:
    gpu = Gpu.objects.get(uuid=FIRST)
    scene.book(HALF)
    alone = fleets.fresh(scene.pool.pk, [gpu.pk, 10**9])
    assert [card.uuid for card in alone.cards] == [FIRST]
    everything = told(whole(scene.pool))
    held = set(Allocation.objects.filter(gpu=gpu).values_list("gpu_id", flat=True))
    assert {int(row["gpu"]) for row in alone.rows()} == held
    assert alone.cards[0] in everything[0]


def test_a_pool_that_is_not_there_is_said() -> None:
    with pytest.raises(Pool.DoesNotExist):
        fleets.current(10**9)


def test_pools_are_kept_apart(scene: Scene) -> None:
    other = Pool.objects.create(name="other")
    add_node(other, "elsewhere")
    read = [fleets.current(pk) for pk in (scene.pool.pk, other.pk)]
    assert [len(fleet.cards) for fleet in read] == [5, 1]
    assert not set(itertools.chain(read[0].places)) & set(read[1].places)
