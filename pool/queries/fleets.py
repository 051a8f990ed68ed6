"""The newest `Fleet` of a pool: kept by each process, and brought up to date by what was marked since.

Every transaction marks the GPUs of which it changes something (triggers, migration
0003) with its own number. A fleet is read together with a snapshot of the database
(pg_snapshot); what is marked by transactions that are not in it is read again. In a
transaction that has written something nothing is kept, since that may yet be undone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import NamedTuple

from django.conf import settings
from django.db import connection

from pool.core import fleet as fleets
from pool.core.fleet import Fleet
from pool.core.health import MISSED
from pool.models import Pool
from pool.queries import clock
from pool.queries.fleet_reading import accounts_on, cards_of, rows_of

# One statement, so that all of it is of one moment. What is marked in a transaction that goes on is our own.
# `source` is another whenever the tables may be others under the same numbers.
_HEAD = """
SELECT pool.change, pool.most_shares, NOT pool.mps_multi_user, pool.block_sizes::text,
    (SELECT array_agg(node.id) FROM pool_node node
     WHERE node.pool_id = pool.id AND (node.received_at IS NULL OR node.received_at < %(heard)s)),
    pg_current_snapshot()::text, pg_current_xact_id_if_assigned() IS NOT NULL,
    concat_ws(' ', current_database(), pg_postmaster_start_time(), pg_relation_filenode('pool_gpumark')),
    CASE WHEN %(since)s::text IS NOT NULL THEN (
        SELECT array_agg(mark.gpu_id * CASE WHEN mark.card THEN -1 ELSE 1 END) FROM pool_gpumark mark
        WHERE mark.pool_id = pool.id
          AND (mark.xid = pg_current_xact_id_if_assigned()::text::bigint
               OR mark.xid >= pg_snapshot_xmin(%(since)s::pg_snapshot)::text::bigint
                  AND NOT pg_visible_in_snapshot(mark.xid::text::xid8, %(since)s::pg_snapshot))) END
FROM pool_pool pool WHERE pool.id = %(pool)s
"""


class _Head(NamedTuple):
    """A pool at one moment. `snapshot` says what is in it; `marked` are GPUs changed since another.

    Below 0: the GPU itself has changed; else what is on it. `writes`: this transaction has
    written something, so that what is read here may never be committed.
    """

    change: int
    most_shares: int
    one_user: bool
    block_sizes: tuple[int, ...]
    stale: Sequence[int] | None
    snapshot: str
    writes: bool
    source: str
    marked: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A fleet, and the snapshot of the database of which it has everything."""

    fleet: Fleet
    snapshot: str
    source: str


_kept: dict[int, _Kept] = {}
_turns: dict[int, Lock] = {}


def current(pool_id: int) -> Fleet:
    """All of the pool as it is now. Raises Pool.DoesNotExist."""
    if connection.in_atomic_block:
        # Nobody waits here, who may hold locks in the database.
        return _read(pool_id)
    with _turns.setdefault(pool_id, Lock()):
        return _read(pool_id)


def fresh(pool_id: int, gpu_ids: Collection[int]) -> Fleet:
    """These GPUs of the pool and no others, read now, as under a lock. Raises Pool.DoesNotExist."""
    return _whole(pool_id, _head(pool_id, None), list(gpu_ids))


def forget() -> None:
    """Keep nothing: the next reading of each pool is a whole one."""
    _kept.clear()


def _read(pool_id: int) -> Fleet:
    kept = _kept.get(pool_id)
    head = _head(pool_id, kept.snapshot if kept else None)
    if kept is None or kept.source != head.source:
        fleet = _whole(pool_id, head, None)
    else:
        fleet = _changed(pool_id, kept.fleet, head)
    if not head.writes:
        _kept[pool_id] = _Kept(fleet, head.snapshot, head.source)
    return fleet


def _head(pool_id: int, since: str | None) -> _Head:
    heard = clock.real_now() - timedelta(seconds=settings.REPORT_SECONDS * MISSED)
    with connection.cursor() as cursor:
        cursor.execute(_HEAD, {"pool": pool_id, "heard": heard, "since": since})
        row = cursor.fetchone()
    if row is None:
        raise Pool.DoesNotExist
    return _Head(*row)._replace(block_sizes=tuple(json.loads(row[3])))


def _whole(pool_id: int, head: _Head, gpu_ids: list[int] | None) -> Fleet:
    cards, rows = cards_of(pool_id, gpu_ids), rows_of(pool_id, gpu_ids)
    return fleets.fleet(
        cards,
        rows,
        change=head.change,
        accounts=accounts_on(rows, {}),
        most_shares=head.most_shares,
        one_user=head.one_user,
        block_sizes=head.block_sizes,
        stale=head.stale or (),
    )


def _changed(pool_id: int, fleet: Fleet, head: _Head) -> Fleet:
    """What was marked is read after the head, so that it is at least as new: newer does no harm."""
    accounts = fleet.accounts
    if head.marked:
        marked, itself = {abs(one) for one in head.marked}, {-one for one in head.marked if one < 0}
        # Most often only what is on a GPU has changed.
        itself |= marked - fleet.places.keys()
        cards = cards_of(pool_id, list(itself)) if itself else []
        cards += [fleet.cards[fleet.places[pk]] for pk in marked - itself]
        rows = rows_of(pool_id, list(marked))
        accounts = accounts_on(rows, accounts)
        fleet = fleet.updated(cards, rows, marked - {card.id for card in cards})
    return fleet.now(
        head.change, head.stale or (), head.most_shares, head.one_user, head.block_sizes, accounts
    )
