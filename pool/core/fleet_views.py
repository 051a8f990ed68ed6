"""One GPU of a fleet as placement_room checks it, and the reverse: cards and rows of such views."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from pool.core.fleet_cards import Card, NodeCard
from pool.core.fleet_rows import ALWAYS, MEDIA, ROW, Records, instant, masks, micros, span_of
from pool.core.period import Period
from pool.core.placement_room import Busy, GpuView
from pool.core.shapes import Sharing
from pool.core.shares import Portion

#: Tenancies: all that is booked excludes one another; the rest is no allocation at all.
BOOKED = "booked"
BLOCKER = "blocker"


def view_of(card: Card, busy: tuple[Busy, ...], *, late: bool, most_shares: int, one_user: bool) -> GpuView:
    """The GPU of this card. `late`: its node has not reported for too long; the rest are its pool's rules."""
    why = card.why or ("unknown" if late else None)
    node = card.node
    return GpuView(
        id=card.id,
        uuid=card.uuid,
        node_id=node.id,
        node=node.name,
        index=card.index,
        model=card.model,
        memory_mib=card.memory_mib,
        use=card.use,
        grid=card.grid,
        profiles=card.profiles,
        busy=busy,
        usable=why is None,
        why=why,
        sharing=card.sharing,
        most_shares=most_shares,
        one_user=one_user and card.sharing is Sharing.MPS,
        block=node.block,
        domain=card.domain,
        imex=node.imex,
        cpu_milli=node.cpu_milli,
        ram_mib=node.memory_mib,
        mig_now=card.mig_now,
        mig_capable=card.mig_capable,
        numa=card.numa,
        links=card.links,
    )


def card_of(view: GpuView) -> Card:
    """The card of this GPU; a domain that is not named is its node."""
    return Card(
        id=view.id,
        uuid=view.uuid,
        node=NodeCard(view.node_id, view.node, view.block, view.cpu_milli, view.ram_mib, view.imex),
        index=view.index,
        model=view.model,
        memory_mib=view.memory_mib,
        use=view.use,
        grid=view.grid,
        profiles=view.profiles,
        why="" if view.usable else view.why or "unusable",
        sharing=view.sharing,
        mig_now=view.mig_now,
        mig_capable=view.mig_capable,
        domain=view.domain or node_domain(view.node),
        numa=view.numa,
        links=view.links,
    )


def node_domain(node: str) -> str:
    """The NVLink domain of GPUs that have none beyond their own node."""
    return f"node:{node}"


def busy_of(row: Any, accounts: Mapping[int, str], now: datetime) -> Busy:
    """One record of ROW. A blocker is in the way from now until it is cleared."""
    start, size = span_of(row["mask"])
    since = now if row["start"] == ALWAYS else instant(int(row["start"]))
    assert since is not None
    period = Period(since, instant(int(row["end"])))
    if row["blocker"]:
        return Busy(start, size, period, None, BLOCKER)
    portion = None
    if row["memory"]:
        number = int(row["account"])
        # A name that is not known yet is nobody's; its mark brings it with the next reading.
        user = accounts.get(number, f"?{number}") if number else None
        portion = Portion(int(row["memory"]), int(row["compute"]), int(row["limit"]), user)
    profile = int(row["profile"])
    return Busy(
        start,
        size,
        period,
        MEDIA[row["media"]],
        BOOKED,
        None if profile < 0 else profile,
        portion,
        int(row["cpu"]),
        int(row["ram"]),
    )


def record_of(gpu_id: int, busy: Busy, numbers: Mapping[str | None, int]) -> Records:
    """The record of this; whose reservation it is stays open. `numbers` are those of the accounts."""
    row = np.zeros((), dtype=ROW)
    portion = busy.portion
    row["gpu"], row["blocker"] = gpu_id, busy.tenancy == BLOCKER
    row["start"], row["end"] = micros(busy.period.start), micros(busy.period.end)
    row["since"], row["until"] = row["start"], row["end"]
    row["mask"] = masks(np.array([busy.start]), np.array([busy.size]))[0]
    row["profile"] = -1 if busy.profile_id is None else busy.profile_id
    row["media"] = MEDIA.index(busy.media)
    row["cpu"], row["ram"] = busy.cpu_milli, busy.ram_mib
    if portion is not None:
        row["memory"], row["compute"] = portion.memory_mib, portion.compute_pct
        row["limit"], row["account"] = portion.limit_pct, numbers[portion.user]
    return row
