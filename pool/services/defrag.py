"""Defragmentation: a few bookings that have not begun go elsewhere, as was shown, when an operator says so.

A plan is found without a lock and named by what it does. Applying it finds it
again: if it is another by now, nothing is done. What moves: core/defrag.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from pool.core import defrag, placement
from pool.core.defrag import Plan, Step
from pool.core.errors import Code, Refusal
from pool.core.fleet import Card, Fleet
from pool.core.moves import Movable, with_picks, without
from pool.core.period import Period
from pool.core.roles import Action
from pool.core.states import Reason
from pool.models import Allocation, Pool, Reservation
from pool.queries import access, fleets, mixes, moves
from pool.services import events, grants, idempotency, locks, plans, reservations, wishes
from pool.services.idempotency import Claim

if TYPE_CHECKING:
    from pool.models import User

#: Bookings that begin within this time are looked at.
AHEAD = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, by what it is known (`key`; "" has no moves), and the fleet whose GPUs it names."""

    pool: Pool
    plan: Plan
    key: str
    fleet: Fleet

    def card(self, gpu_id: int) -> Card:
        return self.fleet.cards[self.fleet.places[gpu_id]]


def find(*, actor: User, pool: str, now: datetime) -> Found:
    """What would be moved now. Refuses with NOT_FOUND, FORBIDDEN."""
    row = access.pool(actor, pool)
    access.require(actor, Action.MANAGE_POOL)
    fleet, policy = fleets.current(row.pk), mixes.policy(row.pk)
    movable = moves.movable(row.pk, Period(now, now + AHEAD), wishes.account)
    known = [one for one in movable if one.period.start > now and one.gpus <= fleet.places.keys()]
    plan = defrag.plan(fleet, known, now=now, policy=policy)
    return Found(row, plan, key_of(plan.steps), fleet)


def key_of(steps: Sequence[Step]) -> str:
    """The same for the same moves of the same bookings, from and to the same places at the same time."""
    if not steps:
        return ""
    said = [
        [
            str(step.move.reservation),
            step.move.period.start.isoformat(),
            step.before,
            [(pick.gpu_id, pick.start, pick.size, pick.charge_milli) for pick in step.move.picks],
        ]
        for step in steps
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def apply(*, actor: User, pool: str, key: str, now: datetime, claim: Claim | None = None) -> int:
    """Make the moves of the plan that `find` showed under this key; all or none. How many were made.

    A `claim` that was carried out before answers its number again. Refuses with NOT_FOUND,
    FORBIDDEN, STALE where the plan is another by now, KEY_REUSED, IN_PROGRESS, BUSY.
    """
    access.pool(actor, pool)
    access.require(actor, Action.MANAGE_POOL)
    made = idempotency.find(claim, now=now) if claim else None
    if made is not None:
        return int(made)
    found = find(actor=actor, pool=pool, now=now)
    if not key or found.key != key:
        raise Refusal(Code.STALE)
    return _apply(actor=actor, found=found, now=now, claim=claim)


@locks.use_case
def _apply(*, actor: User, found: Found, now: datetime, claim: Claim | None) -> int:
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return int(made)
    pool, steps = locks.pool(found.pool.pk), found.plan.steps
    still = {one.reservation: one for one in moves.movable(pool.pk, _reach(steps), wishes.account)}
    going = [still.get(step.move.reservation) for step in steps]
    known = [one for one in going if one is not None and one.period.start > now]
    if len(known) < len(steps) or not _fits(pool, steps, known, now):
        raise Refusal(Code.STALE)
    _move(actor, pool, steps, now)
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=len(steps), now=now, status=200)
    return len(steps)


def _reach(steps: Sequence[Step]) -> Period:
    ends = [step.move.period.end for step in steps]
    return Period(min(step.move.period.start for step in steps), max(end for end in ends if end is not None))


def _fits(pool: Pool, steps: Sequence[Step], going: Sequence[Movable], now: datetime) -> bool:
    """Whether all is still where it was, and all can be where it shall, together; read under the lock."""
    ids = {gpu for one in going for gpu in one.gpus}
    ids |= {pick.gpu_id for step in steps for pick in step.move.picks}
    here = fleets.fresh(pool.pk, ids)
    if ids - here.places.keys():
        return False
    here = without(here, going)
    for step, one in zip(steps, going, strict=True):
        if one.period != step.move.period or one.gpus != {gpu for gpu, _, _ in step.before}:
            return False
        views = [here.view(gpu, now, one.period) for gpu in {pick.gpu_id for pick in step.move.picks}]
        if placement.clash(views, step.move.picks, one.period) is not None:
            return False
        here = with_picks(here, step.move.picks, one.period)
    return True


def _move(actor: User, pool: Pool, steps: Sequence[Step], now: datetime) -> None:
    """All leave their places before any takes its new one: one may go where another was."""
    ids = [step.move.reservation for step in steps]
    rows = {row.pk: row for row in Reservation.objects.select_related("owner", "team").filter(pk__in=ids)}
    slices: dict[UUID, list[Allocation]] = {pk: [] for pk in ids}
    held = Allocation.objects.filter(reservation__in=ids, holds=True, wanted_at=None).order_by("pk")
    for one in held:
        slices[one.reservation_id].append(one)
    before = {pk: grants.facts(rows[pk], slices[pk]) for pk in ids}
    Allocation.objects.filter(pk__in=[one.pk for mine in slices.values() for one in mine]).delete()
    for step in steps:
        row = rows[step.move.reservation]
        wanted = wishes.again(row, pool, Period(row.period.lower, row.period.upper))
        made = grants.allocate(row, plans.Plan(step.move.picks, True), wanted, wanted_at=None)
        row.version += 1
        row.save(update_fields=["version"])
        events.record(
            "reservation.moved",
            actor=actor,
            now=now,
            team_id=row.team_id,
            pool_id=pool.pk,
            reservation_id=row.pk,
            before=before[row.pk],
            after=grants.facts(row, made),
        )
    reservations.note(list(rows.values()), Reason.MOVED, now=now)
