"""How each pool is placed: the policy of the mix that was last learnt of it, kept by each process."""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.core import mix as mixes
from pool.core.placement import Policy, prior
from pool.models import PoolMix
from pool.queries import clock

#: So often a process looks whether something new was learnt; no decision waits for it.
LOOK = timedelta(minutes=1)

#: By pool: when it was looked at, when it was learnt (None: never), and the policy.
_kept: dict[int, tuple[datetime, datetime | None, Policy]] = {}


def policy(pool_id: int) -> Policy:
    """The policy of this pool; that of a pool of which nothing is known until something is learnt."""
    now = clock.real_now()
    kept = _kept.get(pool_id)
    if kept is not None and now - kept[0] < LOOK:
        return kept[2]
    found: tuple[datetime, datetime | None, Policy]
    row = PoolMix.objects.filter(pool_id=pool_id).values_list("mix", "at").first()
    if row is None:
        found = (now, None, prior())
    elif kept is not None and kept[1] == row[1]:
        found = (now, row[1], kept[2])
    else:
        found = (now, row[1], Policy(mixes.from_json(row[0])))
    _kept[pool_id] = found
    return found[2]


def forget() -> None:
    """The next decision looks anew."""
    _kept.clear()
