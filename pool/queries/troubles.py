"""What stands against an allocation on its GPU: lost, not reported, or in use though it is to go.

Which processes those are is for the eyes of its own team and of those who see all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from django.db.models import Case, Exists, F, OuterRef, QuerySet, Subquery, When

from pool.core import observed, wire
from pool.core.states import State
from pool.models import Allocation, Blocker

if TYPE_CHECKING:
    from pool.models import Reservation

GPU_LOST, GPU_UNKNOWN, IN_USE = "gpu_lost", "gpu_unknown", "in_use"


@dataclass(frozen=True, slots=True)
class Process:
    """`name` and `user` are empty where the node could not tell."""

    pid: int
    name: str
    user: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """`code`: gpu_lost, gpu_unknown (missing from its node's reports), in_use.

    `since` None: not known. `processes` None: not known, or, without `told`,
    not to be told to this viewer; () says that the driver lists none.
    """

    code: str
    since: datetime | None = None
    processes: tuple[Process, ...] | None = None
    told: bool = False


def annotated(allocations: QuerySet[Allocation]) -> QuerySet[Allocation]:
    """With what `of` reads, without a statement more; what runs there only where it may matter."""
    blockers = Blocker.objects.filter(gpu=OuterRef("gpu")).order_by("since")
    over = blockers.filter(kind=Blocker.Kind.OVERRUN, span__overlap=OuterRef("span"))
    missing = blockers.filter(kind=Blocker.Kind.UNKNOWN)
    ending = {"reservation__state": State.ENDING, "holds": True}
    return allocations.annotate(
        gpu_lost=F("gpu__state__lost"),
        missing_since=Subquery(missing.values("since")[:1]),
        overrun_since=Subquery(over.values("since")[:1]),
        **{
            f"seen_{name}": Case(When(Exists(over), then=F(f"gpu__state__{name}"), **ending))
            for name in ("instances", "processes", "trouble")
        },
    )


def of(one: Any, row: Reservation, *, told: bool) -> Trouble | None:
    """What stands against `one` (from `annotated`) of `row`; None: nothing that is known."""
    if not one.holds or one.wanted_at is None:
        return None
    if one.gpu_lost:
        return Trouble(GPU_LOST)
    if one.missing_since is not None:
        return Trouble(GPU_UNKNOWN, one.missing_since)
    if row.state != State.ENDING or one.overrun_since is None:
        return None
    return _in_use(one, told=told)


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
