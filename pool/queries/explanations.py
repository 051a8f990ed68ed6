"""The rows behind a decision: which reservations fill a line or a model, stand before one, or took its place.

Rows that the viewer may see are named, all others counted: how many, and how much of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from pool.core.fleet import Fleet, micros, whole_id
from pool.core.fleet_rows import Bools, Ints
from pool.core.period import Period
from pool.core.standing import Standing
from pool.models import Event, Reservation
from pool.queries import reservations

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import User

#: So many rows are named, the largest first.
MOST = 20
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A reservation that the viewer may see; `milli` is what it counts here."""

    id: UUID
    title: str
    team: str
    owner: str
    state: str
    ask: Mapping[str, Any]
    start: datetime
    end: datetime | None
    milli: int


@dataclass(frozen=True, slots=True)
class Rows:
    """`shown` are named; `more` could be, too; `others` are not for the viewer's eyes."""

    shown: tuple[Row, ...] = ()
    more: int = 0
    others: int = 0
    others_milli: int = 0


def rows(user: User | AnonymousUser, amounts: Mapping[UUID, int]) -> Rows:
    """These reservations with what each counts, as far as `user` may know of them."""
    visible = reservations.visible_to(user).filter(pk__in=list(amounts))
    seen = sorted(visible, key=lambda row: (-amounts[row.pk], row.period.lower, row.pk))
    known = {row.pk for row in seen}
    return Rows(
        shown=tuple(_row(row, amounts[row.pk]) for row in seen[:MOST]),
        more=max(0, len(seen) - MOST),
        others=len(amounts) - len(known),
        others_milli=sum(milli for pk, milli in amounts.items() if pk not in known),
    )


def _row(row: Reservation, milli: int) -> Row:
    return Row(
        id=row.pk,
        title=row.title,
        team=row.team.name,
        owner=row.owner.username,
        state=row.state,
        ask=row.ask,
        start=row.period.lower,
        end=row.period.upper,
        milli=milli,
    )


def counted(where: Standing, team: int, model: str | None, at: datetime) -> dict[UUID, int]:
    """What counts at an instant on the line of `team`: its own, and those of all teams below it."""
    uses, instant = where.uses, micros(at)
    below = np.array([one for one in {*where.parents, team} if team in _path(where, one)], dtype=np.int64)
    there = (uses.since <= instant) & (uses.until > instant) & np.isin(uses.team, below)
    if model is not None:
        there &= uses.model == (where.models.index(model) if model in where.models else -1)
    return _sums(uses.reservation, uses.milli, there)


def on(fleet: Fleet, models: Iterable[str], period: Period, but: UUID | None = None) -> dict[UUID, int]:
    """What holds GPUs of these models in a period, with what it counts."""
    numbers = [number for number, model in enumerate(fleet.models) if model in set(models)]
    start, end = micros(period.start), micros(period.end)
    which = np.flatnonzero(
        (fleet.on.start < end) & (fleet.on.end > start) & np.isin(fleet.model[fleet.on.at], numbers)
    )
    told = fleet.on.records(which)
    found = _sums(told["reservation"], told["charge"].astype(np.int64), ~told["blocker"])
    return {pk: milli for pk, milli in found.items() if pk != but}


def recall(row: Reservation) -> Mapping[str, Any] | None:
    """What was decided when it was taken back, or was told that it will be; None: it never was."""
    event = Event.objects.filter(reservation_id=row.pk, verb="reservation.recalled").order_by("-pk").first()
    return None if event is None else reservations.facts_of(event, row)


def decided(row: Reservation) -> Event | None:
    """The event by which it got the state and the reason that it has."""
    told = Event.objects.filter(reservation_id=row.pk, after__state=row.state, after__reason=row.state_reason)
    return told.order_by("pk").last()


def _path(where: Standing, team: int) -> list[int]:
    """The team and all above it."""
    found: list[int] = []
    at: int | None = team
    while at is not None and at not in found:
        found.append(at)
        at = where.parents.get(at)
    return found


def _sums(reservation: Ints, milli: Ints, there: Bools) -> dict[UUID, int]:
    found: dict[UUID, int] = {}
    which = np.flatnonzero(there)
    for two, amount in zip(reservation[which], milli[which].tolist(), strict=True):
        pk = whole_id(np.asarray(two, dtype=np.int64))
        found[pk] = found.get(pk, 0) + amount
    return found
