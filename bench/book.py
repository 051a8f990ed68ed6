"""`python -m bench.book`: how fast bookings are, alone and many at once, and that none is double.

Future windows over 14 days, through HTTP on this machine, against the demo that
is running (GPUPOOL_URL, GPUPOOL_TOKEN and DATABASE_URL from .data/demo.env) or
against a stack of its own. What it books, it cancels.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from bench.goals import Board, percentile
from bench.http import Client, Reply
from bench.stack import Stack, running

POOL, TEAM = "main", "vision"
DAYS = 14
LENGTH = timedelta(minutes=30)
#: Runs of each measurement; their median counts.
RUNS = 3
ALONE = 100
EACH = 30
#: 64 clients fight over so few windows that some must be refused.
HOT_WINDOWS = 6
HOT_EACH = 12

OVERLAPS = """
SELECT count(*) FROM pool_allocation a JOIN pool_allocation b
ON a.gpu_id = b.gpu_id AND a.id < b.id AND a.holds AND b.holds
AND a.span && b.span AND a.blocked && b.blocked AND a.tenancy <> b.tenancy
"""


@dataclass(slots=True)
class Done:
    """Requests with their replies, and how long all of them took."""

    replies: list[tuple[dict[str, Any], Reply]]
    seconds: float

    def made(self) -> list[str]:
        return [reply.body["id"] for _, reply in self.replies if reply.status == 201]

    def refused(self) -> list[dict[str, Any]]:
        return [body for body, reply in self.replies if reply.status == 409]

    def times_ms(self) -> list[float]:
        return [reply.seconds * 1000 for _, reply in self.replies]


def body(start: datetime) -> dict[str, Any]:
    return {
        "team": TEAM,
        "pool": POOL,
        "title": "benchmark",
        "ask": {"kind": "mig", "profile": "1g.10gb", "count": 1},
        "start": start.isoformat(),
        "duration": f"PT{int(LENGTH.total_seconds()) // 60}M",
        "class": "interactive",
    }


def anywhere(dice: random.Random) -> dict[str, Any]:
    """Some half hour of the 14 days."""
    slots = DAYS * 24 * 2
    return body(_first() + LENGTH * dice.randrange(slots))


def _first() -> datetime:
    """Tomorrow, so that nothing starts while it is measured."""
    return (datetime.now(UTC) + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


async def book(stack: Stack, queues: list[list[dict[str, Any]]]) -> Done:
    """Each queue by a client of its own, one request after the other, all clients at once."""
    clients = [Client(stack.url, stack.token) for _ in queues]
    await asyncio.gather(*(client.ask("GET", "/api/v1/pools") for client in clients))
    begun = time.perf_counter()
    answers = await asyncio.gather(*(_work(c, q) for c, q in zip(clients, queues, strict=True)))
    seconds = time.perf_counter() - begun
    for client in clients:
        await client.close()
    return Done([pair for one in answers for pair in one], seconds)


async def _work(client: Client, queue: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Reply]]:
    return [(ask, await client.ask("POST", "/api/v1/reservations", ask)) for ask in queue]


async def cancel(stack: Stack, ids: list[str], clients: int = 4) -> None:
    async def work(mine: list[str]) -> None:
        client = Client(stack.url, stack.token)
        for pk in mine:
            reply = await client.ask("POST", f"/api/v1/reservations/{pk}/release", {})
            assert reply.status == 200, reply
        await client.close()

    await asyncio.gather(*(work(ids[i::clients]) for i in range(clients)))


def overlaps(stack: Stack) -> int:
    """Allocations that hold the same memory slice of a GPU at the same time, as the database has them."""
    with psycopg.connect(stack.database_url) as connection:
        row = connection.execute(OVERLAPS).fetchone()
    assert row is not None
    return int(row[0])


def spread(clients: int, each: int, seed: int) -> list[list[dict[str, Any]]]:
    dice = random.Random(seed)
    return [[anywhere(dice) for _ in range(each)] for _ in range(clients)]


async def alone(stack: Stack, board: Board) -> None:
    medians = []
    for run in range(RUNS):
        done = await book(stack, spread(1, ALONE, run))
        medians.append(statistics.median(done.times_ms()))
        await cancel(stack, done.made())
    board.at_most("book.create_alone_median", statistics.median(medians), "ms", 30)


async def sixteen(stack: Stack, board: Board) -> None:
    rates, slowest, odd = [], [], 0
    for run in range(RUNS):
        done = await book(stack, spread(16, EACH, 100 + run))
        rates.append(len(done.made()) / done.seconds)
        slowest.append(percentile(done.times_ms(), 0.99))
        odd += len(done.replies) - len(done.made())
        await cancel(stack, done.made())
    board.at_least("book.sixteen_clients_rate", statistics.median(rates), "bookings/s", 50)
    board.at_most("book.sixteen_clients_p99", statistics.median(slowest), "ms", 1000)
    board.at_most("book.sixteen_clients_not_booked", odd, "answers", 0)


async def sixty_four(stack: Stack, board: Board) -> None:
    slowest, odd, unjust, double, refusals = [], 0, 0, 0, 0
    for run in range(RUNS):
        dice = random.Random(200 + run)
        hot = [_first() + timedelta(days=run, hours=2 * n) for n in range(HOT_WINDOWS)]
        done = await book(stack, [[body(dice.choice(hot)) for _ in range(HOT_EACH)] for _ in range(64)])
        statuses = Counter(reply.status for _, reply in done.replies)
        odd += sum(n for status, n in statuses.items() if status not in (201, 409))
        refusals += statuses[409]
        double += overlaps(stack)
        # Nothing was given back meanwhile: what can be booked now could have been booked then.
        again = await book(stack, [_distinct(done.refused())])
        unjust += len(again.made())
        slowest.append(percentile(done.times_ms(), 0.99))
        await cancel(stack, done.made() + again.made())
    board.at_most("book.sixty_four_clients_p99", statistics.median(slowest), "ms", 3000)
    board.at_most("book.sixty_four_clients_odd_answers", odd, "answers", 0)
    board.at_least("book.sixty_four_clients_refused", refusals, "answers", 1)
    board.at_most("book.sixty_four_clients_unjust_refusals", unjust, "answers", 0)
    board.at_most("book.overlaps", double, "pairs", 0)


def _distinct(asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({ask["start"]: ask for ask in asks}.values())


async def measure(stack: Stack) -> int:
    board = Board()
    await alone(stack, board)
    await sixteen(stack, board)
    await sixty_four(stack, board)
    return board.exit_code()


def main() -> int:
    with running() as stack:
        return asyncio.run(measure(stack))


if __name__ == "__main__":
    sys.exit(main())
