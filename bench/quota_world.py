"""The large pool of bench.decide with a tree of teams over it, each with its quota; random, by seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from bench import decide_world
from pool.core.fleet import Fleet, Ints, Records, fleet
from pool.core.quota import WHOLE
from pool.core.quota_lines import Line, Unit

#: Departments at the top of the tree; each has the same number of teams below it.
DEPARTMENTS = 50
#: So many tenths of the teams have no guarantee, and borrow all that they have.
GUESTS = 4
#: Who has a guarantee of whole nodes and uses nothing of it.
HOLDER = 1_000_000
HELD_GPUS = 16
_GPUS_OF_A_NODE = decide_world.PER_NODE
#: What guarantees are in: only some GPUs can be had as a whole.
_UNITS, _HOW_OFTEN = ((Unit.SLOTS, 1), (Unit.GPU, 1), (Unit.NODE, 2)), (17, 2, 1)


@dataclass(frozen=True, eq=False)
class Promises:
    """The pool with all bookings, and what its teams are promised."""

    fleet: Fleet
    lines: tuple[Line, ...]
    parents: Mapping[int, int | None]
    capacity: Mapping[str, int]
    begin: datetime


def make(gpus: int, allocations: int, teams: int, seed: int) -> Promises:
    """`teams` teams; the guarantees of all but the guests together are what the pool has but for a tenth."""
    world = decide_world.make(gpus, allocations, seed, decide_world.tomorrow())
    dice = random.Random(seed)
    world.rows["team"] = _whose(world.rows, teams)
    world.rows["created"] = world.rows["since"] - dice.randrange(1, 10**9)
    world.rows["priority"] = 50
    parents: dict[int, int | None] = {-number: None for number in range(1, DEPARTMENTS + 1)}
    parents |= {team: -_department(team, teams) for team in range(1, teams + 1)} | {HOLDER: None}
    known = fleet(world.cards, world.rows, most_shares=10)
    has = dict(zip(known.models, np.bincount(known.model).tolist(), strict=True))
    lines = _lines(teams, has, dice)
    return Promises(known, lines, parents, {model: WHOLE * n for model, n in has.items()}, world.begin)


def _whose(rows: Records, teams: int) -> Ints:
    """Guests are on nodes of their own, so that whole nodes can be taken back."""
    each, guests = np.arange(len(rows)), teams * GUESTS // 10
    on_theirs = (rows["gpu"] - 1) // decide_world.PER_NODE % 10 < GUESTS
    return np.where(on_theirs, 1 + each % guests, 1 + guests + each % (teams - guests))


def _department(team: int, teams: int) -> int:
    """Guests have departments of their own, which are guaranteed nothing either."""
    of_guests = DEPARTMENTS * GUESTS // 10
    if team <= teams * GUESTS // 10:
        return 1 + team % of_guests
    return 1 + of_guests + team % (DEPARTMENTS - of_guests)


def _lines(teams: int, has: Mapping[str, int], dice: random.Random) -> tuple[Line, ...]:
    """A line for any model for every team, one for its department, and one for a model for some."""
    total = sum(has.values())
    guests = teams * GUESTS // 10
    fair = max(1, (total * 9 // 10 - HELD_GPUS) // (teams - guests))
    lines: list[Line] = []
    of_department: dict[int, int] = dict.fromkeys(range(1, DEPARTMENTS + 1), 0)
    for team in range(1, teams + 1):
        unit, size = dice.choices(_UNITS, _HOW_OFTEN)[0]
        due = 0 if team <= guests else fair // size * size * WHOLE
        of_department[_department(team, teams)] += due
        lines.append(
            Line(
                len(lines) + 1,
                None,
                due,
                4 * due + 64 * WHOLE,
                team,
                unit=unit,
                unit_size=size,
                weight=1 + team % 3,
            )
        )
    for number, due in of_department.items():
        lines.append(Line(len(lines) + 1, None, due, total * WHOLE, -number))
    model = max(has, key=lambda name: (has[name], name))
    held = HELD_GPUS * WHOLE
    lines.append(Line(len(lines) + 1, model, held, held, HOLDER, unit=Unit.NODE, unit_size=_GPUS_OF_A_NODE))
    return tuple(lines)
