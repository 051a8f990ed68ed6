"""A large pool for bench.decide: GPUs of every use, and bookings on them over 14 days; random, by seed."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from pool.core import mig
from pool.core.fleet import ROW, Card, NodeCard, Records, micros
from pool.core.mig import Media, Profile
from pool.core.placement import Use
from pool.core.shapes import Sharing

DAYS = 14
PER_NODE = 8
HOUR = 3600 * 10**6
TEAMS = 20
#: By the number of its node: (model, use).
KINDS = (
    *[("H100-80GB", Use.MIG)] * 10,
    *[("A100-40GB", Use.MIG)] * 3,
    *[("H100-80GB", Use.WHOLE)] * 5,
    *[("H100-80GB", Use.SHARE)] * 2,
)
#: Shares that a GPU has beside one another, what each has of its memory (MiB) and of its compute (percent).
SHARES, SHARE_MIB, SHARE_PCT = 4, 12_288, 20


@dataclass(frozen=True, slots=True)
class Lane:
    """What is booked again and again on a GPU: a slice, all of it (no profile), or one of several shares."""

    start: int
    size: int
    profile: Profile | None


@dataclass(frozen=True, eq=False)
class World:
    """The pool; `begin` is the first instant at which something is booked."""

    cards: list[Card]
    rows: Records
    begin: datetime


def make(gpus: int, allocations: int, seed: int, begin: datetime) -> World:
    """`gpus` GPUs in nodes of eight, and about `allocations` bookings, the same number on each GPU."""
    dice = random.Random(seed)
    cards = [_card(number) for number in range(gpus)]
    since = micros(begin)
    found = []
    for number, card in enumerate(cards):
        mine = allocations * (number + 1) // gpus - allocations * number // gpus
        found += _on(card, mine, since, dice)
    rows = np.zeros(len(found), dtype=ROW)
    for column, name in enumerate(("gpu", "start", "end", "mask", "profile", "media", "memory", "charge")):
        rows[name] = [one[column] for one in found]
    rows["since"], rows["until"] = rows["start"], rows["end"]
    shares = rows["memory"] > 0
    rows["compute"][shares] = rows["limit"][shares] = SHARE_PCT
    each = np.arange(len(rows))
    rows["klass"], rows["moved"] = 2 + each % 2, True
    rows["owner"] = rows["team"] = 1 + each % TEAMS
    rows["reservation"][:, 1] = each + 1
    return World(cards, rows, begin)


def _card(number: int) -> Card:
    node, index = divmod(number, PER_NODE)
    name, use = KINDS[node % len(KINDS)]
    model = mig.models()[name]
    host = NodeCard(node + 1, f"node-{node:05}", f"rack-{node // 16:04}", 192_000, 2_000_000)
    return Card(
        id=number + 1,
        uuid=f"GPU-bench-{number:06}",
        node=host,
        index=index,
        model=name,
        memory_mib=model.total_memory_mib,
        use=use,
        grid=model.grid,
        profiles=model.profiles if use is Use.MIG else (),
        sharing=Sharing.HAMI if use is Use.SHARE else None,
        domain=f"node:{host.name}",
    )


def _lanes(card: Card, dice: random.Random) -> list[Lane]:
    if card.use is Use.SHARE:
        return [Lane(0, card.grid, None)] * SHARES
    if card.use is Use.WHOLE:
        return [Lane(0, card.grid, None)]
    plain = [p for p in card.profiles if p.media is Media.DEFAULT and not p.gfx]
    used: dict[int, int] = defaultdict(int)
    lanes, at = [], 0
    while at < card.grid:
        fits = [p for p in plain if at in p.starts and used[p.profile_id] < p.max_instances]
        if not fits:
            at += 1
            continue
        one = dice.choice(fits)
        used[one.profile_id] += 1
        lanes.append(Lane(at, one.size, one))
        at += one.size
    return lanes


def _on(card: Card, number: int, since: int, dice: random.Random) -> list[tuple[int, ...]]:
    """The bookings of one GPU: in each lane one after the other, with time between them."""
    lanes = _lanes(card, dice)
    clocks = [since] * len(lanes)
    free = DAYS * 24 * len(lanes) / max(1, number)
    rows = []
    for n in range(number):
        lane = lanes[n % len(lanes)]
        length = min(dice.choice((1, 2, 4, 8, 24)), max(1.0, free * 0.7))
        begin = clocks[n % len(lanes)] + int(dice.random() * 2 * max(0.0, free - length) * HOUR)
        end = clocks[n % len(lanes)] = begin + int(length * HOUR)
        rows.append(_row(card, lane, begin, end))
    return rows


def _row(card: Card, lane: Lane, begin: int, end: int) -> tuple[int, ...]:
    mask = ((1 << lane.size) - 1) << lane.start
    if lane.profile is not None:
        charge = 1000 * lane.size // card.grid
        return card.id, begin, end, mask, lane.profile.profile_id, 1, 0, charge
    memory = SHARE_MIB if card.use is Use.SHARE else 0
    return card.id, begin, end, mask, -1, 0, memory, SHARE_PCT * 10 if memory else 1000


def shortened(rows: Records, number: int, dice: random.Random) -> Records:
    """All rows of some GPUs, of which `number` end a little earlier than they did."""
    which = np.array(dice.sample(range(len(rows)), number))
    rows["end"][which] -= np.maximum(1, (rows["end"][which] - rows["start"][which]) // 16)
    rows["until"][which] = rows["end"][which]
    return rows[np.isin(rows["gpu"], rows["gpu"][which])]


def tomorrow() -> datetime:
    """So that nothing of what is booked begins meanwhile."""
    now = datetime.now(UTC) + timedelta(days=1)
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
