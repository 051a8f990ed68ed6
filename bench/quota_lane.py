"""`python -m bench.quota_lane`: how long the `due` lane takes for 1,000 changes with 10 bad rows among them.

On a PostgreSQL and Redis of its own: 500 bookings end and 500 begin at one instant, on 144 GPUs.
Each run has a pool of its own. A bad row is one that the database refuses to change.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from bench.goals import Board

if TYPE_CHECKING:
    from pool.core import wire
    from pool.core.mig import Profile
    from pool.models import Gpu, Pool

RUNS = 3
CHANGES = 1_000
BAD = 10
NODES, GPUS, SLICES = 18, 8, 7
MODEL, PROFILE = "H100-80GB", "1g.10gb"
BATCH = 1_000

#: What a row of another time, a faulty migration or a trigger of somebody else's may do.
REFUSING = """
CREATE TABLE IF NOT EXISTS bench_bad (id uuid PRIMARY KEY);
CREATE OR REPLACE FUNCTION bench_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM bench_bad WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'a bad row' USING ERRCODE = 'data_exception';
    END IF;
    RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS bench_refuse ON pool_reservation;
CREATE TRIGGER bench_refuse BEFORE UPDATE ON pool_reservation FOR EACH ROW EXECUTE FUNCTION bench_refuse();
"""


def fill(number: int, now: datetime) -> Pool:
    """A pool in which everything is due at `now`; every hundredth booking is bad."""
    from django.db import connection

    from pool.models import Pool, QuotaLine, Team, User

    pool = Pool.objects.create(name=f"lane-{number}")
    team = Team.objects.create(name=f"team-{number}")
    owner = User.objects.create(username=f"owner-{number}")
    QuotaLine.objects.create(team=team, pool=pool, guaranteed_milli=0, cap_milli=1_000_000)
    gpus = _gpus(pool)
    bad = _book(pool, team.pk, owner.pk, gpus, now)
    with connection.cursor() as cursor:
        cursor.execute(REFUSING)
        cursor.executemany("INSERT INTO bench_bad VALUES (%s)", [(pk,) for pk in bad])
        cursor.execute("ANALYZE")
    return pool


def _gpus(pool: Pool) -> list[Gpu]:
    import msgspec

    from pool.core import mig
    from pool.models import Gpu, GpuState, Node

    known = mig.models()[MODEL]
    offers = msgspec.to_builtins([_offer(profile) for profile in known.profiles])
    heard = datetime.now(UTC) + timedelta(hours=1)
    nodes = Node.objects.bulk_create(
        Node(pool=pool, name=f"{pool.name}-{n}", machine_id=f"{pool.name}-{n}", received_at=heard)
        for n in range(NODES)
    )
    gpus = Gpu.objects.bulk_create(
        Gpu(
            node=node,
            index=index,
            uuid=f"GPU-{node.name}-{index}",
            name=known.nvml_names[0],
            model=MODEL,
            memory_mib=known.total_memory_mib,
            grid=known.grid,
            mig_capable=True,
            profiles=offers,
            use=Gpu.Use.MIG,
            managed=True,
        )
        for node in nodes
        for index in range(GPUS)
    )
    GpuState.objects.bulk_create(GpuState(gpu=gpu, received_at=heard, mig=True) for gpu in gpus)
    return list(gpus)


def _offer(profile: Profile) -> wire.Offer:
    from pool.core import wire

    return wire.Offer(
        profile_id=profile.profile_id,
        name=profile.name,
        compute_slices=profile.compute_slices,
        size=profile.size,
        memory_mib=profile.memory_mib,
        sm=profile.sm,
        max_instances=profile.max_instances,
        starts=profile.starts,
    )


def _book(pool: Pool, team: int, owner: int, gpus: list[Gpu], now: datetime) -> list[uuid.UUID]:
    """One half runs and is over at `now`, the other half is to begin then; the bad ones."""
    from pool.models import Allocation, Reservation

    hour = timedelta(hours=1)
    rows, slices, bad = [], [], []
    for number in range(CHANGES):
        ends = number < CHANGES // 2
        period = (now - hour, now) if ends else (now, now + hour)
        row = Reservation(
            team_id=team,
            pool=pool,
            owner_id=owner,
            booked_by_id=owner,
            ask={"kind": "mig", "profile": PROFILE, "count": 1},
            klass="batch",
            state="active" if ends else "scheduled",
            state_reason="applied" if ends else "booked",
            period=period,
            created_at=now - 2 * hour,
            started_at=now - hour if ends else None,
            charge_milli=125,
        )
        at = number // SLICES, number % SLICES
        rows.append(row)
        slices.append(_slice(Allocation(reservation=row, gpu=gpus[at[0]], period=period), at[1], ends))
        if number % (CHANGES // BAD) == 0:
            bad.append(row.pk)
    Reservation.objects.bulk_create(rows, batch_size=BATCH)
    Allocation.objects.bulk_create(slices, batch_size=BATCH)
    return bad


def _slice(one: Any, start: int, ends: bool) -> Any:
    from pool.core import mig

    profile = mig.models()[MODEL].profile(PROFILE)
    assert profile is not None
    one.kind, one.model, one.profile, one.profile_id = "mig", MODEL, PROFILE, profile.profile_id
    one.span, one.blocked, one.tenancy, one.holds = (start, start + 1), one.period, one.pk, True
    one.media_group, one.charge_milli = 0, 125
    if ends:
        one.wanted_at = one.ready_at = one.period[0]
    return one


def run(number: int, board: Board) -> float:
    """Seconds for all changes of one pool, in as many runs of the lane as it takes."""
    from django.db import connection

    from pool.models import Reservation, SetAside
    from pool.services import lanes

    now = datetime(2027, 1, 1, tzinfo=UTC)
    pool = fill(number, now)
    begun = time.perf_counter()
    done = lanes.due(now=now)
    seconds = time.perf_counter() - begun
    assert done is not None
    found = (done.ended, done.started, done.set_aside)
    expected = (CHANGES // 2 - BAD // 2, CHANGES // 2 - BAD // 2, BAD)
    odd = sum(abs(one - other) for one, other in zip(found, expected, strict=True))
    board.at_most("quota.lane_rows_otherwise", odd, "rows", 0)
    # Nothing of this pool is left for the lane in the next run.
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER bench_refuse ON pool_reservation; DELETE FROM bench_bad")
    Reservation.objects.filter(pool=pool).update(state="ended")
    SetAside.objects.all().delete()
    return seconds


def main() -> int:
    from portal import embedded

    board = Board()
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-", dir="/tmp") as folder:
        state = Path(folder) / "data"
        state.parent.chmod(0o711)
        with embedded.start(state, durable=True) as servers:
            os.environ |= servers.environment() | {
                "DJANGO_SETTINGS_MODULE": "portal.settings",
                "GPUPOOL_EMBEDDED": "1",
            }
            django.setup()
            from django.core.management import call_command

            call_command("migrate", verbosity=0, interactive=False)
            seconds = [run(number, board) for number in range(RUNS)]
            from django.db import connections

            connections.close_all()
        embedded.clear(state)
    board.at_most("quota.lane_1000_changes_median", statistics.median(seconds), "s", 2)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
