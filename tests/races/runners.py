"""Two or more doing something at the same moment on connections of their own, with and without guards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from django.db import connection

from pool.core.errors import Refusal
from pool.models import Allocation, Pool
from pool.services import booking, locks, plans

PATIENCE_S = 20.0


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned, or the refusal that it raised; all begin at once."""
    begin = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            begin.wait(PATIENCE_S)
            return call()
        except Refusal as refusal:
            return refusal
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


def codes(results: Sequence[Any]) -> Counter[str]:
    """How many went through ("ok"), and how many were refused with which code."""
    return Counter(str(one.code) if isinstance(one, Refusal) else "ok" for one in results)


class Meeting:
    """Where `number` threads wait for one another, each only once."""

    def __init__(self, number: int) -> None:
        self._barrier = threading.Barrier(number)
        self._local = threading.local()

    def wait(self) -> None:
        if not getattr(self._local, "met", False):
            self._local.met = True
            self._barrier.wait(PATIENCE_S)


def think_together(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let all have chosen on the same reading before the first of them goes on, as in several processes."""
    monkeypatch.setattr(booking, "TURN_S", 0.0)
    meeting = Meeting(number)
    choose = plans.choose

    def chosen(*args: Any, **kwargs: Any) -> Any:
        found = choose(*args, **kwargs)
        meeting.wait()
        return found

    monkeypatch.setattr(plans, "choose", chosen)


def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, each one's best plan is on a GPU of its own: they meet nowhere but at a limit."""
    choose = plans.choose
    order = count()
    mine = threading.local()

    def spread(*args: Any, **kwargs: Any) -> Any:
        found = choose(*args, **kwargs)
        if not hasattr(mine, "turn"):
            mine.turn = next(order) % 2
        by_gpu = sorted(found, key=lambda plan: plan.picks[0].gpu_id)
        return by_gpu[:: -1 if mine.turn else 1]

    monkeypatch.setattr(plans, "choose", spread)


def without_the_lock(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The pool's row is only read, by all of them before the first one writes."""
    meeting = Meeting(number)

    def only_read(pool_id: int) -> Pool:
        found = Pool.objects.get(pk=pool_id)
        meeting.wait()
        return found

    monkeypatch.setattr(locks, "pool", only_read)


@contextmanager
def without_the_constraint(name: str = "allocation_no_overlap") -> Iterator[None]:
    """As if PostgreSQL did not guard the table; allocations are gone afterwards."""
    (constraint,) = (c for c in Allocation._meta.constraints if c.name == name)
    with connection.schema_editor() as editor:
        editor.remove_constraint(Allocation, constraint)
    try:
        yield
    finally:
        Allocation.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Allocation, constraint)


def overlaps() -> int:
    """How many pairs of allocations that hold share a slice of a GPU at some time."""
    held = list(Allocation.objects.filter(holds=True).order_by("pk"))
    return sum(
        one.gpu_id == other.gpu_id
        and one.span.lower < other.span.upper
        and other.span.lower < one.span.upper
        and one.blocked.lower < other.blocked.upper
        and other.blocked.lower < one.blocked.upper
        for i, one in enumerate(held)
        for other in held[i + 1 :]
    )
