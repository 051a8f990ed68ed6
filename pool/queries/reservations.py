"""Reservations as somebody may see them, and as doors show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, OuterRef, Prefetch, Q, QuerySet, Subquery, Value

from pool.core import connect, wire
from pool.core.health import stale
from pool.core.shapes import Class
from pool.core.states import TERMINAL, State
from pool.core.terms import ORDINARY
from pool.models import Allocation, Event, Node, Outage, Reservation
from pool.queries import clock, teams, troubles
from pool.queries.troubles import Trouble
from pool.queries.waiting import Wait, wait_of

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import User


@dataclass(frozen=True, slots=True)
class ShareView:
    """A share of a GPU: its memory, its compute in percent, and how it is kept apart from the others."""

    sharing: str
    memory_mib: int
    guaranteed: int
    limit: int


@dataclass(frozen=True, slots=True)
class AllocationView:
    """One slice, share or whole GPU. `gpu` is its index on the node, (start, size) its span of `grid` slices.

    `env` holds what a process needs to find it; {} while it cannot be used, and
    then `part`, by which core.connect says the same in full, is None. `run` is the node's folder for holders.
    `trouble`: what is known to stand against it. `adopted`: it was foreign use before. `gone`: it is taken
    back already, while others of the same reservation still end.
    """

    id: UUID
    node: str
    gpu: int
    gpu_uuid: str
    kind: str
    model: str
    profile: str
    start: int
    size: int
    grid: int
    mig_uuid: str
    env: Mapping[str, str]
    ready_at: datetime | None
    access: str
    trouble: Trouble | None = None
    share: ShareView | None = None
    part: connect.Part | None = None
    adopted: bool = False
    run: str = connect.RUN
    gone: bool = False


@dataclass(frozen=True, slots=True)
class ReservationView:
    """What REST and pages show. `unknown_since`: its nodes that are not heard from (None: never heard).

    `notice_until`: from then on it may be taken back, for `notice_why`.
    `hold_until`: when it is let go, of one that is held; `approve_by`, of one that is to be approved.
    `continues` and `continued_by`: the booking whose rest it is, and the rest of this one.
    `recall_at`: when it is taken back, once that is settled.
    """

    id: UUID
    state: str
    state_reason: str
    start: datetime
    end: datetime | None
    version: int
    title: str
    team: str
    pool: str
    owner: str
    booked_by: str
    klass: str
    ask: dict[str, Any]
    restartable: bool
    charge_milli: int
    visibility: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    unknown_since: Mapping[str, datetime | None]
    allocations: tuple[AllocationView, ...]
    notice_until: datetime | None = None
    notice_why: str = ""
    continues: UUID | None = None
    continued_by: UUID | None = None
    hold_until: datetime | None = None
    preemptible: bool = True
    priority: int = ORDINARY
    preempt_signal: str = ""
    preempt_grace_s: int | None = None
    justification: str = ""
    approve_by: datetime | None = None
    recall_at: datetime | None = None
    retained_milli_hours: int | None = None
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class OutageView:
    """Time for which it could not use this GPU; `end` None: it lasts."""

    node: str
    gpu: int
    start: datetime
    end: datetime | None
    reason: str


def visible_to(user: User | AnonymousUser) -> QuerySet[Reservation]:
    """The user's own, those of the user's teams and subteams, and those shown to everyone; or all."""
    rows = _whole(Reservation.objects.all())
    if not user.is_active or user.pk is None:
        return rows.none()
    if teams.sees_all(user):
        return rows.annotate(told=Value(True))
    own = Q(team__in=teams.reach(user)) | Q(owner=user.pk)
    told = ExpressionWrapper(own, output_field=BooleanField())
    return rows.annotate(told=told).filter(own | Q(visibility=Reservation.Visibility.EVERYONE))


def mine(user: User | AnonymousUser) -> QuerySet[Reservation]:
    """Those that the user owns and that are not over, by start."""
    rows = visible_to(user).filter(owner=user.pk).exclude(state__in=TERMINAL)
    return rows.order_by("period__startswith", "pk")


def events(reservation: Reservation) -> QuerySet[Event]:
    """What happened to it, oldest first."""
    return Event.objects.filter(reservation_id=reservation.pk).order_by("pk")


def events_for(reservation: Reservation) -> list[Event]:
    """The same, each with what its viewer may know of it (`facts_of`)."""
    found = list(events(reservation))
    for one in found:
        one.after = facts_of(one, reservation)
    return found


#: What a node says in its own words may name programs, accounts, and what a site's hooks print.
_OWN_WORDS = frozenset({"text", "data"})
#: Of whom a booking is taken back for, and from how many: what the audit keeps and other teams are not told.
OF_OTHERS = frozenset({"recall_for", "asked_milli", "victims"})


def facts_of(event: Event, reservation: Reservation) -> dict[str, Any] | None:
    """What an event of it left behind, for whom `reservation` was read: from `visible_to`.

    Who sees it only because it is shown to everyone does not learn what its node said of its processes;
    nobody learns from it about the booking that takes its place.
    """
    after: dict[str, Any] | None = event.after
    if after is None:
        return None
    hidden = OF_OTHERS if getattr(reservation, "told", False) else OF_OTHERS | _OWN_WORDS
    return {name: value for name, value in after.items() if name not in hidden}


def outages(reservation: Reservation) -> list[OutageView]:
    """When it could not use what it holds, oldest first."""
    rows = Outage.objects.filter(reservation=reservation).select_related("gpu__node")
    return [
        OutageView(one.gpu.node.name, one.gpu.index, one.period.lower, one.period.upper, one.reason)
        for one in rows.order_by("period__startswith", "pk")
    ]


def as_resource(row: Reservation) -> ReservationView:
    """What doors show of a row that came from `visible_to`."""
    allocations = list(row.allocations.all())
    unheard = {} if row.state in TERMINAL else _unheard(one.gpu.node for one in allocations)
    return _view(row, tuple(_allocation(one, row) for one in allocations), unheard)


_NEW = """
SELECT alloc.id, node.name, gpu.index, gpu.uuid, alloc.kind, alloc.model, alloc.profile,
    lower(alloc.span), upper(alloc.span) - lower(alloc.span), gpu.grid, node.access,
    gpu.sharing, alloc.share_memory_mib, alloc.share_compute_pct, alloc.share_limit_pct
FROM pool_allocation alloc
JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
JOIN pool_node node ON node.id = gpu.node_id
WHERE alloc.reservation_id = %s AND alloc.left_at IS NULL
ORDER BY node.name, gpu.index, alloc.span
"""


def as_new_resource(row: Reservation) -> ReservationView:
    """What doors show of a row that `book` has just written: nothing of it is carved yet.

    By hand, since composing this statement anew for each booking costs more than carrying it out.
    """
    with connection.cursor() as cursor:
        cursor.execute(_NEW, [row.pk])
        places = cursor.fetchall()
    return _view(row, tuple(_new_allocation(*place) for place in places), {})


def _view(
    row: Reservation, allocations: tuple[AllocationView, ...], unheard: Mapping[str, datetime | None]
) -> ReservationView:
    return ReservationView(
        id=row.pk,
        state=row.state,
        state_reason=row.state_reason,
        start=row.period.lower,
        end=row.period.upper,
        version=row.version,
        title=row.title,
        team=row.team.name,
        pool=row.pool.name,
        owner=row.owner.username,
        booked_by=row.booked_by.username,
        klass=row.klass,
        ask=row.ask,
        restartable=row.restartable,
        charge_milli=row.charge_milli,
        visibility=row.visibility,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        unknown_since=unheard,
        allocations=allocations,
        notice_until=row.notice_until,
        notice_why=row.notice_why,
        continues=row.continues_id,
        continued_by=getattr(row, "rest", None),
        hold_until=row.hold_until if row.state == State.HELD else None,
        preemptible=row.preemptible,
        priority=row.priority,
        preempt_signal=row.preempt_signal,
        preempt_grace_s=row.preempt_grace_s,
        justification=row.justification if getattr(row, "told", True) else "",
        approve_by=row.approve_by if row.state == State.PENDING_APPROVAL else None,
        recall_at=row.recall_at,
        retained_milli_hours=row.retained_milli_hours,
        wait=wait_of(row),
    )


def _whole(rows: QuerySet[Reservation]) -> QuerySet[Reservation]:
    """With all that `as_resource` reads, in two statements; what was given up is not shown."""
    allocations = Allocation.objects.filter(left_at=None).select_related("gpu__node")
    allocations = allocations.order_by("gpu__node__name", "gpu__index", "span")
    rest = Reservation.objects.filter(continues=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    rows = rows.annotate(rest=Subquery(rest))
    return rows.select_related("team", "pool", "owner", "booked_by").prefetch_related(
        Prefetch("allocations", troubles.annotated(allocations))
    )


def _unheard(nodes: Any) -> dict[str, datetime | None]:
    now = clock.real_now()
    found: dict[str, datetime | None] = {}
    for node in nodes:
        if is_unknown(node, now):
            found[node.name] = node.unknown_since or node.received_at
    return found


def is_unknown(node: Node, real_now: datetime) -> bool:
    """Whether the node has missed three reports, whether a lane has noticed it yet or not."""
    return node.unknown_since is not None or stale(node.received_at, real_now, settings.REPORT_SECONDS)


def _allocation(one: Allocation, row: Reservation) -> AllocationView:
    trouble = troubles.of(one, row, told=getattr(row, "told", False))
    lost = trouble is not None and trouble.code == troubles.GPU_LOST
    run = one.gpu.node.run_folder or connect.RUN
    part = None if lost or row.state != State.ACTIVE or one.ready_at is None else _part(one, row)
    return AllocationView(
        id=one.pk,
        node=one.gpu.node.name,
        gpu=one.gpu.index,
        gpu_uuid=one.gpu.uuid,
        kind=one.kind,
        model=one.model,
        profile=one.profile,
        start=one.span.lower,
        size=one.span.upper - one.span.lower,
        grid=one.gpu.grid,
        mig_uuid=one.mig_uuid,
        env={} if part is None else _env(part, run),
        ready_at=one.ready_at,
        access=one.gpu.node.access,
        trouble=trouble,
        share=_share(one.gpu.sharing, one.share_memory_mib, one.share_compute_pct, one.share_limit_pct),
        part=part,
        adopted=one.adopted,
        run=run,
        gone=not one.holds and row.state not in TERMINAL,
    )


def _share(
    sharing: str, memory_mib: int | None, guaranteed: int | None, limit: int | None
) -> ShareView | None:
    """None for a slice and for a whole GPU."""
    if memory_mib is None or guaranteed is None or limit is None:
        return None
    return ShareView(sharing, memory_mib, guaranteed, limit)


def _new_allocation(
    pk: UUID,
    node: str,
    index: int,
    uuid: str,
    kind: str,
    model: str,
    profile: str,
    start: int,
    size: int,
    grid: int,
    access: str,
    *share: Any,
) -> AllocationView:
    return AllocationView(
        id=pk,
        node=node,
        gpu=index,
        gpu_uuid=uuid,
        kind=kind,
        model=model,
        profile=profile,
        start=start,
        size=size,
        grid=grid,
        mig_uuid="",
        env={},
        ready_at=None,
        access=access,
        share=_share(*share),
    )


def _part(one: Allocation, row: Reservation) -> connect.Part:
    share = None
    if one.share_memory_mib is not None:
        share = wire.Share(
            memory_mib=one.share_memory_mib,
            compute_pct=one.share_compute_pct or 0,
            limit_pct=one.share_limit_pct or 100,
            batch=row.klass == Class.BATCH,
        )
    return connect.Part(
        allocation=str(one.pk),
        reservation=str(row.pk),
        gpu=one.gpu.uuid,
        mig_uuid=one.mig_uuid or None,
        share=share,
        sharing=cast(wire.Sharing, one.gpu.sharing) if share is not None and one.gpu.sharing else None,
        multi_user=row.pool.mps_multi_user,
        imex=row.imex_channel,
    )


def _env(part: connect.Part, run: str) -> dict[str, str]:
    """For a program on the node or in a container; the node hands out no more than this names."""
    device = part.mig_uuid or part.gpu
    own = {"CUDA_VISIBLE_DEVICES": device, "NVIDIA_VISIBLE_DEVICES": device}
    return own | connect.limits(part, run) | connect.channel(part) | connect.marks(part)
