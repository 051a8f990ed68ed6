"""Those who wait in a pool, as core.waitline decides about them, and what that means for who would borrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, F, QuerySet

from pool.core import standing, waitline
from pool.core.asks import Ask
from pool.core.fleet import Fleet
from pool.core.period import LONGEST as LONGEST_BOOKING
from pool.core.period import Period
from pool.core.serving import serving
from pool.core.shapes import stored_ask
from pool.core.standing import Standing
from pool.core.states import State
from pool.core.waitline import Waiting
from pool.models import Event, Reservation, Team, User

#: Who names no window waits for so long.
LONGEST = timedelta(days=7)
#: How long an offer is held, and the least for which one is made.
OFFERED, LEAST_OFFER = timedelta(minutes=15), timedelta(minutes=1)
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Wait:
    """What somebody who waits, or is offered something, asked for beside the booking itself.

    `partial_ok`: fewer pieces will do. `asks_first`: what comes is held until it is accepted.
    """

    since: datetime
    earliest: datetime
    latest: datetime
    partial_ok: bool
    asks_first: bool


def wait_of(row: Reservation) -> Wait | None:
    """None of one that is not on the wait list and has no offer from it."""
    if row.state != State.WAITING and not (row.from_wait and row.state == State.HELD):
        return None
    window = window_of(row)
    assert window.end is not None
    since = row.waiting_since or row.created_at
    return Wait(since, window.start, window.end, row.partial_ok, row.asks_first)


def line(pool_id: int) -> QuerySet[Reservation]:
    """Those who wait in this pool: what has a place before all others, then the oldest."""
    rows = Reservation.objects.filter(pool=pool_id, state=State.WAITING)
    rows = rows.select_related("team", "owner", "booked_by")
    return rows.order_by(F("waiting_order").asc(nulls_last=True), "waiting_since", "pk")


def length_of(row: Reservation) -> timedelta:
    """For how long one that waits wants it; a restart without end, for as long as a booking may be."""
    if row.period.upper is None:
        return LONGEST_BOOKING
    length: timedelta = row.period.upper - row.period.lower
    return length


def window_of(row: Reservation) -> Period:
    """From its earliest start to its latest end."""
    if row.window is not None:
        return Period(row.window.lower, row.window.upper)
    return Period(row.created_at, row.created_at + LONGEST + length_of(row))


def last_start(row: Reservation) -> datetime:
    """The last instant at which one that waits could still be given, or offered, all of its time."""
    last = window_of(row).end
    assert last is not None
    return last - length_of(row) - (LEAST_OFFER if row.asks_first else timedelta())


def hold_until(row: Reservation, now: datetime) -> datetime | None:
    """Until when an offer would be held that is made now; None: it is given at once."""
    if not row.asks_first:
        return None
    last = window_of(row).end
    assert last is not None
    return min(now + OFFERED, last - length_of(row))


def taken(row: Reservation, now: datetime) -> Period:
    """What it would take if its turn came now: all of its time, after the time to accept an offer."""
    begin, until = max(now, window_of(row).start), hold_until(row, now)
    return Period(begin, (begin if until is None else max(begin, until)) + length_of(row))


def read(
    rows: Sequence[Reservation],
    fleet: Fleet,
    where: Standing,
    now: datetime,
    account: Callable[[User, Team], str] | None = None,
) -> list[Waiting]:
    """These as the core knows them. `where`: the standing now; what may no longer be met is left out.

    `account`: whose MPS server the shares of an owner need; None: it is not placed by this reading.
    """
    passes = _passes(rows)
    known = _Serving(fleet, now)
    return [
        replace(
            _waiting(row, known, passes.get(row.pk, 0), now),
            account=account(row.owner, row.team) if account else None,
        )
        for row in rows
        if now <= last_start(row)
    ]


def with_guarantees(ordered: Iterable[Waiting], where: Standing, now: datetime) -> list[Waiting]:
    """In this order each takes what its team's own guarantee leaves unused, and is `guaranteed` if it can.

    Whose time has not come takes nothing.
    """
    unused = _unused(where, now)
    return [
        replace(one, guaranteed=one.window.start <= now and _takes(one, unused.get(one.team, {})))
        for one in ordered
    ]


def _takes(one: Waiting, unused: dict[str | None, int]) -> bool:
    """Whether all of it lies in what is left; then that is less. The line of its model comes first."""
    for model in sorted(one.models):
        own = min(one.milli, unused.get(model, 0))
        if one.milli - own <= unused.get(None, 0):
            unused[model] = unused.get(model, 0) - own
            unused[None] = unused.get(None, 0) - (one.milli - own)
            return True
    return False


def guaranteed_waiting(
    pool_id: int, fleet: Fleet, where: Standing, now: datetime, *, without: UUID | None = None
) -> frozenset[str]:
    """The models in which nothing is borrowed: a holder of a guarantee waits there, or somebody strict.

    `without`: one that is being tried itself.
    """
    rows = [row for row in line(pool_id) if row.pk != without]
    if not rows:
        return frozenset()
    waiting = with_guarantees(read(rows, fleet, where, now), where, now)
    return waitline.no_borrowing(waiting, now) | waitline.strict_models(waiting, now)


def _waiting(row: Reservation, known: _Serving, passes: int, now: datetime) -> Waiting:
    ask = stored_ask(row.ask)
    charges = known.of(ask)
    milli = ask.count * min(charges.values(), default=0)
    time = taken(row, now)
    assert time.duration is not None
    return Waiting(
        id=row.pk,
        team=row.team_id,
        ask=ask,
        milli=milli,
        models=frozenset(charges),
        priority=row.priority,
        since=row.waiting_since or row.created_at,
        window=window_of(row),
        length=time.duration,
        order=row.waiting_order,
        passes=passes,
        partial_ok=row.partial_ok,
        klass=row.klass,
        firm=not row.preemptible,
        owner=row.owner_id,
    )


class _Serving:
    """What could serve an ask; the same asks are looked at once."""

    def __init__(self, fleet: Fleet, now: datetime) -> None:
        self.fleet, self.now = fleet, now
        self.window = fleet.window(Period(now, now + _INSTANT), now)
        self._known: dict[Ask, dict[str, int]] = {}

    def of(self, ask: Ask) -> dict[str, int]:
        if ask not in self._known:
            self._known[ask] = serving(self.fleet, ask, self.now, window=self.window)
        return self._known[ask]


def _passes(rows: Sequence[Reservation]) -> dict[UUID, int]:
    told = Event.objects.filter(reservation_id__in=[row.pk for row in rows], verb="reservation.passed")
    return dict(told.values_list("reservation_id").annotate(Count("pk")))


def _unused(where: Standing, now: datetime) -> dict[int, dict[str | None, int]]:
    """What each team's own guarantee leaves unused now, by model (None: any)."""
    found: dict[int, dict[str | None, int]] = {}
    for one in standing.unused(where, Period(now, now + _INSTANT)):
        mine = found.setdefault(one.line.team, {})
        mine[one.line.model] = mine.get(one.line.model, 0) + one.milli
    return found
