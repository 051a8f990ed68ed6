"""Defragmentation: a few bookings that have not begun go elsewhere, as was shown or by the pool's policy.

A plan is found without a lock and named by what it does. Applying it finds it
again: if it is another by now, nothing is done. What moves: core/defrag.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pool.core import defrag, defrag_rank
from pool.core.defrag import Plan
from pool.core.errors import Code, Refusal
from pool.core.fleet import Card, Fleet
from pool.core.period import Period
from pool.core.roles import Action
from pool.models import Pool
from pool.queries import access, fleets, mixes
from pool.queries import moves as queries
from pool.services import idempotency, locks, moves, wishes
from pool.services.idempotency import Claim
from pool.services.moves import Step

if TYPE_CHECKING:
    from pool.models import User

#: Bookings that begin within this time are looked at.
AHEAD = timedelta(days=14)
#: What begins within this time is left where it is by the pool's policy: its owner may be about to start.
NEAR = timedelta(minutes=15)


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
    return _found(row, now, now)


def _found(pool: Pool, after: datetime, now: datetime) -> Found:
    """A plan for what begins after that instant."""
    fleet = fleets.current(pool.pk)
    ids = defrag_rank.worth_a_look(fleet, Period(after, now + AHEAD))
    movable = queries.movable(pool.pk, ids, wishes.account, now=after) if ids else []
    known = [one for one in movable if one.gpus <= fleet.places.keys()]
    plan = defrag.plan(fleet, known, now=now, policy=mixes.policy(pool.pk))
    return Found(pool, plan, moves.key_of(_steps(plan)), fleet)


def _steps(plan: Plan) -> tuple[Step, ...]:
    return tuple(Step(step.move, step.before) for step in plan.steps)


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
def _apply(*, actor: User | None, found: Found, now: datetime, claim: Claim | None) -> int:
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return int(made)
    pool, steps = locks.pool(found.pool.pk), _steps(found.plan)
    if moves.fitted(pool, steps, now) is None:
        raise Refusal(Code.STALE)
    moves.make(actor, pool, steps, now)
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=len(steps), now=now, status=200)
    return len(steps)


def by_policy(*, now: datetime) -> int:
    """In every pool whose policy is to apply: the moves of the plan of this moment. How many were made.

    A plan that somebody overtook, or a pool that is busy or frozen, is left for the next time.
    """
    return sum(_kept(pool, now) for pool in _to_keep())


def _to_keep() -> Iterator[Pool]:
    return iter(Pool.objects.filter(defragment=Pool.Defragment.APPLY, frozen=False).order_by("pk"))


def _kept(pool: Pool, now: datetime) -> int:
    found = _found(pool, now + NEAR, now)
    if not found.key:
        return 0
    try:
        return _apply(actor=None, found=found, now=now, claim=None)
    except Refusal as refusal:
        if refusal.code not in (Code.STALE, Code.BUSY):
            raise
        return 0
