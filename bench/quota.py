"""`python -m bench.quota`: how long a decision takes where many teams have quota, and one to take room back.

    python -m bench.quota --gpus 10000 --allocations 100000 --teams 1000 [--seed 1]

In memory, as a process of the portal decides: what is free, what each line allows, what would be
borrowed, and whether all other guarantees keep their place. A reclaim also chooses the victims.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import django

from bench import quota_world
from bench.goals import Board, percentile

if TYPE_CHECKING:
    from pool.core.charter import Charter
    from pool.core.fleet import Fleet
    from pool.core.period import Period
    from pool.core.placement import Candidate
    from pool.core.reclaim import Borrower
    from pool.core.shapes import Ask
    from pool.core.standing import Standing
    from pool.queries.snapshot import Snapshot
    from pool.services.plans import Wanted

DECISIONS = 60
RECLAIMS, TRIES = 10, 40


class Pool:
    """The world as a process of the portal keeps it."""

    def __init__(self, gpus: int, allocations: int, teams: int, seed: int) -> None:
        from pool.core.charter import charter

        self.dice = random.Random(seed)
        self.teams = teams
        self.world = quota_world.make(gpus, allocations, teams, seed)
        self.charter: Charter = charter(self.world.lines, (), self.world.parents, self.world.fleet.models)

    def standing(self, fleet: Fleet, period: Period, gone: frozenset[UUID] = frozenset()) -> Standing:
        from pool.core.quota_uses import Uses
        from pool.core.standing import Standing

        world = self.world
        uses = Uses.of(fleet, period)
        return Standing(
            lines=world.lines,
            grants=(),
            parents=world.parents,
            uses=uses.but(gone) if gone else uses,
            models=fleet.models,
            capacity=world.capacity,
            kept=self.charter,
        )

    def snapshot(
        self, fleet: Fleet, period: Period, now: datetime, gone: frozenset[UUID] = frozenset()
    ) -> Snapshot:
        from pool.core.placement import prior
        from pool.queries.snapshot import Snapshot

        window = fleet.window(period, now)
        stand = self.standing(fleet, period, gone)
        return Snapshot(fleet, period, now, window, fleet, stand, policy=prior())

    def wanted(self, ask: Ask, period: Period, team: int, *, firm: bool = False) -> Wanted:
        from pool.core.shapes import Class
        from pool.services.plans import Wanted

        return Wanted(ask, period, period, Class.BATCH, team_id=team, firm=firm, owner_id=-1)

    def some_period(self, hours: int) -> Period:
        from pool.core.period import Period

        start = self.world.begin + timedelta(minutes=15 * self.dice.randrange(10 * 96))
        return Period(start, start + timedelta(hours=self.dice.randint(1, hours)))


def decide(pool: Pool) -> list[float]:
    """Milliseconds of each decision: small asks of every kind, of teams all over the tree."""
    from bench.decide import asks
    from pool.core.errors import Refusal
    from pool.services import plans
    from pool.services.plans import NoRoom

    kinds, times, found = asks(), [], 0
    for number in range(DECISIONS):
        period, team = pool.some_period(24), pool.dice.randint(1, pool.teams)
        wanted = pool.wanted(kinds[number % len(kinds)], period, team)
        begun = time.perf_counter()
        with suppress(NoRoom, Refusal):
            found += bool(plans.choose(pool.snapshot(pool.world.fleet, period, period.start), wanted))
        times.append((time.perf_counter() - begun) * 1000)
    assert found > DECISIONS // 2, "too little was granted to say anything"
    return times


def reclaim(pool: Pool) -> list[float]:
    """Milliseconds of each decision to take back whole nodes for whom they are guaranteed to."""
    from pool.core.reclaim import Notice, reclaim
    from pool.core.shapes import GpuAsk

    times: list[float] = []
    ask = GpuAsk(count=8, same_node=True)
    rule = Notice(timedelta(minutes=5), timedelta(minutes=10))
    for _ in range(TRIES):
        period = pool.some_period(1)
        period = replace(period, end=period.start + timedelta(hours=18))
        look = _Look(pool, ask, period.start)
        begun = time.perf_counter()
        found = reclaim(
            pool.world.fleet,
            ask,
            period,
            period.start,
            rule=rule,
            borrowers=look.borrowers(period),
            place=look.place,
        )
        # Now and then a node is free anyway, or the borrowers on none are all of it.
        if found is not None and found.victims:
            times.append((time.perf_counter() - begun) * 1000)
        if len(times) == RECLAIMS:
            break
    assert times, "nobody had to give way"
    return times


class _Look:
    """What core.reclaim asks while it looks, as services.reclaim answers it."""

    def __init__(self, pool: Pool, ask: Ask, now: datetime) -> None:
        self.pool, self.ask, self.now = pool, ask, now

    def borrowers(self, wanted: Period) -> Callable[[datetime], Sequence[Borrower]]:
        from pool.core.borrowers import borrowers
        from pool.core.period import Period

        fleet = self.pool.world.fleet
        far = Period(wanted.start, (wanted.end or wanted.start) + timedelta(hours=2))
        standing = self.pool.standing(fleet, far)

        def at(instant: datetime) -> Sequence[Borrower]:
            when = Period(instant, instant + (wanted.duration or timedelta(hours=1)))
            return borrowers(fleet, standing, quota_world.HOLDER, when, self.now)

        return at

    def place(self, fleet: Fleet, gone: frozenset[UUID], period: Period) -> Sequence[Candidate]:
        from pool.core.errors import Refusal
        from pool.core.placement import Candidate
        from pool.services import plans
        from pool.services.plans import NoRoom

        wanted = self.pool.wanted(self.ask, period, quota_world.HOLDER)
        try:
            found = plans.choose(self.pool.snapshot(fleet, period, self.now, gone), wanted)
        except (NoRoom, Refusal):
            return ()
        return [Candidate(plan.picks, plan.why) for plan in found if not plan.borrowed]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quota", description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--allocations", type=int, default=100_000)
    parser.add_argument("--teams", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    os.environ.setdefault("GPUPOOL_EMBEDDED", "1")
    django.setup()
    board = Board()
    pool = Pool(options.gpus, options.allocations, options.teams, options.seed)
    times = decide(pool)
    board.at_most("quota.decision_median", statistics.median(times), "ms", 20)
    board.at_most("quota.decision_p95", percentile(times, 0.95), "ms", 60)
    board.at_most("quota.reclaim_median", statistics.median(reclaim(pool)), "ms", 200)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
