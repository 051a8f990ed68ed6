"""What a check goes by: the rows of one pool, read plainly and put into plain objects.

Nothing here shares code with what decides: no fleet, no standing, no columns. Slow, but obvious.
Amounts are thousandths of a GPU (milli) and MiB; `until` None is no end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that does not agree with the rows, or that must not be.

    `rule` is a stable word, `subject` what it is about. `kept`: it was right when it was granted, and
    something was changed by hand since (a limit was lowered, a GPU retired): shown, and no fault.
    """

    rule: str
    pool: str
    subject: str
    data: Mapping[str, Any]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A quota line; `model` "" is any."""

    team: int
    model: str
    guaranteed: int
    cap: int
    lend: int | None
    unit: str
    size: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Grant:
    """On top of the line of the same team and model while it is valid."""

    team: int
    model: str
    guaranteed: int
    cap: int
    memory: int
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Use:
    """One allocation that holds, in its reservation's own time, cut where it is recalled.

    `grown` is the number of the last event by which its reservation took more; `firm`: cannot be taken back.
    """

    reservation: UUID
    allocation: UUID
    team: int
    model: str
    gpu: int
    milli: int
    memory: int
    since: datetime
    until: datetime | None
    klass: str
    firm: bool
    created: datetime
    grown: int

    def at(self, instant: datetime) -> bool:
        return self.since <= instant and (self.until is None or instant < self.until)

    @property
    def order(self) -> tuple[Any, ...]:
        """What fills a guarantee first: what cannot be taken back, then by class, then the oldest."""
        classes = ("online", "interactive", "batch")
        rank = classes.index(self.klass) if self.klass in classes else len(classes)
        return (not self.firm, rank, self.created, self.reservation.bytes)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of the pool; `well`: nothing is known that keeps it from being booked now."""

    id: int
    name: str
    node: int
    model: str
    well: bool


@dataclass(frozen=True, slots=True)
class Book:
    """Everything of one pool.

    `changed`: the number of the last event by which somebody changed a line of the team; None: by
    which the pool lost a GPU, or somebody was granted more.
    """

    pool: int
    name: str
    now: datetime
    teams: Mapping[int, str]
    parents: Mapping[int, int | None]
    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    uses: tuple[Use, ...]
    cards: tuple[Card, ...]
    changed: Mapping[int | None, int]

    @property
    def keys(self) -> set[tuple[int, str]]:
        """Team and model of every line, also of those that stand for grants alone."""
        lines = {(one.team, one.model) for one in self.lines}
        return lines | {(one.team, one.model) for one in self.grants}

    def path(self, team: int) -> list[int]:
        """The team, then those above it."""
        found = [team]
        while (above := self.parents.get(found[-1])) is not None:
            found.append(above)
        return found

    def below(self, team: int) -> set[int]:
        """The team and all below it."""
        return {one for one in self.parents if team in self.path(one)}

    def limit(self, team: int, model: str, field: str, instant: datetime) -> int | None:
        """What a line and its grants say at an instant; None: there is neither, or no limit of memory."""
        line = next((one for one in self.lines if (one.team, one.model) == (team, model)), None)
        grants = [one for one in self.grants if (one.team, one.model) == (team, model)]
        if line is None and not grants:
            return None
        base = getattr(line, field) if line is not None else (None if field == "memory" else 0)
        if base is None:
            return None
        valid = [one for one in grants if one.since <= instant and (one.until is None or instant < one.until)]
        return int(base + sum(getattr(one, field) for one in valid))


_USES = """
SELECT booked.id, alloc.id, booked.team_id, alloc.model, alloc.gpu_id, alloc.charge_milli,
    coalesce(alloc.share_memory_mib,
        coalesce(gpu.memory_mib, 0)::bigint * (upper(alloc.span) - lower(alloc.span)) / gpu.grid),
    lower(booked.period), least(upper(booked.period), booked.recall_at), booked.klass,
    NOT booked.preemptible OR booked.klass = 'online', booked.created_at,
    coalesce((SELECT max(event.id) FROM pool_event event WHERE event.reservation_id = booked.id
        AND event.verb IN ('reservation.booked', 'reservation.held', 'reservation.pending_approval',
            'reservation.placed', 'reservation.extended', 'reservation.moved', 'reservation.adopted',
            'reservation.edited')), 0)
FROM pool_allocation alloc
JOIN pool_reservation booked ON booked.id = alloc.reservation_id
JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
WHERE booked.pool_id = %s AND alloc.holds
ORDER BY booked.created_at, booked.id, alloc.id
"""

_CARDS = """
SELECT gpu.id, node.name || '/' || gpu.index, node.id, gpu.model,
    gpu.managed AND NOT gpu.frozen AND NOT node.frozen AND NOT node.agent_frozen AND NOT pool.frozen
        AND node.unknown_since IS NULL AND (gpu.excluded OR node.managed_by = '[]'::jsonb)
        AND NOT coalesce(state.lost, true)
        AND NOT EXISTS (SELECT FROM pool_blocker ill WHERE ill.gpu_id = gpu.id)
FROM pool_gpu gpu JOIN pool_node node ON node.id = gpu.node_id JOIN pool_pool pool ON pool.id = node.pool_id
LEFT JOIN pool_gpustate state ON state.gpu_id = gpu.id
WHERE node.pool_id = %s AND gpu.retired_at IS NULL ORDER BY gpu.id
"""

_LINES = """
SELECT team_id, model, guaranteed_milli, cap_milli, lend_milli, unit, unit_size, memory_mib
FROM pool_quotaline WHERE pool_id = %s ORDER BY id
"""

_GRANTS = """
SELECT team_id, model, guaranteed_milli, cap_milli, memory_mib, lower(valid), upper(valid)
FROM pool_quotagrant WHERE pool_id = %s ORDER BY id
"""

_CHANGED = """
SELECT team_id, max(id) FROM pool_event WHERE pool_id = %s AND verb = 'quota.set' GROUP BY team_id
"""

_CAPACITY = """
SELECT max(event.id) FROM pool_event event LEFT JOIN pool_node node ON node.id = event.node_id
WHERE event.verb IN ('gpu.retired', 'node.retired', 'gpu.moved_here', 'quota.approved')
    AND (event.pool_id = %s OR node.pool_id = %s)
"""


def book(pool_id: int, name: str, now: datetime) -> Book:
    """Read it all; to be of one moment the caller's transaction has to be on one snapshot."""
    changed: dict[int | None, int] = dict(rows(_CHANGED, pool_id))
    changed[None] = rows(_CAPACITY, pool_id, pool_id)[0][0] or 0
    teams = rows("SELECT id, name, parent_id FROM pool_team ORDER BY id")
    return Book(
        pool=pool_id,
        name=name,
        now=now,
        teams={pk: called for pk, called, _ in teams},
        parents={pk: parent for pk, _, parent in teams},
        lines=tuple(Line(*row) for row in rows(_LINES, pool_id)),
        grants=tuple(Grant(*row) for row in rows(_GRANTS, pool_id)),
        uses=tuple(Use(*row) for row in rows(_USES, pool_id)),
        cards=tuple(Card(*row) for row in rows(_CARDS, pool_id)),
        changed=changed,
    )


def rows(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """All rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())
