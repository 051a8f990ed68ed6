"""Foreign use becomes a reservation: an operator names whose it is, and what runs goes on undisturbed.

The agent takes the instance, or the whole GPU, on its record (`Held.adopt`) and
from then on it is a slice like any other, which ends with its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg.types.range import Int4Range, TimestamptzRange

from pool.core import mig, wire
from pool.core.errors import Code, Refusal, invalid
from pool.core.period import Period
from pool.core.placement import Pick
from pool.core.quota import charge_milli
from pool.core.roles import Action
from pool.core.shapes import Ask, Class, GpuAsk, MigAsk, ask_json
from pool.core.states import Reason, State
from pool.models import Allocation, Blocker, Gpu, GpuState, Pool, Reservation, Team
from pool.queries import access, snapshot, teams
from pool.queries import commands as command_queries
from pool.services import commands, events, grants, idempotency, locks, plans, starts, wishes
from pool.services.idempotency import Claim
from pool.services.inventory import NAMED
from pool.services.plans import Plan, Wanted

if TYPE_CHECKING:
    from pool.models import User


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be adopted: `profile` None is the whole GPU."""

    start: int
    size: int
    profile: mig.Profile | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """For whom, and for how long."""

    team: str
    owner: str
    title: str
    period: Period


@locks.use_case
def adopt(
    *,
    actor: User,
    gpu: str,
    first: int = 0,
    team: str,
    owner: str,
    title: str = "",
    end: datetime | None = None,
    duration: timedelta | None = None,
    now: datetime,
    claim: Claim | None = None,
) -> Reservation:
    """Book the foreign use that begins at memory slice `first` of this GPU (UUID), from now on.

    `owner` is a username of `team`, whose quota it counts in; exactly one of `end`
    and `duration`. What is booked there meanwhile is placed elsewhere first; if
    one fits nowhere else, nothing is done, and WRONG_STATE names them. A `claim`
    that was carried out before answers its first result. Refuses with FORBIDDEN,
    NOT_FOUND, INVALID, QUOTA_EXCEEDED, KEY_REUSED, IN_PROGRESS, BUSY, and with
    WRONG_STATE where the GPU takes no command.
    """
    access.require(actor, Action.MANAGE_NODE)
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return idempotency.first_result(made)
    asked = _Asked(team, owner, title, wishes.period_of(None, end, duration, now))
    reservation = _adopt(actor, gpu, first, asked, now)
    if claim:
        idempotency.keep(claim, resource=reservation.pk, now=now)
    return reservation


def _adopt(actor: User, gpu: str, first: int, asked: _Asked, now: datetime) -> Reservation:
    place = Gpu.objects.filter(uuid=gpu).values_list("pk", "node__pool").first()
    whose = Team.objects.select_related("parent").filter(name=asked.team).first()
    if place is None or whose is None:
        raise Refusal(Code.NOT_FOUND)
    pool = locks.pool(place[1])
    (row,) = locks.gpus([place[0]])
    if not command_queries.commandable([row.pk]):
        raise Refusal(Code.WRONG_STATE, state="not_managed", doing="adopt")
    if row.node.wire < wire.WIRE:
        raise invalid("/gpu", "update_needed")
    found = _found(row, first)
    blocked = wishes.blocked(asked.period, pool)
    wanted = Wanted(_ask(row, found), asked.period, blocked, Class.INTERACTIVE, team_id=whose.pk)
    wish = wishes.Wish(
        actor=actor,
        team=whose,
        pool=pool,
        owner=_owner(whose, asked.owner),
        title=wishes.title_of(asked.title),
        visibility=Reservation.Visibility.TEAM,
        restartable=False,
        wanted=wanted,
        now=now,
    )
    pick = Pick(row.pk, row.model, found.profile, found.start, found.size, charge_milli(found.size, row.grid))
    _check_quota(wish, pick)
    _clear(pool, row, found, wish.wanted.blocked, now)
    return _write(wish, row, pick)


# --- What it is ---------------------------------------------------------------


def _found(gpu: Gpu, first: int) -> _Found:
    """The foreign use that begins there, as the last report shows it; INVALID where there is none."""
    blocker = Blocker.objects.filter(gpu=gpu, kind=Blocker.Kind.FOREIGN, span__startswith=first).first()
    state = GpuState.objects.filter(gpu=gpu).first()
    if blocker is None or state is None or gpu.use == Gpu.Use.SHARE:
        raise invalid("/first", "nothing_foreign")
    size = blocker.span.upper - blocker.span.lower
    if gpu.use == Gpu.Use.WHOLE:
        if state.mig:
            raise invalid("/first", "nothing_foreign")
        return _Found(0, gpu.grid, None)
    for one in _instances(state):
        if not one.owned and (one.start, one.size) == (first, size):
            return _Found(first, size, _profile(gpu, one))
    raise invalid("/first", "nothing_foreign")


def _instances(state: GpuState) -> Sequence[wire.Instance]:
    return msgspec.convert(state.instances or [], tuple[wire.Instance, ...])


def _profile(gpu: Gpu, one: wire.Instance) -> mig.Profile:
    """The profile as this GPU offers it; without a compute instance nobody can use it as a slice."""
    offers = msgspec.json.encode(gpu.profiles).decode()
    for profile in snapshot.profiles_of(gpu.model, offers, gpu.grid):
        if profile.profile_id == one.profile_id and profile.size == one.size and one.mig_uuid:
            return profile
    raise invalid("/first", "not_a_slice")


def _ask(gpu: Gpu, found: _Found) -> Ask:
    if found.profile is None:
        return GpuAsk(models=(gpu.model,))
    return MigAsk(profile=found.profile.name, models=(gpu.model,))


def _owner(team: Team, username: str) -> User:
    owner = None if "\0" in username else teams.members(team).filter(username=username).first()
    if owner is None:
        raise invalid("/owner", "not_a_member")
    return owner


# --- Making room, and writing -------------------------------------------------


def _check_quota(wish: wishes.Wish, pick: Pick) -> None:
    snap = snapshot.take(
        wish.pool.pk, wish.wanted.blocked, team_id=wish.team.pk, now=wish.now, gpu_ids=[pick.gpu_id]
    )
    refusal = plans.over_quota(snap, [pick], wish.wanted)
    if refusal is not None:
        raise refusal


def _clear(pool: Pool, gpu: Gpu, found: _Found, blocked: Period, now: datetime) -> None:
    """Place elsewhere what is booked there for any of that time; all of it, or nothing is done."""
    there = Allocation.objects.filter(
        gpu=gpu,
        holds=True,
        span__overlap=Int4Range(found.start, found.start + found.size),
        blocked__overlap=TimestamptzRange(blocked.start, blocked.end),
    )
    # What was commanded already is on its way to the node: it cannot be taken back from here.
    stuck = set(there.filter(wanted_at__isnull=False).values_list("reservation_id", flat=True))
    rows = Reservation.objects.filter(pk__in=there.values("reservation_id")).exclude(pk__in=stuck)
    for row in rows.select_related("owner", "team").order_by("period__startswith", "pk"):
        if not starts.relocate(pool, [row], now):
            stuck.add(row.pk)
    if stuck:
        named = sorted(map(str, stuck))
        raise Refusal(
            Code.WRONG_STATE, state="booked", doing="adopt", count=len(named), reservations=named[:NAMED]
        )


def _write(wish: wishes.Wish, gpu: Gpu, pick: Pick) -> Reservation:
    period = wish.wanted.period
    reservation = Reservation(
        team=wish.team,
        pool=wish.pool,
        owner=wish.owner,
        booked_by=wish.actor,
        title=wish.title,
        ask=ask_json(wish.wanted.ask),
        klass=wish.wanted.klass,
        state=State.STARTING,
        state_reason=Reason.WAITING_FOR_NODE,
        period=TimestamptzRange(period.start, period.end),
        created_at=wish.now,
        charge_milli=pick.charge_milli,
        visibility=wish.visibility,
        restartable=False,
    )
    reservation.save(force_insert=True)
    rows = grants.allocate(reservation, Plan((pick,), clean=True), wish.wanted, wanted_at=wish.now)
    Allocation.objects.filter(pk__in=[row.pk for row in rows]).update(adopted=True)
    after: dict[str, Any] = grants.facts(reservation, rows)
    events.record(
        "reservation.adopted",
        actor=wish.actor,
        now=wish.now,
        team_id=wish.team.pk,
        pool_id=wish.pool.pk,
        node_id=gpu.node_id,
        gpu_id=gpu.pk,
        reservation_id=reservation.pk,
        after=after,
    )
    locks.changed(wish.pool)
    commands.issue([gpu], wish.now)
    return reservation
