"""What somebody wants to book, checked before the pool is looked at: who for whom, when, and in which words.

Whether there is room for it is decided in booking.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core.errors import invalid
from pool.core.period import LONGEST, Period, duration_text
from pool.core.roles import Action
from pool.core.shapes import Ask, Class, ask_json, check_class, stored_ask
from pool.core.terms import ORDINARILY, ORDINARY, Terms, settle
from pool.models import Pool, Reservation
from pool.queries import access, teams
from pool.services.plans import Wanted

if TYPE_CHECKING:
    from pool.models import Team, User

#: A start that lies no further back than this means now: clocks differ, forms take a moment.
GRACE = timedelta(seconds=60)
SHORTEST = timedelta(minutes=1)
#: How far ahead a booking may start.
AHEAD = timedelta(days=366)
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
    restartable: bool
    wanted: Wanted
    now: datetime
    #: Set aside until then, for somebody who is still to say yes; None: granted.
    hold_until: datetime | None = None
    #: Settled: `preemptible` is decided.
    terms: Terms = ORDINARILY

    @property
    def starts_now(self) -> bool:
        return self.wanted.period.start <= self.now


@dataclass(frozen=True, slots=True)
class Asked:
    """What the parameters of `book` and `hold` say, as they came."""

    actor: User
    team: str
    pool: str
    title: str
    ask: Ask
    start: datetime | None
    end: datetime | None
    duration: timedelta | None
    klass: Class
    owner: str | None
    visibility: str
    restartable: bool | None
    now: datetime
    free_until: datetime | None = None
    hold_for: timedelta | None = None
    terms: Terms = ORDINARILY


def check(asked: Asked) -> Wish:
    """The wish, if its actor may have it. Refuses with NOT_FOUND, FORBIDDEN, INVALID, NAIVE_TIME."""
    team = access.team_to_book(asked.actor, asked.team)
    pool = access.pool(asked.actor, asked.pool)
    period = period_of(asked.start, asked.end, asked.duration, asked.now)
    owner, klass = owner_of(asked.actor, team, asked.owner), Class(asked.klass)
    ask = _stored(asked.ask)
    check_class(ask, klass)
    terms = _terms(asked, team, klass)
    return Wish(
        actor=asked.actor,
        team=team,
        pool=pool,
        owner=owner,
        title=title_of(asked.title),
        visibility=_visibility(asked.visibility),
        restartable=klass is Class.BATCH if asked.restartable is None else asked.restartable,
        wanted=Wanted(
            ask,
            period,
            blocked(period, pool),
            klass,
            account(owner, team),
            _free_until(asked.free_until, period, pool),
            owner.pk,
            team.pk,
            terms.firm,
            asked.now,
        ),
        now=asked.now,
        hold_until=None if asked.hold_for is None else _hold_until(asked.hold_for, period, asked.now),
        terms=terms,
    )


def _terms(asked: Asked, team: Team, klass: Class) -> Terms:
    """Settled; a priority above the ordinary is given only by who may book for others."""
    terms = settle(asked.terms, klass)
    if terms.priority > ORDINARY:
        access.require(asked.actor, Action.BOOK_FOR_OTHERS, team)
    return terms


def _free_until(wished: datetime | None, period: Period, pool: Pool) -> datetime | None:
    """Until when the places are wished free, with the time for scrubbing; no further than a booking lasts."""
    if wished is None or period.end is None:
        return None
    last = blocked(Period(period.start, min(wished, period.start + LONGEST)), pool).end
    return last if wished > period.end else None


def _hold_until(lasts: timedelta, period: Period, now: datetime) -> datetime:
    return now + lasts if period.end is None else min(now + lasts, period.end)


def owner_of(actor: User, team: Team, username: str | None) -> User:
    """For whom `actor` books: None is for itself. Refuses with FORBIDDEN and INVALID (not_a_member)."""
    if username is None or username == actor.username:
        return actor
    access.require(actor, Action.BOOK_FOR_OTHERS, team)
    owner = None if "\0" in username else teams.members(team).filter(username=username).first()
    if owner is None:
        raise invalid("/owner", "not_a_member")
    return owner


def again(row: Reservation, pool: Pool, period: Period) -> Wanted:
    """What a reservation asked for, to be placed for `period`. Takes a row with its owner and team.

    What is to be taken back is placed until then.
    """
    if row.recall_at is not None and period.start < row.recall_at:
        period = Period(period.start, min(period.end or row.recall_at, row.recall_at))
    whose = account(row.owner, row.team)
    return Wanted(
        stored_ask(row.ask),
        period,
        blocked(period, pool),
        Class(row.klass),
        whose,
        owner_id=row.owner_id,
        team_id=row.team_id,
        firm=not row.preemptible,
        created=row.created_at,
    )


def account(owner: User, team: Team) -> str:
    """Whose MPS server this owner's shares need: the account on the nodes, else the team's.

    Without either it is a name that no account can have, so that nobody else is taken for this owner.
    """
    return owner.posix_name or team.posix_name or f"user:{owner.pk}"


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


def period_of(
    start: datetime | None, end: datetime | None, duration: timedelta | None, now: datetime
) -> Period:
    """From `start`, or now, until exactly one of the two. Refuses with INVALID, NAIVE_TIME."""
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


def title_of(title: str) -> str:
    """The title, if it can be stored; else INVALID."""
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
