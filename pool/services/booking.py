"""Booking: think without a lock, then confirm in one short transaction under the pool's.

Doors reach `book` as services.reservations.book. A candidate that somebody else
took meanwhile costs a new try, never a refusal: the third try decides under
the lock. What is chosen: plans.py.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError
from psycopg.types.range import Int4Range, TimestamptzRange

from pool.core import mig, placement
from pool.core.errors import Code, Refusal, invalid
from pool.core.period import LONGEST, Period, duration_text
from pool.core.roles import Action
from pool.core.shapes import Ask, Class, ask_json
from pool.core.states import Reason, State
from pool.models import Allocation, Pool, Reservation, Team, User
from pool.models.reservations import new_id
from pool.queries import access, snapshot, teams
from pool.queries.snapshot import Snapshot
from pool.services import commands, events, idempotency, locks, plans
from pool.services.idempotency import Claim
from pool.services.plans import NoRoom, Plan, Wanted

log = logging.getLogger(__name__)

#: A start that lies no further back than this means now: clocks differ, forms take a moment.
GRACE = timedelta(seconds=60)
SHORTEST = timedelta(minutes=1)
#: How far ahead a booking may start.
AHEAD = timedelta(days=366)
#: How far behind its start a refusal looks for the first time that fits.
HORIZON = timedelta(days=14)
#: Tries that think without the lock, before one that decides under it.
TRIES = 2
TITLE_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Wish:
    """A booking that its actor may make, with its times settled."""

    actor: User
    team: Team
    pool: Pool
    owner: User
    title: str
    visibility: str
    wanted: Wanted
    now: datetime

    @property
    def starts_now(self) -> bool:
        return self.wanted.period.start <= self.now


class _Overtaken(Exception):
    """Somebody else was quicker; the same may be tried again."""


def book(
    *,
    actor: User,
    team: str,
    pool: str,
    title: str = "",
    ask: Ask,
    start: datetime | None = None,
    end: datetime | None = None,
    duration: timedelta | None = None,
    klass: Class = Class.INTERACTIVE,
    owner: str | None = None,
    visibility: str = Reservation.Visibility.TEAM,
    now: datetime,
    claim: Claim | None = None,
) -> Reservation:
    """Grant `ask` for the whole time, all or nothing; `start` None means now.

    Exactly one of `end` and `duration`, 1 minute to 366 days. `owner` (a
    username of the team) may be somebody else only for a lead. A `claim` that
    was carried out before answers its first result (`replayed`).

    Refuses with NOT_FOUND, FORBIDDEN, INVALID, NO_CAPACITY (asked, free,
    offered, counts, first_time), QUOTA_EXCEEDED (cap, used, asked), KEY_REUSED,
    IN_PROGRESS, BUSY; then nothing is written.
    """
    done = _replayed(claim, now)
    if done is not None:
        return done
    try:
        booked_team = access.team_to_book(actor, team)
        found = access.pool(actor, pool)
        period = _period(start, end, duration, now)
        wish = Wish(
            actor=actor,
            team=booked_team,
            pool=found,
            owner=_owner(actor, booked_team, owner),
            title=_title(title),
            visibility=_visibility(visibility),
            wanted=Wanted(_stored(ask), period, blocked(period, found), Class(klass)),
            now=now,
        )
        return _try(wish, claim)
    except Refusal:
        # The same request may have been carried out beside this one, and taken what is now missing.
        done = _replayed(claim, now)
        if done is None:
            raise
        return done


def blocked(period: Period, pool: Pool) -> Period:
    """The time for which a GPU is blocked: the period, and the pool's time for scrubbing."""
    if period.end is None or not pool.scrub_seconds:
        return period
    return Period(period.start, period.end + timedelta(seconds=pool.scrub_seconds))


def check_duration(period: Period, pointer: str) -> None:
    """Refuses with INVALID below 1 minute and above 366 days."""
    if period.duration is not None and period.duration < SHORTEST:
        raise invalid(pointer, "too_small", min=duration_text(SHORTEST))
    if period.duration is None or period.duration > LONGEST:
        raise invalid(pointer, "too_large", max=duration_text(LONGEST))


# --- What was asked -----------------------------------------------------------


def _replayed(claim: Claim | None, now: datetime) -> Reservation | None:
    made = idempotency.find(claim, now=now) if claim else None
    return None if made is None else _first_result(made)


def _first_result(made: str) -> Reservation:
    row = Reservation.objects.get(pk=made)
    row.replayed = True
    return row


def _period(
    start: datetime | None, end: datetime | None, duration: timedelta | None, now: datetime
) -> Period:
    if (end is None) == (duration is None):
        raise invalid("/end" if end else "/duration", "one_of", choices=["end", "duration"])
    begin = now if start is None else Period(start, None).start
    if begin < now - GRACE:
        raise invalid(
            "/start",
            "start_in_past",
            start=begin.isoformat(),
            now=now.isoformat(),
            grace_s=int(GRACE.total_seconds()),
        )
    if begin > now + AHEAD:
        raise invalid("/start", "too_far", max=(now + AHEAD).isoformat())
    begin = max(begin, now)
    period = Period(begin, begin + duration if duration is not None else end)
    check_duration(period, "/duration" if end is None else "/end")
    return period


def _owner(actor: User, team: Team, username: str | None) -> User:
    if username is None or username == actor.username:
        return actor
    access.require(actor, Action.BOOK_FOR_OTHERS, team)
    owner = None if "\0" in username else teams.members(team).filter(username=username).first()
    if owner is None:
        raise invalid("/owner", "not_a_member")
    return owner


def _title(title: str) -> str:
    if len(title) > TITLE_LIMIT:
        raise invalid("/title", "too_long", max=TITLE_LIMIT)
    if "\0" in title:
        raise invalid("/title", "bad_characters")
    return title


def _visibility(visibility: str) -> str:
    if visibility not in Reservation.Visibility.values:
        raise invalid("/visibility", "not_a_choice", choices=Reservation.Visibility.values)
    return visibility


def _stored(ask: Ask) -> Ask:
    # PostgreSQL's jsonb takes no NUL.
    if "\\u0000" in json.dumps(ask_json(ask)):
        raise invalid("/ask", "bad_characters")
    return ask


# --- Thinking, and confirming -------------------------------------------------


def _try(wish: Wish, claim: Claim | None) -> Reservation:
    for _ in range(TRIES):
        snap = _snapshot(wish)
        try:
            found = plans.choose(snap, wish.wanted)
        except (NoRoom, Refusal) as refusal:
            # A refusal stands only if the pool did not change while it was read.
            if snapshot.change_of(wish.pool.pk) == snap.change:
                raise _said(refusal, wish) from None
            continue
        try:
            return _confirm(wish=wish, claim=claim, seen=snap.change, found=found)
        except _Overtaken:
            continue
        except DatabaseError as error:
            if not locks.lost_a_race(error):
                raise
    try:
        return _confirm(wish=wish, claim=claim, seen=None, found=[])
    except NoRoom as refusal:
        raise _said(refusal, wish) from None
    except DatabaseError as error:
        if not locks.lost_a_race(error):
            raise
        log.exception("booking.lost_under_the_lock")
        raise Refusal(Code.BUSY) from error


@locks.use_case
def _confirm(*, wish: Wish, claim: Claim | None, seen: int | None, found: list[Plan]) -> Reservation:
    """Take the best plan that still holds. `seen`: the change number that `found` was decided at."""
    made = idempotency.claim(claim, now=wish.now) if claim else None
    if made is not None:
        return _first_result(made)
    pool = locks.pool(wish.pool.pk)
    if pool.change != seen:
        found = _still_holding(wish, found)
    reservation = _write(wish, pool, found[0])
    if claim:
        idempotency.keep(claim, resource=reservation.pk, now=wish.now)
    return reservation


def _still_holding(wish: Wish, found: list[Plan]) -> list[Plan]:
    """Choose anew under the lock, among the GPUs of the candidates; without candidates, among all."""
    gpu_ids = {pick.gpu_id for plan in found for pick in plan.picks} or None
    snap = _snapshot(wish, gpu_ids)
    try:
        return plans.choose(snap, wish.wanted)
    except (NoRoom, Refusal) as refusal:
        if gpu_ids is None:
            raise
        raise _Overtaken from refusal


def _snapshot(wish: Wish, gpu_ids: set[int] | None = None) -> Snapshot:
    return snapshot.take(
        wish.pool.pk, wish.wanted.blocked, team_id=wish.team.pk, now=wish.now, gpu_ids=gpu_ids
    )


def _said(refusal: NoRoom | Refusal, wish: Wish) -> Refusal:
    """The refusal with its numbers; the first free time is looked for outside of any transaction."""
    if isinstance(refusal, Refusal):
        return refusal
    wanted = wish.wanted
    assert wanted.blocked.end is not None
    wide = Period(wanted.blocked.start, wanted.blocked.end + HORIZON)
    later = snapshot.take(wish.pool.pk, wide, team_id=wish.team.pk, now=wish.now)
    first = placement.first_time(later.gpus, wanted.ask, wanted.blocked, wide.start + HORIZON)
    return plans.no_capacity(refusal.snap, wanted, first)


# --- Writing ------------------------------------------------------------------


def _write(wish: Wish, pool: Pool, plan: Plan) -> Reservation:
    state, reason, goes = _first_state(wish, pool, plan)
    reservation = Reservation(
        team=wish.team,
        pool=pool,
        owner=wish.owner,
        booked_by=wish.actor,
        title=wish.title,
        ask=ask_json(wish.wanted.ask),
        klass=wish.wanted.klass,
        state=state,
        state_reason=reason,
        period=_range(wish.wanted.period),
        created_at=wish.now,
        charge_milli=sum(pick.charge_milli for pick in plan.picks),
        visibility=wish.visibility,
    )
    reservation.save(force_insert=True)
    rows = allocate(reservation, plan, wish.wanted, wanted_at=wish.now if goes else None)
    events.record(
        "reservation.booked",
        actor=wish.actor,
        now=wish.now,
        team_id=wish.team.pk,
        pool_id=pool.pk,
        reservation_id=reservation.pk,
        after=facts(reservation, rows),
    )
    locks.changed(pool)
    if goes:
        commands.issue(locks.gpus(row.gpu_id for row in rows), wish.now)
    return reservation


def _first_state(wish: Wish, pool: Pool, plan: Plan) -> tuple[State, Reason, bool]:
    """State, reason, and whether its slices are wanted at once."""
    if not wish.starts_now:
        return State.SCHEDULED, Reason.BOOKED, False
    if pool.frozen:
        return State.STARTING, Reason.FROZEN, False
    if not plan.clean:
        return State.STARTING, Reason.WAITING_FOR_CLEANUP, False
    return State.STARTING, Reason.WAITING_FOR_NODE, True


def allocate(
    reservation: Reservation, plan: Plan, wanted: Wanted, *, wanted_at: datetime | None
) -> list[Allocation]:
    """Write the rectangles of a plan; they hold from here on."""
    rows = []
    for pick in plan.picks:
        key = new_id()
        rows.append(
            Allocation(
                id=key,
                reservation=reservation,
                gpu_id=pick.gpu_id,
                kind=Allocation.Kind.MIG if pick.profile else Allocation.Kind.GPU,
                model=pick.model,
                profile=pick.profile.name if pick.profile else "",
                profile_id=pick.profile.profile_id if pick.profile else None,
                span=Int4Range(pick.start, pick.start + pick.size),
                period=_range(wanted.period),
                blocked=_range(wanted.blocked),
                tenancy=key,
                holds=True,
                takes_media=bool(pick.profile and mig.takes_media(pick.profile)),
                media_group=mig.media_group(pick.profile) if pick.profile else None,
                charge_milli=pick.charge_milli,
                wanted_at=wanted_at,
            )
        )
    Allocation.objects.bulk_create(rows)
    return rows


def _range(period: Period) -> TimestamptzRange:
    return TimestamptzRange(period.start, period.end)


def facts(reservation: Reservation, rows: list[Allocation]) -> dict[str, Any]:
    """What the audit keeps of a reservation and its rectangles."""
    start, end = reservation.period.lower, reservation.period.upper
    return {
        "state": str(reservation.state),
        "reason": str(reservation.state_reason),
        "version": reservation.version,
        "start": start.isoformat(),
        "end": end.isoformat() if end else None,
        "owner_id": reservation.owner_id,
        "class": str(reservation.klass),
        "ask": reservation.ask,
        "charge_milli": reservation.charge_milli,
        "allocations": [
            {
                "id": str(row.pk),
                "gpu_id": row.gpu_id,
                "profile": row.profile or None,
                "span": [row.span.lower, row.span.upper],
            }
            for row in rows
        ],
    }
