"""Lanes: leases, what the due lane does on time, and rows that break a batch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk
from pool.models import Allocation, Command, Event, Gpu, Lane, Node, Pool, Reservation, SetAside
from pool.queries import clock
from pool.services import batches, lanes, locks, reservations
from pool.services.lanes import Swept
from tests.scene import NOON, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db

FULL = MigAsk(profile="7g.80gb")


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def states() -> list[str]:
    return list(Reservation.objects.order_by("created_at", "pk").values_list("state", flat=True))


# --- Due --------------------------------------------------------------------------


def test_it_starts_what_is_due_and_commands_it(scene: Scene) -> None:
    scene.book(start=NOON + hours(1))
    scene.book(start=NOON + hours(2))
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1)
    assert states() == ["starting", "scheduled"]
    assert Command.objects.count() == 1


def test_it_ends_what_is_over_and_commands_it(scene: Scene) -> None:
    scene.book()
    settle(scene.pool, Gpu.objects.get())
    assert lanes.due(now=NOON + hours(1)) == Swept(ended=1)
    row = Reservation.objects.get()
    assert (row.state, row.state_reason) == ("ending", "time_up")
    assert Command.objects.filter(state="open").get().layout["held"] == []


def test_a_moment_before_it_is_not_over_and_not_due(scene: Scene) -> None:
    scene.book()
    scene.book(start=NOON + hours(1))
    assert lanes.due(now=NOON + hours(1) - timedelta(microseconds=1)) == Swept()


def test_with_nothing_due_it_writes_nothing_but_its_heartbeat(scene: Scene) -> None:
    scene.book(start=NOON + hours(1))
    before = (Event.objects.count(), Pool.objects.get().change)
    lanes.due(now=NOON)
    assert (Event.objects.count(), Pool.objects.get().change) == before


def test_running_twice_does_nothing_twice(scene: Scene) -> None:
    scene.book()
    scene.book(start=NOON + hours(1))
    lanes.due(now=NOON + hours(1))
    before = (states(), Event.objects.count(), Command.objects.count(), Pool.objects.get().change)
    assert lanes.due(now=NOON + hours(1)) == Swept()
    assert (states(), Event.objects.count(), Command.objects.count(), Pool.objects.get().change) == before


def test_at_one_instant_ends_come_before_starts_in_one_command(scene: Scene) -> None:
    scene.book(FULL)
    settle(scene.pool, Gpu.objects.get())
    later = scene.book(FULL, start=NOON + hours(1))
    before = Gpu.objects.get().generation
    lanes.due(now=NOON + hours(1))
    gpu = Gpu.objects.get()
    assert (states(), gpu.generation) == (["ending", "starting"], before + 1)
    assert [one["allocation"] for one in gpu.wanted["held"]] == [
        str(Allocation.objects.get(reservation=later).pk)
    ]


def test_the_next_stay_comes_along_however_small_the_batch(scene: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(batches, "BATCH", 1)
    scene.book(FULL)
    settle(scene.pool, Gpu.objects.get())
    scene.book(FULL, start=NOON + hours(1))
    before = Gpu.objects.get().generation
    assert lanes.due(now=NOON + hours(1)) == Swept(ended=1, started=1)
    assert Gpu.objects.get().generation == before + 1


def test_what_nobody_looked_at_in_its_whole_time_expires(scene: Scene) -> None:
    scene.book(start=NOON + hours(1))
    lanes.due(now=NOON + hours(3))
    row = Reservation.objects.get()
    assert (row.state, row.state_reason, Allocation.objects.get().holds) == (
        "expired",
        "never_started",
        False,
    )
    assert not Command.objects.exists()


def test_what_never_became_active_is_cleaned_before_it_expires(scene: Scene) -> None:
    scene.book()
    lanes.due(now=NOON + hours(1))
    assert (states(), Allocation.objects.get().holds) == (["ending"], True)
    settle(scene.pool, Gpu.objects.get())
    assert (states(), Allocation.objects.get().holds) == (["expired"], False)


def test_what_waits_is_looked_at_again_and_starts(scene: Scene) -> None:
    Pool.objects.update(frozen=True)
    scene.book()
    assert lanes.due(now=NOON) == Swept()
    assert not Command.objects.exists()
    Pool.objects.update(frozen=False)
    lanes.due(now=NOON)
    assert Command.objects.count() == 1


def test_what_waits_behind_many_others_gets_its_look_in_the_same_run(scene: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(batches, "BATCH", 2)
    monkeypatch.setattr(batches, "LEAST_BATCH", 2)
    add_node(scene.pool, "frozen")
    for _ in range(5):
        scene.book(start=NOON + hours(1))
    Node.objects.update(frozen=True)
    lanes.due(now=NOON + hours(1))
    last = Reservation.objects.order_by("pk").last()
    assert last is not None
    Gpu.objects.filter(allocations__reservation=last).update(node=_thawed(scene))
    lanes.due(now=NOON + hours(1))
    last.refresh_from_db()
    assert last.state_reason == "waiting_for_node"


def _thawed(scene: Scene) -> Node:
    add_node(scene.pool, "thawed", mig_gpus=0)
    return Node.objects.get(name="thawed")


def test_in_a_frozen_pool_what_was_told_so_is_not_looked_at_again(scene: Scene) -> None:
    scene.book(start=NOON + hours(1))
    Pool.objects.update(frozen=True)
    lanes.due(now=NOON + hours(1))
    with CaptureQueriesContext(connection) as made:
        lanes.due(now=NOON + hours(1))
    assert states() == ["starting"]
    assert not any("FOR NO KEY UPDATE" in one["sql"] for one in made)


def test_each_pool_is_dealt_with(scene: Scene) -> None:
    scene.book(start=NOON + hours(1))
    other = Pool.objects.create(name="other")
    for model in (Allocation, Reservation):
        assert model.objects.count() == 1
    Reservation.objects.update(pool=other)
    Node.objects.update(pool=other)
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1)


def test_the_number_of_statements_does_not_grow_with_the_rows(scene: Scene) -> None:
    add_node(scene.pool, "more", mig_gpus=4)

    def count(n: int, at: int) -> int:
        for _ in range(n):
            scene.book(start=NOON + hours(at))
        with CaptureQueriesContext(
            connection,
        ) as made:
            lanes.due(now=NOON + hours(at))
        lanes.due(now=NOON + hours(at + 1))
        for gpu in Gpu.objects.all():
            settle(scene.pool, gpu)
        return len(made)

    few, many = count(2, 1), count(20, 3)
    assert many <= few + 2


def test_a_pool_whose_lock_is_not_given_stops_no_other_pool(scene: Scene, monkeypatch: Any) -> None:
    scene.book(start=NOON + hours(1))
    held = Pool.objects.create(name="another")
    Reservation.objects.update(pool=held)
    Node.objects.update(pool=held, received_at=clock.real_now() - timedelta(minutes=5))
    add_node(scene.pool, "more")
    scene.book(start=NOON + hours(1))
    usual = locks.pool

    def busy(pool_id: int) -> Pool:
        if pool_id == held.pk:
            raise Refusal(Code.BUSY)
        return usual(pool_id)

    monkeypatch.setattr(locks, "pool", busy)
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1)


def test_it_marks_nodes_that_fell_silent(scene: Scene) -> None:
    Node.objects.update(received_at=clock.real_now() - timedelta(minutes=5))
    lanes.due(now=NOON)
    assert Node.objects.get().unknown_since is not None


# --- Rows that break a batch --------------------------------------------------------


def _break(monkeypatch: Any, bad: Reservation) -> None:
    usual = reservations._move

    def move(rows: Any, *args: Any, **kwargs: Any) -> None:
        if any(row.pk == bad.pk for row in rows):
            raise ValueError("a bad row")
        usual(rows, *args, **kwargs)

    monkeypatch.setattr(reservations, "_move", move)


def test_a_bad_row_is_set_aside_with_its_error_and_stops_nobody(scene: Scene, monkeypatch: Any) -> None:
    bad, good = scene.book(start=NOON + hours(1)), scene.book(start=NOON + hours(1))
    _break(monkeypatch, bad)
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1, set_aside=1)
    good.refresh_from_db()
    assert good.state == "starting"
    row = SetAside.objects.get()
    assert (row.lane, row.subject, row.error, row.tries) == ("due", str(bad.pk), "ValueError: a bad row", 1)


def test_an_end_is_not_held_up_by_a_bad_start_on_the_same_gpu(scene: Scene, monkeypatch: Any) -> None:
    over = scene.book(FULL)
    settle(scene.pool, Gpu.objects.get())
    bad = scene.book(FULL, start=NOON + hours(1))
    _break(monkeypatch, bad)
    assert lanes.due(now=NOON + hours(1)) == Swept(ended=1, set_aside=1)
    over.refresh_from_db()
    assert over.state == "ending"
    assert list(SetAside.objects.values_list("subject", flat=True)) == [str(bad.pk)]


def test_what_was_set_aside_is_left_alone_until_its_time_and_waits_longer_each_time(
    scene: Scene, monkeypatch: Any
) -> None:
    bad = scene.book(start=NOON + hours(1))
    _break(monkeypatch, bad)
    lanes.due(now=NOON + hours(1))
    assert lanes.due(now=NOON + hours(1)) == Swept()
    SetAside.objects.update(retry_at=clock.real_now() - timedelta(seconds=1))
    assert lanes.due(now=NOON + hours(1)) == Swept(set_aside=1)
    row = SetAside.objects.get()
    assert row.tries == 2
    assert row.retry_at > clock.real_now() + batches.RETRY


def test_what_was_set_aside_and_works_now_is_forgotten(scene: Scene, monkeypatch: Any) -> None:
    bad = scene.book(start=NOON + hours(1))
    with monkeypatch.context() as broken:
        _break(broken, bad)
        lanes.due(now=NOON + hours(1))
    SetAside.objects.update(retry_at=clock.real_now() - timedelta(seconds=1))
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1)
    assert not SetAside.objects.exists()


def test_a_lock_that_is_not_given_is_no_fault_of_a_row(scene: Scene, monkeypatch: Any) -> None:
    scene.book(start=NOON + hours(1))

    def busy(pool_id: int) -> Pool:
        raise Refusal(Code.BUSY)

    with monkeypatch.context() as locked:
        locked.setattr(locks, "pool", busy)
        assert lanes.due(now=NOON + hours(1)) == Swept()
    assert not SetAside.objects.exists()
    assert lanes.due(now=NOON + hours(1)) == Swept(started=1)


# --- Leases -------------------------------------------------------------------------


def test_a_lane_is_one_workers_at_a_time(scene: Scene) -> None:
    with lanes.lease("due") as mine:
        assert mine
        assert lanes.due(now=NOON) is None
    assert lanes.due(now=NOON) == Swept()


def test_the_lease_of_a_worker_that_was_killed_is_taken_over(scene: Scene) -> None:
    now = clock.real_now()
    Lane.objects.create(name="due", until=now + lanes.LEASE, beat_at=now, holder="killed")
    assert lanes.due(now=NOON) is None
    Lane.objects.update(until=now - timedelta(seconds=1))
    assert lanes.due(now=NOON) == Swept()
    assert Lane.objects.get().holder != "killed"


def test_whoever_lost_the_lease_does_not_end_that_of_another() -> None:
    until = clock.real_now() + timedelta(hours=1)
    with lanes.lease("due"):
        Lane.objects.update(holder="another", until=until)
    assert Lane.objects.get().until == until


def test_the_row_is_the_heartbeat_and_keeps_the_last_error() -> None:
    with pytest.raises(ValueError, match="broken"), lanes.lease("slow"):
        raise ValueError("broken")
    row = Lane.objects.get()
    assert row.error == "ValueError: broken"
    assert clock.real_now() - row.beat_at < timedelta(seconds=30)
    with lanes.lease("slow"):
        pass
    assert Lane.objects.get().error == ""


def test_the_slow_lane_does_the_rest_when_one_piece_of_work_fails(monkeypatch: Any) -> None:
    done: list[str] = []

    def fail() -> int:
        raise OSError("no Redis")

    monkeypatch.setattr(lanes.broker, "reapply", fail)
    monkeypatch.setattr(lanes.idempotency, "purge", lambda *, now: done.append("purged"))
    with pytest.raises(OSError, match="no Redis"):
        lanes.slow(now=NOON)
    assert done == ["purged"]
    assert Lane.objects.get(name="slow").error == "OSError: no Redis"
