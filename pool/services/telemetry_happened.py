"""The part of a report that tells what happened once: each becomes an event, and Xids go to health.

All functions are steps of telemetry.record, after telemetry_inventory.sync.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from pool.core import observed, reported, wire
from pool.core.health import clean_int
from pool.models import Allocation, Event
from pool.services import events, health
from pool.services.telemetry_desk import Desk

#: A report brings no more; an agent keeps fewer.
MOST = 200
#: What one tells beside its text; more is left out, the audit is kept for long.
MOST_BYTES = 4096
#: Numbers are drawn from a clock in milliseconds, so a far higher one would shut out all that follow.
MOST_N = 2**53

_KIND = re.compile(r"[a-z][a-z_]{0,23}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Heard:
    """An Xid that a report told for the first time. `at` is the node's word, None if it makes no sense."""

    xid: int
    gi: int | None
    ci: int | None
    at: datetime | None


def take(desk: Desk) -> None:
    """Put down what is new, and let health look at every GPU of the report."""
    new = _new(desk)
    if new:
        desk.node.happened_n = new[-1].n
        _tell(desk, new)
    xids = _xids(desk, new)
    for one in desk.seen:
        gpu = desk.gpus.get(one.uuid)
        if gpu is not None and gpu.retired_at is None:
            health.listen(desk, gpu, one, xids.get(one.uuid, ()))


def _new(desk: Desk) -> list[wire.Happened]:
    """What was not taken yet, by number; of two with one number only the first."""
    found: dict[int, wire.Happened] = {}
    for one in desk.report.happened[:MOST]:
        if not 0 < one.n <= MOST_N or not _KIND.fullmatch(one.kind):
            desk.odd += 1
        elif one.n > desk.node.happened_n:
            found.setdefault(one.n, one)
    return [found[n] for n in sorted(found)]


def _xids(desk: Desk, new: Iterable[wire.Happened]) -> dict[str, Sequence[Heard]]:
    found: dict[str, list[Heard]] = defaultdict(list)
    for one in new:
        if one.kind != "xid" or one.gpu is None:
            continue
        number, odd = clean_int(one.data.get("xid"), 1, 2**31 - 1)
        if number is None:
            desk.odd += odd
            continue
        found[one.gpu].append(Heard(number, _id(one.data.get("gi")), _id(one.data.get("ci")), _at(one)))
    return dict(found)


def _id(value: Any) -> int | None:
    return clean_int(value, 0, 4096)[0]


def _at(one: wire.Happened) -> datetime | None:
    return None if one.at.tzinfo is None else one.at


def _tell(desk: Desk, new: Iterable[wire.Happened]) -> None:
    """An event each: of the reservation where it was about an allocation on this node, else of the node."""
    new = list(new)
    whose = _whose(desk, {one.allocation for one in new if one.allocation is not None})
    desk.drafts.extend(_event(desk, one, whose.get(one.allocation or "")) for one in new)


def _whose(desk: Desk, allocations: set[str]) -> dict[str, tuple[UUID, int]]:
    """Allocation id -> reservation and team; a node can only speak of what is or was on it."""
    ids = [UUID(one) for one in allocations if reported.is_allocation(one)]
    if not ids:
        return {}
    rows = Allocation.objects.filter(pk__in=ids, gpu__node=desk.node)
    named = rows.values_list("pk", "reservation_id", "reservation__team_id")
    return {str(pk): (reservation, team) for pk, reservation, team in named}


def _data(desk: Desk, one: wire.Happened) -> Any:
    if len(msgspec.json.encode(one.data)) > MOST_BYTES:
        desk.odd += 1
        return None
    return observed.plain(one.data)


def _event(desk: Desk, one: wire.Happened, whose: tuple[UUID, int] | None) -> Event:
    gpu = desk.gpus.get(one.gpu or "")
    at = _at(one)
    after = {
        "node": desk.node.name,
        "gpu": None if gpu is None else gpu.uuid,
        "text": observed.text(one.text, 500),
        "at": None if at is None else at.isoformat(),
        "data": _data(desk, one),
        "xid": clean_int(one.data.get("xid"), 1, 2**31 - 1)[0] if one.kind == "xid" else None,
    }
    return events.draft(
        f"{'node' if whose is None else 'reservation'}.{one.kind}",
        actor=None,
        now=desk.now,
        label=f"node:{desk.node.name}",
        pool_id=desk.node.pool_id,
        node_id=desk.node.pk,
        gpu_id=None if gpu is None else gpu.pk,
        reservation_id=None if whose is None else whose[0],
        team_id=None if whose is None else whose[1],
        after={name: value for name, value in after.items() if value not in (None, "", {})},
    )
