"""Where the teams of a pool stand: its lines, grants and tree as they are, and what counts on a fleet.

Read whole for every decision, since a team's figures depend on those of the teams above it and of
all that lend. What does not change from booking to booking is kept until one of its rows does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
from django.db import connection

from pool.core.charter import Charter, charter
from pool.core.fleet import Fleet
from pool.core.fleet_cards import Card
from pool.core.period import Period
from pool.core.quota import WHOLE
from pool.core.quota_lines import Grant, Limits, Line
from pool.core.quota_uses import Uses
from pool.core.standing import Standing


@dataclass(frozen=True, slots=True)
class Frame:
    """What was decided by people: it stays the same from booking to booking."""

    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    parents: Mapping[int, int | None]


# By the place and the age of every row: whoever writes one, in whatever way, changes the sum.
# With it, whether anybody waits: most often nobody does, and every booking asks.
_MARK = """
SELECT concat_ws(' ', current_database(), pg_postmaster_start_time(),
    (SELECT sum(hashtextextended(ctid::text || xmin::text, 0)) FROM pool_quotaline WHERE pool_id = %(pool)s),
    (SELECT sum(hashtextextended(ctid::text || xmin::text, 0)) FROM pool_quotagrant WHERE pool_id = %(pool)s),
    (SELECT sum(hashtextextended(ctid::text || xmin::text, 0)) FROM pool_team)),
  EXISTS (SELECT FROM pool_reservation
    WHERE pool_id = %(pool)s AND state = 'waiting' AND id IS DISTINCT FROM %(without)s)
"""

_LINES = """
SELECT id, NULLIF(model, ''), guaranteed_milli, cap_milli, team_id, lend_milli, unit, unit_size, weight,
    memory_mib, budget_milli_hours, kinds, largest_milli, most_gpus, longest_minutes, ahead_minutes
FROM pool_quotaline WHERE pool_id = %(pool)s ORDER BY id
"""

_GRANTS = """
SELECT team_id, NULLIF(model, ''), guaranteed_milli, cap_milli, memory_mib, budget_milli_hours,
    lower(valid), upper(valid)
FROM pool_quotagrant WHERE pool_id = %(pool)s ORDER BY id
"""

_kept: dict[int, tuple[str, Frame]] = {}
_charters: dict[int, tuple[Frame, tuple[str, ...], Charter]] = {}
_capacities: dict[int, tuple[tuple[Card, ...], Mapping[str, int]]] = {}


def of(pool_id: int, fleet: Fleet, within: Period, *, without: UUID | None = None) -> Standing:
    """All of the pool over this period; `fleet` has to be all of it, too. `without`: see Uses.of."""
    return with_line(pool_id, fleet, within, without=without)[0]


def with_line(
    pool_id: int, fleet: Fleet, within: Period, *, without: UUID | None = None
) -> tuple[Standing, bool]:
    """The same, and whether anybody (but `without`) waits in the pool, in one statement."""
    told, somebody = _told(pool_id, without)
    return Standing(
        lines=told.lines,
        grants=told.grants,
        parents=told.parents,
        uses=Uses.of(fleet, within, without),
        models=fleet.models,
        capacity=_capacity(pool_id, fleet),
        kept=_charter(pool_id, told, fleet.models),
    ), somebody


def _charter(pool_id: int, told: Frame, models: tuple[str, ...]) -> Charter:
    """Its tables are long in the making, so they are kept as long as the frame is."""
    known = _charters.get(pool_id)
    if known is None or known[0] is not told or known[1] != models:
        made = charter(told.lines, told.grants, told.parents, models)
        known = _charters[pool_id] = told, models, made
    return known[2]


def forget() -> None:
    """Keep nothing."""
    _kept.clear()
    _charters.clear()
    _capacities.clear()


def frame(pool_id: int) -> Frame:
    """All lines and grants of the pool, and the tree of all teams, as they are now."""
    return _told(pool_id, None)[0]


def _told(pool_id: int, without: UUID | None) -> tuple[Frame, bool]:
    with connection.cursor() as cursor:
        cursor.execute(_MARK, {"pool": pool_id, "without": without})
        mark, somebody = cursor.fetchone()
    known = _kept.get(pool_id)
    if known is None or known[0] != mark:
        known = _kept[pool_id] = mark, _read(pool_id)
    return known[1], somebody


def _read(pool_id: int) -> Frame:
    return Frame(
        lines=tuple(_line(*row) for row in _rows(_LINES, pool_id)),
        grants=tuple(_grant(*row) for row in _rows(_GRANTS, pool_id)),
        parents=dict(_rows("SELECT id, parent_id FROM pool_team", pool_id)),
    )


def _line(*row: Any) -> Line:
    kinds, largest, most, longest, ahead = row[11:]
    return replace(Line(*row[:11]), limits=Limits(tuple(kinds), largest, most, longest, ahead))


def _grant(*row: Any) -> Grant:
    team, model, guaranteed, cap, memory, budget, start, end = row
    return Grant(team, model, guaranteed, cap, memory, budget, Period(start, end))


def _capacity(pool_id: int, fleet: Fleet) -> Mapping[str, int]:
    """What the pool has of each model, in milli: its GPUs that are not retired."""
    known = _capacities.get(pool_id)
    if known is None or known[0] is not fleet.cards:
        there = np.array([card.why != "retired" for card in fleet.cards], dtype=np.bool_)
        numbers = np.bincount(fleet.model[there], minlength=len(fleet.models)).tolist()
        counted = {model: WHOLE * number for model, number in zip(fleet.models, numbers, strict=True)}
        known = _capacities[pool_id] = fleet.cards, counted
    return known[1]


def _rows(sql: str, pool_id: int) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"pool": pool_id})
        return list(cursor.fetchall())
