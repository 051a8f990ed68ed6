"""Locks: how long they are waited for, and what a lost race is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from pool.core.errors import Code, Refusal
from pool.models import Gpu, Pool
from pool.models.reservations import new_id
from pool.services import locks
from tests.scene import NOON, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_lock_that_is_not_given_in_time_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TIMEOUT_MS", 100)
    pool = Pool.objects.create(name="main")
    with somebody_else_holds(pool.pk):
        began = time.monotonic()
        with pytest.raises(Refusal) as caught:
            take(pool.pk)
    assert caught.value.code == Code.BUSY
    assert time.monotonic() - began < 5


def test_it_is_given_as_soon_as_the_other_is_done() -> None:
    pool = Pool.objects.create(name="main")
    with somebody_else_holds(pool.pk, for_s=0.3):
        assert take(pool.pk).pk == pool.pk


def test_three_seconds_are_waited() -> None:
    with connection.cursor() as cursor, transaction.atomic():
        locks.limit_waiting()
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("3s",)


def test_a_use_case_is_one_transaction_of_its_own() -> None:
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        take(1)


def test_what_fails_leaves_nothing_behind() -> None:
    @locks.use_case
    def half() -> None:
        Pool.objects.create(name="half")
        raise Refusal(Code.TAKEN)

    with pytest.raises(Refusal):
        half()
    assert not Pool.objects.exists()


def test_gpus_are_locked_in_the_order_of_their_keys_and_each_once() -> None:
    gpus = add_node(make_scene().pool, mig_gpus=3)
    ids = [gpu.pk for gpu in gpus]

    @locks.use_case
    def lock() -> list[int]:
        return [gpu.pk for gpu in locks.gpus([*reversed(ids), ids[0]])]

    assert lock() == sorted(ids)


def test_a_row_that_was_changed_since_is_stale() -> None:
    scene = make_scene()
    add_node(scene.pool)
    booked = scene.book(start=NOON + hours(1))
    assert locks.reservation(booked.pk, None) == locks.reservation(booked.pk, 1) == booked
    with pytest.raises(Refusal) as caught:
        locks.reservation(booked.pk, 2)
    assert caught.value.data == {"version": 1, "known": 2}


def test_an_exclusion_violation_is_a_lost_race_and_a_broken_rule_is_none() -> None:
    scene = make_scene()
    (gpu,) = add_node(scene.pool, mig_gpus=1)
    booked = scene.book(start=NOON + hours(1))
    one = booked.allocations.get()
    one.pk = one.tenancy = new_id()
    with pytest.raises(DatabaseError) as lost, transaction.atomic():
        one.save(force_insert=True)
    assert locks.lost_a_race(lost.value)
    with pytest.raises(DatabaseError) as broken, transaction.atomic():
        Gpu.objects.filter(pk=gpu.pk).update(grid=0)
    assert not locks.lost_a_race(broken.value)


# --- Ways and means -----------------------------------------------------------------


@locks.use_case
def take(pool_id: int) -> Pool:
    return locks.pool(pool_id)


class somebody_else_holds:
    """Another connection holds the pool's row, for so long or until this ends."""

    def __init__(self, pool_id: int, for_s: float = 20.0) -> None:
        self.pool_id, self.for_s = pool_id, for_s
        self.held, self.enough = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        try:
            with transaction.atomic():
                locks.pool(self.pool_id)
                self.held.set()
                self.enough.wait(self.for_s)
        finally:
            connection.close()

    def __enter__(self) -> None:
        self.thread.start()
        assert self.held.wait(10)

    def __exit__(self, *_: Any) -> None:
        self.enough.set()
        self.thread.join()
