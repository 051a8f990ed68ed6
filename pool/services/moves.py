"""Bookings that have not begun, moved to other places: all that were shown together, or none.

`look`, `find` and `apply` make room for one ask that does not fit; the steps below them are
defragmentation's, too (defrag.py). What has to move is found in core/moves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from pool.core import clearing, moves, placement
from pool.core.errors import Code, Refusal, invalid
from pool.core.fleet import Card, Fleet, halves, span_of
from pool.core.moves import Movable, Move, Shift, with_picks, without
from pool.core.period import Period
from pool.core.placement import Pick
from pool.core.roles import Action
from pool.core.shapes import Ask, Class, ask_json, check_class
from pool.core.states import Reason
from pool.models import Allocation, Gpu, Pool, Reservation, Team
from pool.queries import access, fleets, snapshot, teams
from pool.queries import moves as queries
from pool.queries.snapshot import Snapshot
from pool.services import events, grants, idempotency, locks, plans, reservations, wishes
from pool.services.idempotency import Claim
from pool.services.plans import NoRoom, Wanted

if TYPE_CHECKING:
    from pool.models import User

#: (GPU id, first slice, slices) of all that a booking has.
Places = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One booking goes: where it is, and where all of it goes."""

    move: Move
    before: Places


@dataclass(frozen=True, slots=True)
class Found:
    """What would have to move for an ask, by what it is known (`key`; "": nothing, or nothing helps).

    `fits`: there is room for it as it is. `picks` are what it would get; `fleet` has the GPUs named.
    """

    pool: Pool
    team: Team
    wanted: Wanted
    fits: bool
    picks: tuple[Pick, ...]
    steps: tuple[Step, ...]
    charge_milli: int
    key: str
    fleet: Fleet

    def card(self, gpu_id: int) -> Card:
        return self.fleet.cards[self.fleet.places[gpu_id]]


@dataclass(frozen=True, slots=True)
class For:
    """The ask that room is wanted for, as a door has read it. `owner` None: anybody of the team."""

    team: str
    pool: str
    ask: Ask
    start: datetime | None = None
    end: datetime | None = None
    duration: timedelta | None = None
    klass: Class = Class.INTERACTIVE
    owner: str | None = None


def look(snap: Snapshot, wanted: Wanted, pool_id: int) -> Shift | None:
    """What would have to move so that `wanted` fits and is within quota; None where nothing helps."""
    asked = clearing.Wanted(wanted.ask, wanted.blocked, wanted.account)
    near = _near(snap, asked, pool_id)
    found = moves.shift(snap.fleet, asked, near, now=snap.now, policy=snap.policy) if near else None
    if found is None or plans.over_quota(snap, found.picks, wanted) is not None:
        return None
    return found


def _near(snap: Snapshot, asked: clearing.Wanted, pool_id: int) -> list[Movable]:
    ids = {pk for some in clearing.sets(snap.fleet, asked, now=snap.now) for pk in some}
    if not ids:
        return []
    near = queries.movable(pool_id, ids, wishes.account, now=snap.now)
    return [one for one in near if one.gpus <= snap.fleet.places.keys()]


def find(*, actor: User, wish: For, now: datetime) -> Found:
    """What would be moved now for it. Refuses with NOT_FOUND, FORBIDDEN, INVALID, QUOTA_EXCEEDED."""
    pool, team = access.pool(actor, wish.pool), access.team(actor, wish.team)
    access.require(actor, Action.MANAGE_POOL)
    wanted = _wanted(wish, pool, team, now)
    snap = snapshot.take(pool.pk, wanted.blocked, team_id=team.pk, now=now)
    try:
        plans.choose(snap, wanted)
    except NoRoom:
        pass
    else:
        return Found(pool, team, wanted, True, (), (), 0, "", snap.fleet)
    found = look(snap, wanted, pool.pk)
    if found is None:
        return Found(pool, team, wanted, False, (), (), 0, "", snap.fleet)
    steps = tuple(Step(move, _places(snap.fleet, move.reservation)) for move in found.moves)
    return Found(
        pool=pool,
        team=team,
        wanted=wanted,
        fits=False,
        picks=found.picks,
        steps=steps,
        charge_milli=found.charge_milli,
        key=key_of(steps, [team.pk, ask_json(wish.ask), *_when(wish)]),
        fleet=snap.fleet,
    )


def _wanted(wish: For, pool: Pool, team: Team, now: datetime) -> Wanted:
    check_class(wish.ask, wish.klass)
    period = wishes.period_of(wish.start, wish.end, wish.duration, now)
    owner = _owner(team, wish.owner) if wish.owner else None
    # Without an owner it is somebody of the team: of a server of one user nothing can be promised.
    account = wishes.account(owner, team) if owner else team.posix_name or f"team:{team.pk}"
    return Wanted(
        wish.ask,
        period,
        wishes.blocked(period, pool),
        wish.klass,
        account,
        owner_id=owner.pk if owner else None,
        team_id=team.pk,
        created=now,
    )


def _owner(team: Team, username: str) -> User:
    found = teams.members(team).filter(username=username.replace("\0", "")).first()
    if found is None:
        raise invalid("/owner", "not_a_member")
    return found


def _when(wish: For) -> list[str]:
    """As it was asked: now is another instant each time."""
    return [str(at) for at in (wish.start, wish.end, wish.duration)]


def _places(fleet: Fleet, reservation: UUID) -> Places:
    mine = (fleet.on.field("reservation", slice(None)) == halves(reservation)).all(axis=1)
    rows = fleet.on.records(np.flatnonzero(mine))
    return tuple(sorted((int(row["gpu"]), *span_of(row["mask"])) for row in rows))


def apply(*, actor: User, wish: For, key: str, now: datetime, claim: Claim | None = None) -> int:
    """Make the moves that `find` showed under this key; all or none. How many were made.

    What is asked is not booked by it: whoever wants it books it next. A `claim` that was carried out
    before answers its number again. Refuses as `find` does, and with STALE where it is another by
    now, KEY_REUSED, IN_PROGRESS, BUSY.
    """
    access.pool(actor, wish.pool)
    access.require(actor, Action.MANAGE_POOL)
    made = idempotency.find(claim, now=now) if claim else None
    if made is not None:
        return int(made)
    found = find(actor=actor, wish=wish, now=now)
    if not key or found.key != key:
        raise Refusal(Code.STALE)
    return _apply(actor=actor, found=found, now=now, claim=claim)


@locks.use_case
def _apply(*, actor: User, found: Found, now: datetime, claim: Claim | None) -> int:
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return int(made)
    pool = locks.pool(found.pool.pk)
    left = fitted(pool, found.steps, now, also={pick.gpu_id for pick in found.picks})
    wanted = found.wanted
    if left is None or not _is_free(left, found.picks, wanted.blocked, now):
        raise Refusal(Code.STALE)
    make(actor, pool, found.steps, now)
    locks.changed(pool)
    if claim:
        idempotency.keep(claim, resource=len(found.steps), now=now, status=200)
    return len(found.steps)


# --- Steps --------------------------------------------------------------------


def key_of(steps: Sequence[Step], more: Sequence[Any] = ()) -> str:
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
    return hashlib.sha256(json.dumps([said, *more], sort_keys=True).encode()).hexdigest()[:32]


def fitted(pool: Pool, steps: Sequence[Step], now: datetime, also: Collection[int] = ()) -> Fleet | None:
    """The GPUs concerned, and those `also` named, once all have moved; read under the lock on the pool.

    None where something is no longer where it was, or cannot be where it shall.
    """
    still = {
        one.reservation: one
        for one in queries.movable(
            pool.pk, [step.move.reservation for step in steps], wishes.account, now=now
        )
    }
    going = [still[step.move.reservation] for step in steps if step.move.reservation in still]
    ids = {pick.gpu_id for step in steps for pick in step.move.picks} | set(also)
    ids |= {gpu for one in going for gpu in one.gpus}
    here = _fresh(pool, ids)
    if len(going) < len(steps) or ids - here.places.keys():
        return None
    here = without(here, going)
    for step, one in zip(steps, going, strict=True):
        if one.period != step.move.period or one.gpus != {gpu for gpu, _, _ in step.before}:
            return None
        if not _is_free(here, step.move.picks, one.period, now):
            return None
        here = with_picks(here, step.move.picks, one.period)
    return here


def _fresh(pool: Pool, gpu_ids: Collection[int]) -> Fleet:
    """These GPUs and all others on their nodes, so that what is left of the nodes is known, too."""
    on_nodes = Gpu.objects.filter(node__gpus__in=gpu_ids, node__pool=pool)
    return fleets.fresh(pool.pk, list(on_nodes.values_list("pk", flat=True).distinct()))


def _is_free(here: Fleet, picks: Sequence[Pick], period: Period, now: datetime) -> bool:
    views = [here.view(gpu, now, period) for gpu in sorted({pick.gpu_id for pick in picks})]
    if placement.clash(views, picks, period) is not None:
        return False
    return placement.node_clash(here, picks, period, now) is None


def make(actor: User | None, pool: Pool, steps: Sequence[Step], now: datetime) -> None:
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
