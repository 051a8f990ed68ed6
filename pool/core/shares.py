"""Shares of a GPU: what one takes, what it counts, and the ledgers that must never overflow.

Memory (MiB), compute (percent) and tenants are three ledgers of each GPU. All
that is given away is checked as a peak over time: at no instant may a ledger
hold more than its GPU has. Where a share goes is decided in placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pool.core.period import Period
from pool.core.quota import WHOLE
from pool.core.shapes import ALL_PCT, ShareAsk, Sharing

#: Memory that is never given away: the driver, an MPS server and its clients' contexts need some.
RESERVE_MIB = 1024
#: The most clients of one MPS server (NVIDIA's MPS guide, Volta and later).
MPS_CLIENTS = 48
#: A share counts at least this much, however little it asks for.
LEAST_MIB = 1024
LEAST_PCT = 5
#: What may be full of a GPU, as `room_for` and `overflow` say it: whose MPS server it is, or a ledger.
FULL = ("other_user", "memory_full", "compute_full", "shares_full")
#: What keeps a share apart from the others on its GPU.
ISOLATION = {Sharing.MPS: "driver", Sharing.HAMI: "library", Sharing.TIMESLICE: "none"}
#: The stronger isolation first.
ORDER = (Sharing.MPS, Sharing.HAMI, Sharing.TIMESLICE)
#: For ledgers of one moment, of which everything in them is a part.
ALWAYS = Period(datetime(1970, 1, 1, tzinfo=UTC), None)


@dataclass(frozen=True, slots=True)
class Portion:
    """What one share takes of its GPU. `compute_pct` is guaranteed, `limit_pct` the most.

    `user`: whose MPS server it needs, where a GPU has only one; else None.
    """

    memory_mib: int
    compute_pct: int
    limit_pct: int
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What a GPU can give in shares. `one_user`: to one account at a time, that of its MPS server."""

    memory_mib: int
    tenants: int
    one_user: bool = False
    compute_pct: int = ALL_PCT


def shareable_mib(memory_mib: int) -> int:
    """What of a GPU's memory can be given away in shares."""
    return max(0, memory_mib - RESERVE_MIB)


def most_tenants(sharing: Sharing | None, most_shares: int) -> int:
    """How many shares one GPU takes: as many as its pool allows, and no more than an MPS server serves."""
    return min(most_shares, MPS_CLIENTS) if sharing is Sharing.MPS else most_shares


def portion(ask: ShareAsk, shareable: int, user: str | None) -> Portion | None:
    """What `ask` takes of a GPU that can share `shareable` MiB; None when that is less than it wants.

    A percentage is rounded down, so that 2 halves and 3 times 33 % fit.
    """
    memory_mib = ask.memory_mib
    if memory_mib is None:
        memory_mib = (ask.memory_pct or 0) * shareable // ALL_PCT
    if not 1 <= memory_mib <= shareable:
        return None
    return Portion(memory_mib, ask.guaranteed, ask.limit, user)


def charge_milli(one: Portion, shareable: int) -> int:
    """The larger of its fractions of memory and of guaranteed compute, rounded up; a whole GPU at most.

    The memory counts as a part of what can be shared, and as 1 GiB and 5 % at least.
    """
    memory = -(-WHOLE * max(one.memory_mib, LEAST_MIB) // shareable)
    compute = WHOLE * max(one.compute_pct, LEAST_PCT) // ALL_PCT
    return min(WHOLE, max(memory, compute))


#: A share that is there, with the time for which it is.
There = tuple[Period, Portion]


class Peaks(NamedTuple):
    """The most that is given away of each ledger at any one instant; not all at the same one."""

    memory_mib: int
    compute_pct: int
    tenants: int


def peaks(there: Iterable[There], within: Period) -> Peaks:
    """What the ledgers hold at their fullest instants of `within`; at one instant, ends before starts."""
    changes: list[tuple[datetime, int, int, int]] = []
    for period, one in there:
        if period.overlaps(within):
            changes.append((max(period.start, within.start), 1, one.memory_mib, one.compute_pct))
            if period.end is not None:
                changes.append((period.end, -1, -one.memory_mib, -one.compute_pct))
    changes.sort()
    memory = compute = tenants = 0
    most = (0, 0, 0)
    for _, number, memory_mib, compute_pct in changes:
        memory, compute, tenants = memory + memory_mib, compute + compute_pct, tenants + number
        if number > 0:
            most = (max(most[0], memory), max(most[1], compute), max(most[2], tenants))
    return Peaks(*most)


def room_for(
    one: Portion, there: Sequence[There], within: Period, ledgers: Ledgers, used: Peaks | None = None
) -> tuple[int, str | None]:
    """How many more of `one` every ledger has room for at each instant of `within`, and if 0, why.

    `used` is what `peaks` gives, where that is known. Words: FULL.
    """
    if ledgers.one_user and any(other.user != one.user for at, other in there if at.overlaps(within)):
        return 0, "other_user"
    used = used or peaks(there, within)
    counts = [
        ((ledgers.memory_mib - used.memory_mib) // one.memory_mib, "memory_full"),
        (ledgers.tenants - used.tenants, "shares_full"),
    ]
    if one.compute_pct:
        counts.append(((ledgers.compute_pct - used.compute_pct) // one.compute_pct, "compute_full"))
    count, why = min(counts)
    return (count, None) if count > 0 else (0, why)


def overflow(new: Sequence[Portion], there: Sequence[There], within: Period, ledgers: Ledgers) -> str | None:
    """The ledger (in a word of FULL) that cannot take all of `new` over `within`; None: they fit."""
    both = [(period, other) for period, other in there if period.overlaps(within)]
    both += [(within, one) for one in new]
    if ledgers.one_user and len({one.user for _, one in both}) > 1:
        return "other_user"
    used = peaks(both, within)
    if used.memory_mib > ledgers.memory_mib:
        return "memory_full"
    if used.compute_pct > ledgers.compute_pct:
        return "compute_full"
    return "shares_full" if used.tenants > ledgers.tenants else None
