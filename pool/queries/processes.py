"""What runs on a GPU and whose it is, and how busy its instances are, as somebody may know it.

Those who see all see every process. A holder's team sees those of its own
slices; nobody else learns a pid, a user or a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from pool.core import wire
from pool.models import Allocation, Gpu
from pool.queries import reservations, teams
from pool.queries.inventory import node_unknown

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import Team, User


@dataclass(frozen=True, slots=True)
class Running:
    """`span` is its instance's, None on a GPU without MIG. The reservation is its own, or that in whose slice
    it runs. `unattributed`: nobody is known to own it."""

    process: wire.Process
    span: tuple[int, int] | None
    reservation_id: UUID | None
    title: str
    team: str

    @property
    def unattributed(self) -> bool:
        return not self.process.system and self.process.allocation is None


@dataclass(frozen=True, slots=True)
class Activity:
    """How busy an instance is; each a core.health.Reading as JSON, None where it was not measured."""

    start: int
    size: int
    profile: str
    activity: dict[str, Any] | None
    memory_activity: dict[str, Any] | None
    memory_used_mib: int | None
    memory_total_mib: int | None


def of_gpu(gpu: Gpu, viewer: User | AnonymousUser, *, only: Team | None = None) -> tuple[Running, ...] | None:
    """The processes on the GPU that `viewer` may know of, by span and pid; `only`: of this team's slices.

    None: what runs there is not known, because it was not read or its node is not heard from.
    """
    state = getattr(gpu, "state", None)
    if state is None or state.lost or node_unknown(gpu.node):
        return None
    found = list(_all(state, attributed=gpu.node.wire >= wire.WIRE))
    if state.processes is None and not found:
        return None
    told = only is None and teams.sees_all(viewer)
    whose = _whose({place for _, _, place in found if place}, viewer, only)
    shown = (
        Running(one, span, *whose.get(place or "", (None, "", "")))
        for one, span, place in found
        if told or (place in whose and not one.system)
    )
    return tuple(sorted(shown, key=lambda one: (one.span or (0, 0), one.process.pid)))


def _all(
    state: Any, *, attributed: bool
) -> Iterator[tuple[wire.Process, tuple[int, int] | None, str | None]]:
    """Each process once: that of an instance with its span, and whatever else the GPU lists; each with its
    own allocation, else its instance's. An agent that is too old to say whose they are has not `attributed`
    them: what runs in a slice is then its holder's."""
    known = set()
    for one in msgspec.convert(state.instances or [], tuple[wire.Instance, ...]):
        for process in one.processes or ():
            known.add(process.pid)
            place = process.allocation or (None if process.system else one.allocation)
            shown = process if attributed else msgspec.structs.replace(process, allocation=place)
            yield shown, (one.start, one.size), place
    for process in msgspec.convert(state.processes or [], tuple[wire.Process, ...]):
        if process.pid not in known:
            yield process, None, process.allocation


def _whose(
    allocations: set[str], viewer: User | AnonymousUser, only: Team | None
) -> dict[str, tuple[UUID, str, str]]:
    """Allocation id -> reservation, title and team: of the viewer's own teams, or all for who sees all."""
    ids = [UUID(one) for one in allocations]
    if not ids:
        return {}
    seen = reservations.visible_to(viewer).filter(allocations__in=ids)
    mine = seen.filter(told=True)  # type: ignore[misc] # an annotation of visible_to
    mine = mine if only is None else mine.filter(team=only)
    rows = Allocation.objects.filter(pk__in=ids, left_at=None, reservation__in=mine.values("pk"))
    names = rows.values_list("pk", "reservation_id", "reservation__title", "reservation__team__name")
    return {str(pk): (reservation, title, team) for pk, reservation, title, team in names}


def activities(gpu: Gpu) -> tuple[Activity, ...]:
    """Each instance by its place with how busy it is; () where its node is not heard from."""
    state = getattr(gpu, "state", None)
    if state is None or state.lost or node_unknown(gpu.node):
        return ()
    instances = msgspec.convert(state.instances or [], tuple[wire.Instance, ...])
    return tuple(_activity(one) for one in sorted(instances, key=lambda one: one.start))


def _activity(one: wire.Instance) -> Activity:
    return Activity(
        start=one.start,
        size=one.size,
        profile=one.profile or "",
        activity=one.activity_pct,
        memory_activity=one.memory_activity_pct,
        memory_used_mib=one.memory_used_mib,
        memory_total_mib=one.memory_total_mib,
    )
