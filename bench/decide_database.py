"""The part of bench.decide with a database: a large pool in a demo, read, and booked through REST."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from bench import decide_world
from bench.decide_world import World
from bench.goals import Board, percentile
from bench.http import Client
from bench.stack import Stack

NAME, TEAM = "large", "vision"
CLIENTS, EACH, WARM = 4, 30, 5
CHANGED = 50
PATIENCE_S = 300.0
BATCH = 1000

ASKS: tuple[dict[str, Any], ...] = (
    {"kind": "mig", "profile": "1g.10gb"},
    {"kind": "mig", "profile": "3g.40gb", "count": 2},
    {"kind": "mig", "memory_mib": 9000},
    {"kind": "gpu"},
    {"kind": "gpu", "count": 4, "same_node": True},
    {"kind": "share", "memory_mib": 16_384, "compute": {"guaranteed": 20, "limit": 20}},
)

#: Some bookings end a minute earlier, as a release or a move would have it: under the pool's lock.
SHORTEN = """
UPDATE pool_allocation SET blocked = tstzrange(lower(blocked), upper(blocked) - interval '1 minute'),
    period = tstzrange(lower(period), upper(period) - interval '1 minute')
WHERE id = ANY(%s) AND upper(period) - lower(period) > interval '2 minutes'
"""


def reservation_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=(1 << 120) + number)


def fill(world: World) -> int:
    """Write the world into the database as a pool of its own; its id."""
    from pool.models import Gpu, GpuState, Node, Pool, QuotaLine, Team

    team = Team.objects.get(name=TEAM)
    pool = Pool.objects.create(name=NAME, most_shares=10)
    QuotaLine.objects.create(team=team, pool=pool, guaranteed_milli=0, cap_milli=2_000_000_000)
    heard = datetime.now(UTC) + timedelta(days=1)
    hosts = {card.node.name: card.node for card in world.cards}
    nodes = [
        Node(pool=pool, name=one.name, machine_id=one.name, received_at=heard, block=one.block)
        for one in hosts.values()
    ]
    Node.objects.bulk_create(nodes, batch_size=BATCH)
    by_name = {node.name: node for node in nodes}
    gpus = [
        Gpu(
            node=by_name[card.node.name],
            index=card.index,
            uuid=card.uuid,
            name=card.model,
            model=card.model,
            memory_mib=card.memory_mib,
            grid=card.grid,
            mig_capable=True,
            profiles=[],
            use=card.use.value,
            sharing=card.sharing.value if card.sharing else "",
            managed=True,
        )
        for card in world.cards
    ]
    Gpu.objects.bulk_create(gpus, batch_size=BATCH)
    states = [GpuState(gpu=gpu, received_at=heard) for gpu in gpus]
    GpuState.objects.bulk_create(states, batch_size=BATCH)
    _book(world, pool.pk, team.pk, {card.id: gpu for card, gpu in zip(world.cards, gpus, strict=True)})
    with psycopg.connect(_url(), autocommit=True) as connection:
        connection.execute("ANALYZE")
    return int(pool.pk)


def _book(world: World, pool_id: int, team_id: int, gpus: dict[int, Any]) -> None:
    """The rows as scheduled bookings of one allocation each."""
    from pool.core.fleet import instant
    from pool.models import Allocation, Membership, Reservation

    owner = Membership.objects.filter(team=team_id).order_by("pk")[0].user_id
    made_at, number = datetime.now(UTC), 0
    for first in range(0, len(world.rows), BATCH):
        reservations, allocations = [], []
        for row in world.rows[first : first + BATCH]:
            pk = reservation_id(number)
            period = (instant(int(row["start"])), instant(int(row["end"])))
            reservations.append(
                Reservation(
                    id=pk,
                    team_id=team_id,
                    pool_id=pool_id,
                    owner_id=owner,
                    booked_by_id=owner,
                    ask={"kind": "gpu"},
                    klass="batch" if number % 2 else "interactive",
                    state="scheduled",
                    period=period,
                    created_at=made_at,
                    charge_milli=row["charge"],
                )
            )
            allocations.append(_allocation(row, pk, gpus[int(row["gpu"])], period))
            number += 1
        Reservation.objects.bulk_create(reservations)
        Allocation.objects.bulk_create(allocations)


def _allocation(row: Any, pk: uuid.UUID, gpu: Any, period: Any) -> Any:
    from pool.core.fleet import span_of
    from pool.models import Allocation

    start, size = span_of(row["mask"])
    share = int(row["memory"])
    kind = "share" if share else "gpu" if row["profile"] < 0 else "mig"
    return Allocation(
        id=pk,
        reservation_id=pk,
        gpu=gpu,
        kind=kind,
        model=gpu.model,
        profile_id=int(row["profile"]) if kind == "mig" else None,
        span=(start, start + size),
        period=period,
        blocked=period,
        tenancy=uuid.UUID(int=0) if share else pk,
        holds=True,
        media_group=0 if kind == "mig" else None,
        share_memory_mib=share or None,
        share_compute_pct=int(row["compute"]) if share else None,
        share_limit_pct=int(row["limit"]) if share else None,
        charge_milli=int(row["charge"]),
    )


def _url() -> str:
    from django.db import connection

    settings = connection.settings_dict
    return psycopg.conninfo.make_conninfo(
        host=settings["HOST"],
        port=settings["PORT"] or None,
        dbname=settings["NAME"],
        user=settings["USER"],
        password=settings["PASSWORD"] or None,
    )


def shorten(connection: psycopg.Connection[Any], pool_id: int, rows: int, dice: random.Random) -> None:
    """Let 50 bookings end earlier, in one transaction as services have them."""
    ids = [reservation_id(number) for number in dice.sample(range(rows), CHANGED)]
    with connection.transaction():
        connection.execute("SELECT FROM pool_pool WHERE id = %s FOR NO KEY UPDATE", [pool_id])
        connection.execute(SHORTEN, [ids])
        connection.execute("UPDATE pool_pool SET change = change + 1 WHERE id = %s", [pool_id])


@contextmanager
def changing(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def readings(pool_id: int, rows: int, stack: Stack, board: Board) -> None:
    """A whole reading, and those after 50 changes each."""
    from pool.queries import fleets

    begun = time.perf_counter()
    fleets.current(pool_id)
    board.at_most("decide.cold_load", (time.perf_counter() - begun) * 1000, "ms", 1000)
    dice, times = random.Random(1), []
    with changing(stack.database_url) as connection:
        for _ in range(40):
            shorten(connection, pool_id, rows, dice)
            begun = time.perf_counter()
            fleets.current(pool_id)
            times.append((time.perf_counter() - begun) * 1000)
    board.at_most("decide.load_of_changes_median", statistics.median(times), "ms", 10)


def creates(pool_id: int, rows: int, stack: Stack, board: Board) -> None:
    """4 processes book through REST at the same moments; before each of those 50 bookings a client change."""
    context = multiprocessing.get_context("spawn")
    meet, told = context.Barrier(CLIENTS), context.Queue()
    calls = [(stack, pool_id, rows, seed, meet, told) for seed in range(CLIENTS)]
    processes = [context.Process(target=_client, args=call) for call in calls]
    for process in processes:
        process.start()
    answers = [told.get(timeout=PATIENCE_S) for _ in processes]
    for process in processes:
        process.join()
    times = [one for mine, _ in answers for one in mine]
    board.at_most("decide.create_median", statistics.median(times), "ms", 30)
    board.at_most("decide.create_p99", percentile(times, 0.99), "ms", 100)
    board.at_most("decide.create_odd_answers", sum(odd for _, odd in answers), "answers", 0)


def _client(stack: Stack, pool_id: int, rows: int, seed: int, meet: Any, told: Any) -> None:
    told.put(asyncio.run(_book_on(stack, pool_id, rows, seed, meet)))


async def _book_on(stack: Stack, pool_id: int, rows: int, seed: int, meet: Any) -> tuple[list[float], int]:
    """The milliseconds of each booking that was made or refused, and how many answers were something else."""
    dice, times, odd = random.Random(1000 + seed), [], 0
    begin = decide_world.tomorrow()
    client = Client(stack.url, stack.token)
    with changing(stack.database_url) as connection:
        for number in range(WARM + EACH):
            shorten(connection, pool_id, rows, dice)
            meet.wait(PATIENCE_S)
            start = begin + timedelta(minutes=15 * dice.randrange(13 * 96))
            body = {
                "team": TEAM,
                "pool": NAME,
                "title": "benchmark",
                "ask": ASKS[number % len(ASKS)],
                "start": start.isoformat(),
                "duration": f"PT{dice.randint(1, 24)}H",
                "class": "interactive",
            }
            reply = await client.ask("POST", "/api/v1/reservations", body)
            odd += reply.status not in (201, 409)
            if number >= WARM:
                times.append(reply.seconds * 1000)
            meet.wait(PATIENCE_S)
    await client.close()
    return times, odd
