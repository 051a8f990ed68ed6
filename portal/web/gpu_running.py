"""What runs on a GPU, how busy its instances are and how the card is, as its page tells it.

Nothing here is made up: what was not measured stays "not measured". Who may
know of a process is decided in queries.processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pool.queries import faults, processes
from pool.queries.faults import FaultView
from pool.queries.processes import Activity, Running
from portal.web import healthwords, words

if TYPE_CHECKING:
    from pool.models import Gpu, User


@dataclass(frozen=True, slots=True)
class Process:
    """A row of the table of processes; "" is what the node could not tell."""

    pid: int
    what: str
    command: str
    user: str
    where: str
    memory_mib: int | None
    since: datetime | None
    whose: str
    href: str
    tone: str


@dataclass(frozen=True, slots=True)
class Instance:
    """A row of the table of instances. Percentages None: not measured."""

    span: tuple[int, int]
    profile: str
    activity: float | None
    memory_activity: float | None
    source: str
    memory_used_mib: int | None
    memory_total_mib: int | None


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the card, in words."""

    view: FaultView
    what: str
    action: str


@dataclass(frozen=True, slots=True)
class Seen:
    """`processes` None: what runs there is not known."""

    processes: tuple[Process, ...] | None
    instances: tuple[Instance, ...]
    facts: tuple[tuple[str, str], ...]
    faults: tuple[Fault, ...]
    may_return: bool


def of_gpu(gpu: Gpu, viewer: User, *, heard: bool) -> Seen:
    """`heard`: its node is, so that what was measured is of now."""
    found = processes.of_gpu(gpu, viewer)
    known = faults.of_gpu(gpu)
    state = getattr(gpu, "state", None)
    return Seen(
        processes=None if found is None else tuple(_process(one) for one in found),
        instances=tuple(_instance(one) for one in processes.activities(gpu)),
        facts=_facts(gpu, state.health if state is not None and heard else {}),
        faults=tuple(_fault(one) for one in known),
        may_return=faults.may_return(known),
    )


def _fault(view: FaultView) -> Fault:
    return Fault(view, words.fault(view.kind, view.xid), str(words.ACTIONS.get(view.action, view.action)))


# --- What runs ----------------------------------------------------------------


def _process(one: Running) -> Process:
    process = one.process
    whose, href, tone = _whose(one)
    session = healthwords.SESSIONS.get(process.session or "")
    sessions = [str(session)] if session else []
    container = [_("container %(name)s") % {"name": process.container[:12]}] if process.container else []
    return Process(
        pid=process.pid,
        what=process.name or _("process"),
        command=process.command or "",
        user=process.user or ("" if process.uid is None else str(process.uid)),
        where=", ".join(sessions + container),
        memory_mib=process.memory_mib,
        since=process.started_at,
        whose=whose,
        href=href,
        tone=tone,
    )


def _whose(one: Running) -> tuple[str, str, str]:
    """Whose it is, where that can be read about, and the tone of its pill."""
    if one.process.system:
        return _("the machine's own"), "", "quiet"
    if one.unattributed:
        return _("nobody's"), "", "warn"
    if one.reservation_id is not None:
        href = reverse("reservation", args=[one.reservation_id])
        return one.title or one.team, href, "info"
    return _("an earlier booking's"), "", "warn"


def _instance(one: Activity) -> Instance:
    activity, memory = one.activity or {}, one.memory_activity or {}
    source = activity.get("source") or memory.get("source") or ""
    return Instance(
        span=(one.start, one.size),
        profile=one.profile or _("unnamed slice"),
        activity=activity.get("mean"),
        memory_activity=memory.get("mean"),
        source=str(healthwords.SOURCES.get(source, source)),
        memory_used_mib=one.memory_used_mib,
        memory_total_mib=one.memory_total_mib,
    )


# --- How the card is ------------------------------------------------------------


def _facts(gpu: Gpu, health: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Name and words of what is known; what is not known is left out."""
    rows = [
        (_("Clocks"), _clocks(health)),
        (_("Clocks held down by"), _throttle(health.get("throttle"))),
        (_("Memory errors (ECC)"), _ecc(health)),
        (_("Replaced rows of memory"), _remapped(health.get("remapped"))),
        (_("NVLink fabric"), _fabric(health)),
        (_("Takes"), _named(healthwords.COMPUTE_MODES, health.get("compute_mode"))),
        (_("NUMA node"), "" if gpu.numa is None else str(gpu.numa)),
        (_("Links"), _links(gpu)),
    ]
    return tuple((name, said) for name, said in rows if said)


def _named(table: Mapping[str, Any], code: str | None) -> str:
    return "" if not code else str(table.get(code, code))


def _clocks(health: Mapping[str, Any]) -> str:
    parts = []
    if health.get("sm_clock_mhz") is not None:
        parts.append(_("%(mhz)s MHz") % {"mhz": health["sm_clock_mhz"]})
    if health.get("memory_clock_mhz") is not None:
        parts.append(_("memory %(mhz)s MHz") % {"mhz": health["memory_clock_mhz"]})
    return ", ".join(parts)


def _throttle(reasons: list[str] | None) -> str:
    if reasons is None:
        return ""
    return ", ".join(_named(healthwords.THROTTLE, one) for one in reasons) or _("nothing")


def _ecc(health: Mapping[str, Any]) -> str:
    parts = []
    if health.get("ecc_corrected") is not None:
        parts.append(_("%(n)s corrected") % {"n": health["ecc_corrected"]})
    if health.get("ecc_uncorrected") is not None:
        parts.append(_("%(n)s not corrected") % {"n": health["ecc_uncorrected"]})
    return ", ".join(parts)


def _remapped(rows: Mapping[str, Any] | None) -> str:
    if rows is None:
        return ""
    counts = [rows[name] for name in ("correctable", "uncorrectable") if rows.get(name) is not None]
    parts = [str(sum(counts))] if counts else []
    if rows.get("pending"):
        parts.append(_("one waits for a reset"))
    if rows.get("failure"):
        parts.append(_("replacing one failed"))
    return ", ".join(parts)


def _fabric(health: Mapping[str, Any]) -> str:
    both = (_named(healthwords.FABRIC, health.get(name)) for name in ("fabric_state", "fabric_health"))
    return ", ".join(one for one in both if one)


def _links(gpu: Gpu) -> str:
    if gpu.links is None:
        return ""
    if not gpu.links:
        return _("none")
    counted = [_link(one) for one in gpu.links if one["kind"] != "p2p"]
    peers = sum(one["kind"] == "p2p" for one in gpu.links)
    if peers:
        said = ngettext("reads the memory of %(n)s GPU", "reads the memory of %(n)s GPUs", peers)
        counted.append(said % {"n": peers})
    return "; ".join(counted)


def _link(one: Mapping[str, Any]) -> str:
    name = _named(healthwords.LINKS, one["kind"])
    peer = f" {one['peer']}" if one["peer"] else ""
    return f"{one['count']} × {name}{peer}" if one["count"] is not None else f"{name}{peer}"
