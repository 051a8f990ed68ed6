"""A GPU as its pages draw it: rows of the memory grid, readings, and what managing it would change.

Nothing here is made up: None stays "not known" or "not measured".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _

from pool.queries import clock
from pool.queries import inventory as queries
from pool.queries.inventory import Cell, GpuGrid, Preview
from portal.web import healthwords, svg, words
from portal.web.tags import lasts, slices

if TYPE_CHECKING:
    from pool.models import Gpu

Mine = frozenset[UUID]


@dataclass(frozen=True, slots=True)
class Tile:
    """One reading; `value` "" is not measured, `why` says why if that is known."""

    name: str
    value: str
    unit: str
    span: str
    why: str
    bar: tuple[svg.Part, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A span in the table under the grid."""

    span: tuple[int, int]
    what: str
    whose: str
    href: str
    observed: str
    mig_uuid: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU on its node's page. `why`: what keeps bookings off it; "" when nothing does."""

    row: Gpu
    why: str
    drawing: svg.Drawing
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """A GPU on its own page."""

    row: Gpu
    why: str
    drawing: svg.Drawing
    tiles: tuple[Tile, ...]
    places: tuple[Place, ...]
    mode: str
    unknown_since: datetime | None
    sampled_at: datetime | None
    trouble: Mapping[str, Any] | None
    applied: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """What managing the GPU would do to it, in words."""

    create: tuple[str, ...]
    destroy: tuple[str, ...]
    kept: tuple[str, ...]
    mode: str
    against: str


def card(gpu: Gpu, grid: GpuGrid, mine: Mine) -> Card:
    """What is on it now, in one row: what was seen, under what is in the way."""
    seen = _marks(grid.observed, mine)
    if seen is not None and gpu.use != "mig":
        seen = seen + (_marks(grid.wanted, mine) or [])
    marks = None if seen is None else seen + (_marks(grid.blockers, mine) or [])
    row = _row(gpu, "", "", grid, marks)
    name = f"GPU {gpu.index}"
    picture = svg.drawing(f"gpu-{gpu.index}", name, grid.grid, [row], ticked=gpu.use == "mig")
    return Card(gpu, _why(gpu), picture, tiles(gpu))


def whole(gpu: Gpu, grid: GpuGrid, mine: Mine, *, told: bool) -> Whole:
    """`told`: the viewer may read the node's own words, which may name people's accounts."""
    state = getattr(gpu, "state", None)
    lines = [_wanted(gpu, grid, mine), _observed(gpu, grid, mine)]
    unknown = queries.node_unknown(gpu.node)
    return Whole(
        row=gpu,
        why=_why(gpu),
        drawing=svg.drawing("gpu", f"GPU {gpu.index}", grid.grid, lines, ticked=gpu.use == "mig"),
        tiles=tiles(gpu),
        places=_places(
            grid, mine, {} if state is None else {s["allocation"]: s["state"] for s in state.shares}
        ),
        mode=_mode(gpu),
        unknown_since=(gpu.node.unknown_since or gpu.node.received_at) if unknown else None,
        sampled_at=state.sampled_at if state else None,
        trouble=_trouble(state, told=told),
        applied=state.generation if state else None,
    )


def _trouble(state: Any, *, told: bool) -> dict[str, Any] | None:
    """What the agent could not do; its own words and who is in the way only for who sees all."""
    if state is None or state.trouble is None:
        return None
    said = state.trouble if told else {}
    holders = [_holder(one) for one in said.get("holders") or ()]
    return {"code": state.trouble["code"], "detail": said.get("detail") or "", "holders": holders}


def _holder(one: Mapping[str, Any]) -> str:
    said = {"name": one.get("name") or _("a process"), "pid": one["pid"], "user": one.get("user")}
    if said["user"]:
        return _("%(name)s (pid %(pid)s, user %(user)s)") % said
    return _("%(name)s (pid %(pid)s)") % said


def _why(gpu: Gpu) -> str:
    return queries.why_unusable(gpu) or ""


# --- Rows of the grid ---------------------------------------------------------


def _wanted(gpu: Gpu, grid: GpuGrid, mine: Mine) -> svg.Line:
    note = _("generation %(n)s") % {"n": gpu.generation} if grid.wanted is not None else _("never commanded")
    return _row(gpu, _("Wanted"), note, grid, _marks(grid.wanted, mine) or [])


def _observed(gpu: Gpu, grid: GpuGrid, mine: Mine) -> svg.Line:
    state = getattr(gpu, "state", None)
    marks = _marks(grid.observed, mine)
    if marks is not None:
        if gpu.use != "mig" and state is not None and state.held:
            # Whole GPUs and shares have no instances; the agent says which bookings are in force.
            in_force = [cell for cell in grid.wanted or () if cell.allocation in state.held]
            marks += _marks(in_force, mine) or []
        marks += _marks(grid.blockers, mine) or []
    note = ""
    if state is not None and state.received_at is not None:
        note = _("%(time)s ago") % {"time": lasts(clock.real_now() - state.received_at)}
    return _row(gpu, _("Observed"), note, grid, marks)


def _row(gpu: Gpu, name: str, note: str, grid: GpuGrid, marks: list[svg.Mark] | None) -> svg.Line:
    """Marks on the slices of the grid; shares side by side on the memory, as wide as what each has of it."""
    total = gpu.memory_mib
    if gpu.use != "share" or marks is None or not total:
        return svg.line(name, note, grid.grid, marks)
    placed, at = [], 0
    for mark in marks:
        if mark.memory_mib:
            placed.append(replace(mark, start=at, size=min(mark.memory_mib, total - at)))
            at = min(total, at + mark.memory_mib)
        else:
            placed.append(replace(mark, start=0, size=total, place=_("the whole GPU")))
    return svg.line(name, note, total, placed)


def _marks(cells: Iterable[Cell] | None, mine: Mine) -> list[svg.Mark] | None:
    return None if cells is None else [_mark(cell, mine) for cell in cells]


def _mark(cell: Cell, mine: Mine) -> svg.Mark:
    if cell.kind in words.BLOCKERS:
        tone = "unknown" if cell.kind == "unknown" else "blocked"
        return svg.Mark(cell.start, cell.size, tone, str(words.BLOCKERS[cell.kind]), cell.detail)
    label = cell.profile or (_("whole GPU") if cell.kind == "gpu" else _("unnamed slice"))
    tone, note = _whose(cell, mine)
    href = reverse("reservation", args=[cell.reservation_id]) if cell.reservation_id else ""
    if cell.share is None:
        return svg.Mark(cell.start, cell.size, tone, label, note, href)
    share = cell.share
    label = words.share(share.memory_mib, share.compute_pct, share.limit_pct)
    return svg.Mark(cell.start, cell.size, tone, label, note, href, _("share"), share.memory_mib)


def _whose(cell: Cell, mine: Mine) -> tuple[str, str]:
    """Tone and holder of a span, as far as the viewer may know."""
    if not cell.owned:
        return "foreign", _("not made by gpupool")
    if cell.reservation_id is None:
        return "busy", _("busy") if cell.busy else _("being taken down")
    return ("mine", _("yours")) if cell.reservation_id in mine else ("team", cell.team)


def _share_states(state: Any) -> dict[str, str]:
    return {} if state is None else {one["allocation"]: one["state"] for one in state.shares}


def _places(grid: GpuGrid, mine: Mine, shares: Mapping[str, str]) -> tuple[Place, ...]:
    """Each span once: what is wanted, with what was seen there; what is only there; what is in the way.

    `shares`: by allocation, how the node says that its share is.
    """
    seen = {(c.start, c.size): c for c in grid.observed or ()}
    rows = []
    for cell in grid.wanted or ():
        found = seen.pop((cell.start, cell.size), None)
        observed = _("not known") if grid.observed is None else _("not there")
        if cell.kind == "gpu":
            observed = ""
        elif cell.kind == "share":
            observed = str(healthwords.SHARES.get(shares.get(cell.allocation, ""), _("not there")))
        rows.append(_place(cell, mine, _("there") if found else observed, found.mig_uuid if found else ""))
    rows += [_place(cell, mine, _("there, not wanted"), cell.mig_uuid) for cell in seen.values()]
    rows += [_place(cell, mine, cell.detail, "") for cell in grid.blockers]
    return tuple(sorted(rows, key=lambda row: row.span))


def _place(cell: Cell, mine: Mine, observed: str, mig_uuid: str) -> Place:
    mark = _mark(cell, mine)
    whose = "" if mark.hatched else mark.note
    return Place((cell.start, cell.size), mark.label, whose, mark.href, observed, mig_uuid, mark.place)


# --- Readings -----------------------------------------------------------------


def tiles(gpu: Gpu) -> tuple[Tile, ...]:
    """The readings of the last report; none of a GPU that is not heard any more."""
    state = getattr(gpu, "state", None)
    readings: Mapping[str, Any] = state.readings if state is not None and queries.is_heard(gpu) else {}
    while_mig = _("not available while MIG is on") if state is not None and state.mig else ""
    total = gpu.memory_mib / 1024 if gpu.memory_mib else 0
    measured = (
        _tile(_("Utilisation"), readings.get("utilization_pct"), "%", whole=100, why=while_mig),
        _tile(_("Memory used"), readings.get("memory_used_mib"), "GiB", whole=total, divide=1024),
        _tile(_("Power"), readings.get("power_w"), "W"),
        _tile(_("Temperature"), readings.get("temperature_c"), "°C"),
    )
    if "activity_pct" not in readings:
        return measured
    return (*measured, _tile(_("Engines busy"), readings["activity_pct"], "%", whole=100))


def _tile(
    name: str,
    reading: Mapping[str, Any] | None,
    unit: str,
    *,
    whole: float = 0,
    divide: int = 1,
    why: str = "",
) -> Tile:
    last = (reading or {}).get("last")
    if reading is None or last is None:
        return Tile(name, "", unit, "", why, ())
    shown = {
        key: f"{reading[key] / divide:.3g}" for key in ("last", "min", "max") if reading.get(key) is not None
    }
    span = f"{shown['min']}–{shown['max']} {unit}" if {"min", "max"} <= shown.keys() else ""
    return Tile(
        name, shown["last"], unit, span, "", svg.bar(whole, [("used", last / divide)]) if whole else ()
    )


def _mode(gpu: Gpu) -> str:
    """MIG mode in words, with a change that waits for a reset."""
    state = getattr(gpu, "state", None)
    if gpu.mig_capable is False:
        return _("this GPU cannot do MIG")
    if state is None or state.mig is None:
        return _("not known")
    now = _("on") if state.mig else _("off")
    if state.mig_pending is None or state.mig_pending == state.mig:
        return now
    change = _("off after a reset") if state.mig else _("on after a reset")
    return f"{now}, {change}"


# --- Before it is managed -------------------------------------------------------


def preview(seen: Preview) -> Change:
    mode = ""
    if seen.mode_change:
        mode = _("MIG mode: switched on") if seen.use == "mig" else _("MIG mode: switched off")
    return Change(
        create=_listed(seen.would_create),
        destroy=_listed(seen.would_destroy),
        kept=_listed(seen.foreign),
        mode=mode,
        against=str(words.AGAINST.get(seen.against, seen.against)) if seen.against else "",
    )


def _listed(cells: Iterable[Cell]) -> tuple[str, ...]:
    return tuple(f"{cell.profile or _('whole GPU')} ({slices((cell.start, cell.size))})" for cell in cells)
