"""One GPU along its memory slices: what it shall hold, what it was seen to hold, and who holds it.

Who holds a slice is told only to those who may see that reservation; for the
others it is busy. Whose processes are in the way is told to those who see all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from pool.core import wire
from pool.models import Allocation, Blocker, Gpu
from pool.queries import clock, reservations, teams

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import Team, User


@dataclass(frozen=True, slots=True)
class Cell:
    """A span on a GPU's grid. `kind`: mig, gpu (the whole), share (of all of it), or a blocker's kind.

    `owned` False: an instance that the agent did not make. `busy` with no
    `reservation_id`: somebody's, whom the viewer may not know.
    """

    start: int
    size: int
    kind: str
    profile: str = ""
    mig_uuid: str = ""
    owned: bool = True
    busy: bool = False
    reservation_id: UUID | None = None
    title: str = ""
    team: str = ""
    detail: str = ""
    share: wire.Share | None = None
    allocation: str = ""


@dataclass(frozen=True, slots=True)
class GpuGrid:
    """A GPU along its memory slices. `observed` None: not known; `wanted` None: never commanded."""

    grid: int
    use: str
    mig: bool | None
    wanted: tuple[Cell, ...] | None
    observed: tuple[Cell, ...] | None
    blockers: tuple[Cell, ...]


def gpu_grid(gpu: Gpu, viewer: User | AnonymousUser | None = None, *, only: Team | None = None) -> GpuGrid:
    """What the GPU shall hold, what it was last seen to hold, and what is in the way.

    `only`: whoever asks may know of this team's holdings alone.
    """
    return gpu_grids([gpu], viewer, only=only)[gpu.pk]


def gpu_grids(
    gpus: Collection[Gpu], viewer: User | AnonymousUser | None = None, *, only: Team | None = None
) -> dict[int, GpuGrid]:
    """As `gpu_grid`, of many GPUs (by id) with one reading of who holds them."""
    layouts = {gpu.pk: msgspec.convert(gpu.wanted, wire.Layout) if gpu.wanted else None for gpu in gpus}
    allocations = {held.allocation for layout in layouts.values() if layout for held in layout.held}
    for gpu in gpus:
        allocations |= {one["allocation"] for one in _instances(gpu) or () if one["allocation"]}
    known = _holders(allocations, viewer, only)
    told = viewer is not None and only is None and teams.sees_all(viewer)
    return {gpu.pk: _grid(gpu, layouts[gpu.pk], known, told=told) for gpu in gpus}


def _instances(gpu: Gpu) -> list[dict[str, Any]] | None:
    """What was last seen; None where that is not known."""
    state = getattr(gpu, "state", None)
    return None if state is None or state.lost else state.instances


def _grid(gpu: Gpu, layout: wire.Layout | None, known: _Holders, *, told: bool) -> GpuGrid:
    state = getattr(gpu, "state", None)
    instances = _instances(gpu)
    mig = state is not None and state.mig is True
    return GpuGrid(
        grid=gpu.grid,
        use=gpu.use,
        mig=None if state is None else state.mig,
        wanted=tuple(_wanted_cell(one, known) for one in layout.held) if layout else None,
        observed=None if instances is None else tuple(_observed_cell(one, known) for one in instances),
        blockers=tuple(_blocker_cell(one, told=told, mig=mig) for one in gpu.blockers.all()),
    )


def _blocker_cell(one: Blocker, *, told: bool, mig: bool) -> Cell:
    """In MIG mode foreign use is an instance, named by its profile; else it is processes with their users."""
    names_users = one.kind == Blocker.Kind.OVERRUN or (one.kind == Blocker.Kind.FOREIGN and not mig)
    detail = one.detail if told or not names_users else ""
    return Cell(one.span.lower, one.span.upper - one.span.lower, one.kind, owned=False, detail=detail)


_Holders = dict[str, tuple[UUID, str, str]]


def _holders(
    allocations: Iterable[str], viewer: User | AnonymousUser | None, only: Team | None = None
) -> _Holders:
    """Allocation id -> reservation, title and team, of those that the viewer may see."""
    ids = [UUID(one) for one in allocations if _is_uuid(one)]
    if viewer is None or not ids:
        return {}
    seen = reservations.visible_to(viewer).filter(allocations__in=ids).values("pk")
    # An instance made for what was given up is nobody's: it stays busy and nameless until it is gone.
    rows = Allocation.objects.filter(pk__in=ids, left_at=None, reservation__in=seen)
    rows = rows if only is None else rows.filter(reservation__team=only)
    names = rows.values_list("pk", "reservation_id", "reservation__title", "reservation__team__name")
    return {str(pk): (reservation, title, team) for pk, reservation, title, team in names}


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _wanted_cell(held: wire.Held, known: _Holders) -> Cell:
    reservation, title, team = known.get(held.allocation, (None, "", ""))
    kind = "share" if held.share is not None else "mig" if held.profile is not None else "gpu"
    return Cell(
        held.start,
        held.size,
        kind,
        profile=held.profile or "",
        busy=True,
        reservation_id=reservation,
        title=title,
        team=team,
        share=held.share,
        allocation=held.allocation,
    )


def _observed_cell(one: dict[str, object], known: _Holders) -> Cell:
    instance = msgspec.convert(one, wire.Instance)
    reservation, title, team = known.get(instance.allocation or "", (None, "", ""))
    return Cell(
        instance.start,
        instance.size,
        "mig",
        profile=instance.profile or "",
        mig_uuid=instance.mig_uuid or "",
        owned=instance.owned,
        busy=instance.allocation is not None,
        reservation_id=reservation,
        title=title,
        team=team,
    )


@dataclass(frozen=True, slots=True)
class Holding:
    """A booking on a GPU, now or later; nameless for those who may not see it."""

    start: datetime
    end: datetime | None
    first: int
    size: int
    profile: str
    reservation_id: UUID | None
    title: str
    team: str


def holdings(gpu: Gpu, viewer: User | AnonymousUser, most: int = 100) -> list[Holding]:
    """What holds this GPU from now on, by time."""
    rows = Allocation.objects.filter(gpu=gpu, holds=True).order_by("blocked", "span")
    rows = rows.filter(blocked__endswith__gt=clock.now()) | rows.filter(blocked__endswith=None)
    found = list(rows[:most])
    known = _holders([str(row.pk) for row in found], viewer)
    return [_holding(row, known) for row in found]


def _holding(row: Allocation, known: _Holders) -> Holding:
    reservation, title, team = known.get(str(row.pk), (None, "", ""))
    return Holding(
        start=row.blocked.lower,
        end=row.blocked.upper,
        first=row.span.lower,
        size=row.span.upper - row.span.lower,
        profile=row.profile,
        reservation_id=reservation,
        title=title,
        team=team,
    )


# --- Before it is managed -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What switching `managed` on would do. `against`: why it would be refused, None if it would not.

    `would_destroy` has only instances that the agent itself made earlier;
    `foreign` ones stay and block their spans.
    """

    use: str
    mode_change: bool | None
    would_create: tuple[Cell, ...]
    would_destroy: tuple[Cell, ...]
    foreign: tuple[Cell, ...]
    against: str | None


def preview_manage(gpu: Gpu) -> Preview:
    """What managing this GPU would change on it, by its last report."""
    state = getattr(gpu, "state", None)
    instances = state.instances or [] if state is not None else []
    cells = [_observed_cell(one, {}) for one in instances]
    wanted = defaultdict(list)
    for row in Allocation.objects.filter(gpu=gpu, holds=True, wanted_at__isnull=False):
        size = row.span.upper - row.span.lower
        wanted[row.span.lower, size].append(Cell(row.span.lower, size, row.kind, profile=row.profile))
    there = {(cell.start, cell.size) for cell in cells if cell.owned}
    mode = None if state is None or state.mig is None else state.mig != (gpu.use == Gpu.Use.MIG)
    return Preview(
        use=gpu.use,
        mode_change=mode,
        would_create=tuple(cell for span, new in wanted.items() if span not in there for cell in new),
        would_destroy=tuple(c for c in cells if c.owned and (c.start, c.size) not in wanted),
        foreign=tuple(c for c in cells if not c.owned),
        against=against_managing(gpu, gpu.use),
    )


def against_managing(gpu: Gpu, use: str) -> str | None:
    """Why this GPU cannot be managed for `use`, the first that holds.

    retired, not_reported, lost, managed_elsewhere (its node has another that
    gives its GPUs out), not_mig_capable; for shares update_needed (its agent
    knows none) and not_offered (its node cannot keep them apart so).
    """
    state = getattr(gpu, "state", None)
    if gpu.retired_at is not None:
        return "retired"
    if state is None or state.received_at is None:
        return "not_reported"
    if state.lost:
        return "lost"
    if managed_elsewhere(gpu):
        return "managed_elsewhere"
    return against_use(gpu, use, gpu.sharing)


def managed_elsewhere(gpu: Gpu) -> bool:
    """Whether something else on its node gives this GPU out, and no operator has taken it from that."""
    return bool(gpu.node.managed_by) and not gpu.excluded


def against_use(gpu: Gpu, use: str, sharing: str) -> str | None:
    """Why a GPU that is there cannot be used so: not_mig_capable, update_needed, not_offered."""
    if use == Gpu.Use.MIG and not gpu.mig_capable:
        return "not_mig_capable"
    shares = use == Gpu.Use.SHARE or (use == Gpu.Use.AUTO and bool(sharing))
    if shares and gpu.node.wire < wire.WIRE:
        return "update_needed"
    return "not_offered" if shares and sharing not in gpu.node.sharing_offered else None
