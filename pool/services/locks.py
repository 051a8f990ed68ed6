"""Every row lock of the product, their order, and what a lost race looks like.

Order: what makes a request unique (idempotency key, token, join code), **the
pool's row, then a node's, then GPUs by primary key**, all FOR NO KEY UPDATE, with
a timeout of 3 s. Every write that changes capacity, quota or grants of a pool locks that
pool first and draws its next change number before it ends. Nothing slow and no
network happens under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar
from uuid import UUID

from django.db import DatabaseError, connection, transaction

from pool.core.errors import Code, Refusal
from pool.models import Gpu, Node, Pool, Reservation

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_MS = 3_000
_BUSY = "55P03"  # lock_not_available
_LOST = frozenset(
    {"23P01", "40P01", "40001"}
)  # exclusion_violation, deadlock_detected, serialization_failure


def use_case(function: Callable[P, R]) -> Callable[P, R]:
    """One durable transaction whose waits for locks end after 3 s in `Refusal(BUSY)`."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with busy_is_a_refusal(), transaction.atomic(durable=True):
            limit_waiting()
            return function(*args, **kwargs)

    return inner


@contextmanager
def part() -> Iterator[None]:
    """A part of a transaction that may fail alone: what it wrote is undone, the rest goes on."""
    with transaction.atomic():
        yield


@contextmanager
def busy_is_a_refusal() -> Iterator[None]:
    """Turn a lock that was not given in time into `Refusal(BUSY)`; put it around the transaction."""
    try:
        yield
    except DatabaseError as error:
        if sqlstate(error) != _BUSY:
            raise
        raise Refusal(Code.BUSY) from error


def limit_waiting() -> None:
    """End every wait for a lock in this transaction after 3 s."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {TIMEOUT_MS}")


def sqlstate(error: BaseException) -> str | None:
    """The five characters by which PostgreSQL names an error, if it is one of its own."""
    return getattr(error.__cause__, "sqlstate", None)


def lost_a_race(error: DatabaseError) -> bool:
    """Whether another transaction was first, so that the same may be tried again."""
    return sqlstate(error) in _LOST


def pool(pool_id: int) -> Pool:
    """Lock a pool's row and read it; first in every write that changes what it can give."""
    return Pool.objects.select_for_update(no_key=True).get(pk=pool_id)


def node(node_id: int) -> Node:
    """Lock a node's row: two reports of one node are taken one after the other.

    A transaction that also needs the pool's row takes that first.
    """
    return Node.objects.select_for_update(no_key=True, of=("self",)).select_related("pool").get(pk=node_id)


def reservation(pk: UUID, version: int | None) -> Reservation:
    """The row as it is now; its pool is locked already, and that guards it.

    STALE (version, known) when it was changed since somebody read `version`.
    """
    row = Reservation.objects.select_related("team", "owner").get(pk=pk)
    if version is not None and version != row.version:
        raise Refusal(Code.STALE, version=row.version, known=version)
    return row


def gpus(ids: Iterable[int]) -> list[Gpu]:
    """Lock GPUs in the order of their primary keys; the pool's row is locked already."""
    return list(
        Gpu.objects.select_related("node")
        .filter(pk__in=set(ids))
        .order_by("pk")
        .select_for_update(no_key=True, of=("self",))
    )


def alone(what: str) -> None:
    """Let nobody else be at `what` until this transaction ends; after all rows were locked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [what])


def changed(locked: Pool) -> None:
    """Draw the pool's next change number: what was decided before it must look again."""
    # Plain SQL: this and what follows until the commit is time during which others wait.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pool_pool SET change = change + 1 WHERE id = %s", [locked.pk])
