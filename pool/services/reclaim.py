"""Taking back what was lent, for a booking that is within its team's guarantee and finds no room.

Only when nothing else makes room, also from who is within its own guarantee but in a place that is
another team's (core.astray).

Whom it takes from is thought out without a lock (core.reclaim); the steps here write it, under the
pool's. Whoever is taken from stays until the recall; what is due then is in recalls.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import DateTimeField, Func, Q, Value
from django.db.models.functions import Greatest, Lower

from pool.core import astray, promises, reclaim
from pool.core.borrowers import borrowers
from pool.core.errors import Refusal
from pool.core.fleet import Fleet
from pool.core.keeping import takes_kept
from pool.core.period import Period
from pool.core.placement import SWITCH, Candidate
from pool.core.quota_uses import Uses
from pool.core.reclaim import LONGEST_RECALL, Borrower, Notice
from pool.core.serving import serving
from pool.core.standing import Booking, Standing, check
from pool.core.states import HOLDING, Reason, State
from pool.models import Allocation, Pool, Reservation
from pool.queries import snapshot
from pool.queries.snapshot import Snapshot
from pool.services import events, notices, plans, reservations, room, waiting
from pool.services.plans import NoRoom, Plan, Wanted

#: What has not been granted for good takes nothing from anybody, and nothing is taken back from it here.
_NOT_YET = (State.HELD, State.PENDING_APPROVAL, State.ENDING)


@dataclass(frozen=True, slots=True)
class Recalled:
    """`victims` leave at `at`; then `wanted`, moved to when there is room, has the first of `plans`.

    Decided at the pool's change number `seen`.
    """

    at: datetime
    wanted: Wanted
    victims: tuple[Borrower, ...]
    plans: tuple[Plan, ...]
    seen: int

    @property
    def links(self) -> list[UUID]:
        return [link for one in self.victims for link in one.links]


def think(pool: Pool, wanted: Wanted, now: datetime, *, without: UUID | None = None) -> Recalled | None:
    """Who has to give way, and from when; None: nobody's leaving would help, or it is not its right.

    Up to 200 ms in a large pool. `without`: a reservation of its own that waits.
    """
    if pool.frozen or wanted.team_id is None or wanted.blocked.end is None:
        return None
    far = Period(wanted.blocked.start, wanted.blocked.end + LONGEST_RECALL + SWITCH)
    snap = snapshot.take(pool.pk, far, team_id=wanted.team_id, now=now, without=without)
    if not _has_guarantee(snap, wanted.team_id):
        return None
    rule = Notice(timedelta(seconds=pool.notice_seconds), timedelta(seconds=pool.min_run_seconds))
    look = _Look(snap, wanted, pool)
    found = reclaim.reclaim(
        snap.whole,
        wanted.ask,
        wanted.blocked,
        now,
        rule=rule,
        borrowers=look.borrowers,
        place=look.place,
        allowed=look.allowed,
        inside=look.inside,
        astray=look.astray,
        account=wanted.account,
    )
    if found is None or not found.victims:
        return None
    chosen = tuple(look.plans[candidate.picks] for candidate in found.candidates)
    moved = room.at(wanted, found.period, pool)
    return Recalled(found.at, moved, found.victims, chosen, snap.change)


def _has_guarantee(snap: Snapshot, team: int) -> bool:
    lines, grants = snap.standing.lines, snap.standing.grants
    return any(one.team == team and one.guaranteed_milli for one in lines) or any(
        one.team == team and one.guaranteed_milli for one in grants
    )


class _Look:
    """What core.reclaim asks while it looks, on one reading."""

    def __init__(self, snap: Snapshot, wanted: Wanted, pool: Pool) -> None:
        self.snap = snap
        self.wanted = wanted
        self.pool = pool
        self.plans: dict[tuple[Any, ...], Plan] = {}
        #: Who is within its guarantee, and may have to go in the last resort.
        self.last: set[UUID] = set()
        each = serving(snap.whole, wanted.ask, snap.now, account=wanted.account, window=snap.window)
        self.charges = {model: wanted.ask.count * milli for model, milli in each.items()}
        spared = Reservation.objects.filter(pool=pool, state__in=HOLDING)
        spared = spared.filter(Q(state__in=_NOT_YET) | Q(recall_at__isnull=False))
        self.spared = set(spared.values_list("pk", flat=True))

    def borrowers(self, at: datetime) -> list[Borrower]:
        standing, team, when = self._asked(at)
        return borrowers(self.snap.whole, standing, team, when, self.snap.now, self.spared)

    def inside(self, at: datetime) -> list[Borrower]:
        standing, team, when = self._asked(at)
        found = astray.perhaps(self.snap.whole, standing, team, when, self.snap.now, self.spared)
        self.last = {link for one in found for link in one.links}
        return found

    def _asked(self, at: datetime) -> tuple[Standing, int, Period]:
        wanted = self.wanted
        assert wanted.team_id is not None
        length = wanted.blocked.duration
        assert length is not None
        return self.snap.standing, wanted.team_id, Period(at, at + length)

    def astray(self, who: Sequence[Borrower], gone: frozenset[UUID], period: Period) -> Sequence[bool]:
        fleet = reclaim.without(self.snap.whole, gone, period.start)
        left = astray.Left(fleet, self._standing(fleet, gone, period))
        return astray.astray(self.snap.whole, left, who, period, self.snap.now)

    def _standing(self, fleet: Fleet, gone: frozenset[UUID], period: Period) -> Standing:
        """Of the fleet from which these have gone."""
        return replace(self.snap.standing, uses=Uses.of(fleet, period, self.snap.without).but(gone))

    def place(self, fleet: Fleet, gone: frozenset[UUID], period: Period) -> Sequence[Candidate]:
        """Where it would be within its guarantee, when these have gone."""
        asked = room.at(replace(self.wanted, free_until=None), period, self.pool)
        left = replace(
            self.snap,
            fleet=fleet,
            whole=fleet,
            period=period,
            window=fleet.window(period, self.snap.now, without=self.snap.without),
            standing=self._standing(fleet, gone, period),
            stopped=frozenset(),
        )
        try:
            found = [plan for plan in plans.choose(left, asked) if not plan.borrowed]
        except (NoRoom, Refusal):
            return ()
        if self.last & gone:
            found = self._leaving_victims_theirs(left, found)
        self.plans |= {plan.picks: plan for plan in found}
        return [Candidate(plan.picks, plan.why) for plan in found]

    def _leaving_victims_theirs(self, left: Snapshot, found: Sequence[Plan]) -> list[Plan]:
        """Who was within its guarantee must get its amount again: so nobody comes first there."""
        team = self.wanted.team_id
        assert team is not None
        others = promises.to_others(left.whole, left.standing, team, left.period, left.now, first_come=False)
        return [plan for plan in found if others is None or others.allow(plan.picks)]

    def allowed(self, gone: frozenset[UUID], period: Period) -> bool:
        """Whether it would be within its guarantee on some model, wherever it lay, when these have gone."""
        asked = room.at(replace(self.wanted, free_until=None), period, self.pool)
        left = replace(self.snap.standing, uses=self.snap.standing.uses.but(gone))
        return any(self._is_within(left, asked, {model: milli}) for model, milli in self.charges.items())

    def _is_within(self, standing: Standing, asked: Wanted, charges: dict[str, int]) -> bool:
        assert asked.team_id is not None
        now = self.snap.now
        booking = Booking(asked.team_id, charges, asked.klass, asked.period, now, asked.firm)
        try:
            if check(standing, booking):
                return False
            return not (asked.spares and takes_kept(standing, asked.team_id, charges, asked.period))
        except Refusal:
            return False


# --- Under the lock ------------------------------------------------------------


def take_back(found: Recalled, now: datetime) -> list[Reservation]:
    """Make room: whoever is there stays until `found.at`, who would begin later goes back to wait at once.

    The pool is locked, and as it was when this was found. For whom it is comes with `name`.
    """
    with_people = Reservation.objects.select_related("team", "owner", "booked_by", "pool")
    rows = list(with_people.filter(pk__in=found.links))
    later = [row for row in rows if _begins(row) >= found.at]
    staying = [row for row in rows if _begins(row) < found.at]
    for row in staying:
        row.recall_at, row.notice_until, row.notice_why = found.at, found.at, Reason.RECLAIMED
        row.version += 1
        row.save(update_fields=["recall_at", "notice_until", "notice_why", "version"])
    least = Lower("blocked", output_field=DateTimeField()) + Value(timedelta(microseconds=1))
    cut = Func(Lower("blocked"), Greatest(Value(found.at), least), function="tstzrange")
    Allocation.objects.filter(reservation__in=staying, holds=True).update(blocked=cut)
    reservations.preempt(later, now=now)
    for row in later:
        waiting.restart(row, row.period.lower, now=now, reason=Reason.RECLAIMED)
    return rows


def _begins(row: Reservation) -> datetime:
    """When it first blocks a GPU: with time to change a mode before its own."""
    first = Allocation.objects.filter(reservation=row, holds=True).order_by("blocked__startswith")
    at = first.values_list("blocked__startswith", flat=True).first()
    begins: datetime = row.period.lower if at is None else at
    return begins


def name(found: Recalled, rows: Sequence[Reservation], new: Reservation, now: datetime) -> None:
    """Say for whom it was taken back, in the audit and to those whom it was taken from."""
    Reservation.objects.filter(pk__in=[row.pk for row in rows], recall_at__isnull=False).update(
        recall_for=new
    )
    of = {link: one for one in found.victims for link in one.links}
    for row in rows:
        victim = of[row.pk]
        events.record(
            "reservation.recalled",
            actor=None,
            now=now,
            team_id=row.team_id,
            pool_id=row.pool_id,
            reservation_id=row.pk,
            after={
                "version": row.version,
                "recall_at": found.at.isoformat(),
                "recall_for": str(new.pk),
                "within": "guaranteed",
                "asked_milli": new.charge_milli,
                "borrowed_milli": victim.borrowed_milli,
                "inside_milli": victim.charge_milli if victim.is_inside else None,
                "victims": len(found.victims),
                "order": {"over_share": victim.over_share, "priority": victim.priority},
            },
        )
        _tell(row, victim, new, found.at, now)


def _tell(row: Reservation, victim: Borrower, new: Reservation, at: datetime, now: datetime) -> None:
    """The team of `new` is named only where everybody may see what it booked."""
    shown = new.visibility == Reservation.Visibility.EVERYONE or new.team_id == row.team_id
    data = {"recall_at": at.isoformat(), "why": str(Reason.RECLAIMED), "within": "guaranteed"}
    if shown:
        data["for_team"] = new.team.name
    if victim.is_inside:
        data["inside_gpu"] = f"{victim.charge_milli / 1000:g}"
    key = f"evicted:{row.pk}:{at.isoformat()}"
    notices.tell(notices.concerned(row), "evicted", key=key, now=now, reservation=row, data=data)


def make_room(pool: Pool, found: Recalled, row: Reservation, now: datetime) -> bool:
    """For one that waits: take back what was found for it; whether it still holds. The caller places it."""
    if pool.change != found.seen:
        return False
    name(found, take_back(found, now), row, now)
    return True
