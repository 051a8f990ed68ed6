"""What stands against an allocation: a GPU lost, faulty or not reported, a share in trouble, a late process.

Which processes those are is for the eyes of its own team and of those who see all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from django.db.models import Case, Exists, F, OuterRef, QuerySet, Subquery, When
from django.db.models.functions import JSONObject

from pool.core import observed, wire
from pool.core.health import Action
from pool.core.states import State
from pool.models import Allocation, Blocker, Fault, Outage

if TYPE_CHECKING:
    from pool.models import Reservation

GPU_LOST, GPU_UNKNOWN, IN_USE = "gpu_lost", "gpu_unknown", "in_use"
GPU_FAULTY, SHARE_DEGRADED, SHARE_OVER = "gpu_faulty", "share_degraded", "share_over"


@dataclass(frozen=True, slots=True)
class Process:
    """`name` and `user` are empty where the node could not tell."""

    pid: int
    name: str
    user: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """`code`: gpu_lost, gpu_unknown (not reported), gpu_faulty, share_degraded, share_over, in_use.

    `since` None: not known. `until`: when the booking fails if it stays so.
    `xid` and `action` (core.health) of a fault; `used_mib` of a share that
    takes too much memory. `processes` None: not known, or, without `told`, not
    to be told to this viewer; () says that the driver lists none.
    """

    code: str
    since: datetime | None = None
    processes: tuple[Process, ...] | None = None
    told: bool = False
    until: datetime | None = None
    xid: int | None = None
    action: str = ""
    used_mib: int | None = None


def annotated(allocations: QuerySet[Allocation]) -> QuerySet[Allocation]:
    """With what `of` reads, without a statement more; what runs there only where it may matter."""
    blockers = Blocker.objects.filter(gpu=OuterRef("gpu")).order_by("since")
    over = blockers.filter(kind=Blocker.Kind.OVERRUN, span__overlap=OuterRef("span"))
    missing = blockers.filter(kind=Blocker.Kind.UNKNOWN)
    ending = {"reservation__state": State.ENDING, "holds": True}
    out = Outage.objects.filter(
        reservation=OuterRef("reservation"), gpu=OuterRef("gpu"), period__endswith=None
    )
    return allocations.annotate(
        gpu_lost=F("gpu__state__lost"),
        out_since=Subquery(out.values("period__startswith")[:1]),
        fault=Subquery(_faults().values(found=_fault_told())[:1]),
        missing_since=Subquery(missing.values("since")[:1]),
        overrun_since=Subquery(over.values("since")[:1]),
        seen_shares=Case(When(kind=Allocation.Kind.SHARE, holds=True, then=F("gpu__state__shares"))),
        **{
            f"seen_{name}": Case(When(Exists(over), then=F(f"gpu__state__{name}"), **ending))
            for name in ("instances", "processes", "trouble")
        },
    )


def _fault_told() -> JSONObject:
    return JSONObject(xid="xid", action="action", since="since", good="good")


def _faults() -> QuerySet[Fault]:
    """What is wrong with the GPU now, the loss first, and of that the Xid which says why.

    Last comes a loss after which it is seen well again.
    """
    rows = Fault.objects.filter(gpu=OuterRef("gpu"), cleared_at=None)
    lost = When(action=Action.LOST, then=1)
    why = When(action=Action.LOST, xid__isnull=False, then=0)
    return rows.order_by(Case(When(action=Action.LOST, good__gt=0, then=3), why, lost, default=2), "pk")


def of(one: Any, row: Reservation, *, told: bool) -> Trouble | None:
    """What stands against `one` (from `annotated`) of `row`; None: nothing that is known.

    Of one that has yet to start, only what keeps its GPU out of use.
    """
    if not one.holds or (one.wanted_at is None and row.state not in (State.SCHEDULED, State.STARTING)):
        return None
    fault = one.fault or {}
    back = fault.get("action") == Action.LOST and fault["good"] > 0
    if one.gpu_lost or (fault.get("action") == Action.LOST and not back):
        return _lost(one, row, fault)
    missing = None if one.missing_since is None else Trouble(GPU_UNKNOWN, one.missing_since)
    if one.wanted_at is None:
        return _faulty(fault) or missing
    if back:  # its holder can use it, though it takes nobody new
        fault = {}
    if missing is not None:
        return missing
    if row.state == State.ENDING:
        return None if one.overrun_since is None else _in_use(one, told=told)
    return _share(one) or _faulty(fault)


def _lost(one: Any, row: Reservation, fault: dict[str, Any]) -> Trouble:
    since = one.out_since or _instant(fault.get("since"))
    until = None
    if one.out_since is not None and row.state == State.ACTIVE:
        until = one.out_since + timedelta(minutes=row.pool.lost_minutes)
    return Trouble(GPU_LOST, since, until=until, xid=fault.get("xid"), action=Action.LOST)


def _faulty(fault: dict[str, Any]) -> Trouble | None:
    if not fault:
        return None
    since = _instant(fault["since"])
    return Trouble(GPU_FAULTY, since, xid=fault["xid"], action=fault["action"])


def _share(one: Any) -> Trouble | None:
    """What the node says about this share: its server is gone, or it takes more memory than it has."""
    for seen in _read(one.seen_shares, tuple[wire.ShareSeen, ...]) or ():
        if seen.allocation == str(one.pk) and seen.state == "over":
            return Trouble(SHARE_OVER, used_mib=seen.memory_used_mib)
        if seen.allocation == str(one.pk) and seen.state == "degraded":
            return Trouble(SHARE_DEGRADED)
    return None


def _instant(stored: str | None) -> datetime | None:
    return None if stored is None else datetime.fromisoformat(stored)


def _in_use(one: Any, *, told: bool) -> Trouble | None:
    users = observed.users(
        str(one.pk),
        kind=one.kind,
        instances=_read(one.seen_instances, tuple[wire.Instance, ...]),
        processes=_read(one.seen_processes, tuple[wire.Process, ...]),
    )
    trouble = _read(one.seen_trouble, wire.Trouble)
    if not observed.held_up(users, trouble, one.gpu.generation):
        return None
    shown = None if users is None or not told else tuple(_process(user) for user in users)
    return Trouble(IN_USE, one.overrun_since, shown, told)


def _read(stored: Any, type_: Any) -> Any:
    return None if stored is None else msgspec.convert(stored, type_)


def _process(one: wire.Process) -> Process:
    return Process(one.pid, observed.text(one.name or "", 64), observed.text(one.user or "", 64))
