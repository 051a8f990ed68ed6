"""`python -m bench.decide`: how long one decision takes on a large pool, and what else is asked of all of it.

    python -m bench.decide --gpus 10000 --allocations 100000 [--database] [--seed 1]

While it runs a twentieth of the bookings change, 50 between two decisions; what is read of
them, as the database sends it, counts in the time of the next decision. With `--database` a
demo is filled with such a pool, and bookings come through REST from 4 processes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import django
import numpy as np

from bench import decide_world
from bench.goals import Board, percentile
from bench.stack import running

if TYPE_CHECKING:
    from pool.core.offers import Search
    from pool.core.period import Period
    from pool.core.placement import Pick
    from pool.core.shapes import Ask

CHANGED = 50
#: The part of all bookings that changes in a run.
SHARE = 20
OFFERS = 15


def sent(rows: np.ndarray[Any, Any]) -> bytes:
    """The rows as PostgreSQL's record_send has them."""
    from pool.core.fleet import span_of
    from pool.queries.fleet_reading import EPOCH, SENT, TIMES

    told = np.zeros(len(rows), dtype=SENT)
    told["n"] = len(SENT.names or ()) // 2
    for name in rows.dtype.names or ():
        if name in (SENT.names or ()):
            told[f"{name} is"] = SENT[name].itemsize
            told[name] = rows[name] - EPOCH if name in TIMES else rows[name]
    spans = [span_of(mask) for mask in rows["mask"].tolist()]
    told["first"], told["size"] = [one for one, _ in spans], [size for _, size in spans]
    return told.tobytes()


class Pool:
    """The world as a process of the portal keeps it, and what comes of it."""

    def __init__(self, gpus: int, allocations: int, seed: int) -> None:
        from pool.core.fleet import fleet
        from pool.core.placement import prior

        self.dice = random.Random(seed)
        self.world = decide_world.make(gpus, allocations, seed, decide_world.tomorrow())
        self.fleet = fleet(self.world.cards, self.world.rows, most_shares=10)
        self.policy = prior()
        self.cards = {card.id: card for card in self.world.cards}
        self.changes = 0

    def change(self) -> Callable[[], None]:
        """Let 50 bookings end earlier; what is returned takes that in, as the database sends it."""
        from pool.queries.fleet_reading import records

        new = sent(decide_world.shortened(self.world.rows, CHANGED, self.dice))
        self.changes += 1

        def take() -> None:
            rows = records(new)
            cards = [self.cards[pk] for pk in np.unique(rows["gpu"]).tolist()]
            fleet = self.fleet.updated(cards, rows)
            self.fleet = fleet.now(self.changes, (), 10, True, (), fleet.accounts)

        return take

    def anywhen(self, hours: float, days: float) -> tuple[datetime, timedelta]:
        """Some start within these days, and a length of up to these hours."""
        start = self.world.begin + timedelta(minutes=15 * self.dice.randrange(int(days * 96)))
        return start, timedelta(minutes=15 * self.dice.randint(1, int(hours * 4)))


def asks() -> list[Ask]:
    """One of each kind, as often as each other."""
    from pool.core.shapes import GpuAsk, MigAsk, ShareAsk

    return [
        MigAsk(profile="1g.10gb"),
        MigAsk(profile="3g.40gb", count=2),
        MigAsk(memory_mib=9_000),
        GpuAsk(),
        GpuAsk(count=4, same_node=True),
        ShareAsk(memory_mib=16_384, guaranteed=20, limit=20),
    ]


def decide(pool: Pool, decisions: int) -> list[float]:
    """Milliseconds of each decision, with the load of what changed before it."""
    from pool.core.period import Period
    from pool.core.placement import candidates

    kinds, times, found = asks(), [], 0
    for number in range(decisions):
        load = pool.change()
        start, length = pool.anywhen(24, 13)
        ask = kinds[number % len(kinds)]
        begun = time.perf_counter()
        load()
        placed = candidates(pool.fleet, ask, Period(start, start + length), policy=pool.policy)
        times.append((time.perf_counter() - begun) * 1000)
        found += bool(placed)
    assert found > decisions // 2, "the pool is too full to say anything"
    return times


def search(pool: Pool, searches: int) -> list[float]:
    """Milliseconds of each search for offers over 14 days, with the load before it."""
    from pool.core.offers import offers
    from pool.core.period import Period

    kinds, times = asks(), []
    window = Period(pool.world.begin, pool.world.begin + timedelta(days=decide_world.DAYS))
    for number in range(searches):
        load = pool.change()
        _, length = pool.anywhen(24, 1)
        begun = time.perf_counter()
        load()
        offers(sought(pool, kinds[number % len(kinds)], window, length))
        times.append((time.perf_counter() - begun) * 1000)
    return times


def sought(pool: Pool, ask: Ask, window: Period, length: timedelta) -> Search:
    """What core.offers looks through, as queries.offers makes it; of a team that may book everything."""
    from pool.core import openings
    from pool.core.offers import Placed, Search
    from pool.core.placement import candidates, clash

    fleet = pool.fleet

    def place(period: Period, until: datetime | None) -> Placed | None:
        found = candidates(fleet, ask, period, policy=pool.policy)
        return Placed(found[0].picks, found[0].cost) if found else None

    def free(picks: Sequence[Pick], period: Period) -> bool:
        views = [fleet.view(pk, window.start, period) for pk in sorted({pick.gpu_id for pick in picks})]
        return clash(views, picks, period) is None

    room = openings.openings(fleet, ask, window.start, length, now=window.start, account=None)
    return Search(room, window, length, place, free)


def fragmented(pool: Pool, looks: int) -> list[float]:
    """Milliseconds of each reckoning of how fragmented the pool is, with the load before it."""
    from pool.core.fragmentation import fragmentation
    from pool.core.period import Period

    times = []
    for _ in range(looks):
        load = pool.change()
        start, length = pool.anywhen(24, 13)
        begun = time.perf_counter()
        load()
        told = fragmentation(pool.fleet.window(Period(start, start + length), start), pool.policy.mix)
        times.append((time.perf_counter() - begun) * 1000)
        assert told.free.sum() > 0
    return times


def in_memory(gpus: int, allocations: int, seed: int, board: Board) -> None:
    pool = Pool(gpus, allocations, seed)
    times = decide(pool, max(20, allocations // SHARE // CHANGED))
    board.at_most("decide.decision_median", statistics.median(times), "ms", 10)
    board.at_most("decide.decision_p99", percentile(times, 0.99), "ms", 30)
    board.at_most("decide.offers_median", statistics.median(search(pool, OFFERS)), "ms", 150)
    board.at_most("decide.fragmentation_median", statistics.median(fragmented(pool, OFFERS)), "ms", 150)


def in_database(gpus: int, allocations: int, seed: int, board: Board) -> None:
    """Its own demo; this process reads it as one of the portal's would."""
    from bench import decide_database

    with running() as stack:
        os.environ["DATABASE_URL"] = stack.database_url
        django.setup()
        world = decide_world.make(gpus, allocations, seed, decide_world.tomorrow())
        pool_id = decide_database.fill(world)
        decide_database.readings(pool_id, len(world.rows), stack, board)
        decide_database.creates(pool_id, len(world.rows), stack, board)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.decide", description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--allocations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    os.environ.setdefault("GPUPOOL_EMBEDDED", "1")
    board = Board()
    if options.database:
        in_database(options.gpus, options.allocations, options.seed, board)
    else:
        django.setup()
        in_memory(options.gpus, options.allocations, options.seed, board)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
