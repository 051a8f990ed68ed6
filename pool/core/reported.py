"""The values of a report about one GPU, each without its nonsense; observed.py puts them together.

A value that makes no sense becomes None ("not measured") and is counted; texts
are cut and lose what cannot be printed, which counts as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from pool.core import mig, wire
from pool.core.health import Reading, clean_int, clean_window

#: Beyond these a report is not read further: no real node comes near.
MOST_ROWS = 512
MOST_TEXT = 200
#: A GPU has at most 48 clients of MPS, and a node 36 links.
MOST_SHARES = 64
MOST_LINKS = 64

_MIG_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,90}", re.ASCII)
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_ALLOCATION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
#: A word of ours, of the driver's or of a service on the node.
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)

#: It becomes part of lines copied into a shell; a colon would end it in an option of Docker.
_FOLDER = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*){1,16}", re.ASCII)

_BIGGEST = 2**53
_SESSIONS = frozenset({"terminal", "notebook"})
_BY = frozenset({"cdi", "label", "environment", "user", "adopted"})
_SHARE_STATES = frozenset({"ok", "degraded", "over"})
#: Highest numbers that make sense: MHz, and counters.
_MOST_MHZ = 20_000


class Count:
    """Passes a cleaned value on and adds up what was dropped."""

    def __init__(self) -> None:
        self.dropped = 0

    def __call__(self, cleaned: tuple[Any, int]) -> Any:
        self.dropped += cleaned[1]
        return cleaned[0]

    def only(self, value: Any, fits: bool) -> Any:
        """The value if it is None or `fits`; else None, and counted."""
        if value is None or fits:
            return value
        self.dropped += 1
        return None


def text(value: str, most: int = MOST_TEXT) -> str:
    """At most `most` characters, the printable ones: no NUL for PostgreSQL, no turned direction on a page."""
    value = value[:most]
    return value if value.isprintable() else "".join(one for one in value if one.isprintable())


def is_allocation(value: str) -> bool:
    """Whether it is written as ids of allocations are."""
    return _ALLOCATION.fullmatch(value) is not None


def is_gpu(value: str) -> bool:
    """Whether a GPU may be called so: it becomes part of addresses, and of lines copied into a shell."""
    return _UUID.fullmatch(value) is not None


def words(values: Iterable[str], most: int = 16, known: frozenset[str] | None = None) -> list[str]:
    """The first `most` different values that are words, sorted; with `known` only those."""
    found = {value for value in list(values)[:most] if _WORD.fullmatch(value)}
    return sorted(found if known is None else found & known)


def word(value: str | None) -> str:
    """The value if it is a word, else empty."""
    return value if value is not None and _WORD.fullmatch(value) else ""


def folder(value: str | None) -> str:
    """The value if it is the plain path of a folder, else empty."""
    fits = value is not None and len(value) <= MOST_TEXT and _FOLDER.fullmatch(value)
    return value if fits and value else ""


# --- Instances ------------------------------------------------------------------


def instances(
    raw: tuple[wire.Instance, ...] | None, grid: int, count: Count
) -> tuple[tuple[wire.Instance, ...] | None, bool]:
    """The instances that lie on the grid, and whether some made no sense."""
    if raw is None:
        return None, False
    kept = []
    for one in raw[:MOST_ROWS]:
        if one.start < 0 or one.size < 1 or one.start + one.size > grid:
            count.dropped += 1
            continue
        kept.append(_instance(one, count))
    return tuple(kept), len(kept) < len(raw)


def _instance(one: wire.Instance, count: Count) -> wire.Instance:
    allocation = one.allocation
    new = {
        "mig_uuid": count.only(one.mig_uuid, _MIG_UUID.fullmatch(one.mig_uuid or "") is not None),
        "allocation": count.only(allocation, allocation is not None and is_allocation(allocation)),
        "memory_used_mib": count(clean_int(one.memory_used_mib, 0, mig.MAX_MEMORY_MIB)),
        "memory_total_mib": count(clean_int(one.memory_total_mib, 0, mig.MAX_MEMORY_MIB)),
        "sm": count(clean_int(one.sm, 0, 4096)),
        "activity_pct": count(clean_window(one.activity_pct, "utilization")),
        "memory_activity_pct": count(clean_window(one.memory_activity_pct, "utilization")),
        "processes": processes(one.processes, count),
    }
    cleaned: wire.Instance = _with(one, new)
    return cleaned


def _with(one: Any, new: Mapping[str, Any]) -> Any:
    """The struct with what differs; most often nothing does, and then it is itself."""
    changed = {name: value for name, value in new.items() if value is not getattr(one, name)}
    return msgspec.structs.replace(one, **changed) if changed else one


# --- Processes ------------------------------------------------------------------


def processes(raw: tuple[wire.Process, ...] | None, count: Count) -> tuple[wire.Process, ...] | None:
    """The processes with what makes sense of each; one that has no proper pid is left out."""
    if not raw:
        return raw
    kept = tuple(_process(one, count) for one in raw[:MOST_ROWS] if 0 < one.pid < 2**31)
    count.dropped += min(len(raw), MOST_ROWS) - len(kept)
    return kept


def _process(one: wire.Process, count: Count) -> wire.Process:
    allocation = one.allocation
    new = {
        "uid": count(clean_int(one.uid, 0, 2**32 - 1)),
        "user": _shown(one.user, 64),
        "name": _shown(one.name, 64),
        "memory_mib": count(clean_int(one.memory_mib, 0, mig.MAX_MEMORY_MIB)),
        "started": _shown(one.started, 64),
        "started_at": _moment(one.started_at, count),
        "command": _shown(one.command, MOST_TEXT),
        "container": _shown(one.container, 80),
        "cpu_s": count(_seconds(one.cpu_s)),
        "read_bytes": count(clean_int(one.read_bytes, 0, _BIGGEST)),
        "written_bytes": count(clean_int(one.written_bytes, 0, _BIGGEST)),
        "session": count.only(one.session, one.session in _SESSIONS),
        "first_busy_at": _moment(one.first_busy_at, count),
        "allocation": count.only(allocation, allocation is not None and is_allocation(allocation)),
        "by": count.only(one.by, one.by in _BY),
    }
    cleaned: wire.Process = _with(one, new)
    return cleaned


def _shown(value: str | None, most: int) -> str | None:
    if value is None or (len(value) <= most and value.isprintable()):
        return value
    return text(value, most)


def _moment(value: datetime | None, count: Count) -> datetime | None:
    moment: datetime | None = count.only(value, value is not None and value.tzinfo is not None)
    return moment


def _seconds(value: object) -> tuple[float | None, int]:
    if value is None:
        return None, 0
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _BIGGEST
    return (float(value), 0) if fits else (None, 1)  # type: ignore[arg-type]


# --- Shares and health ------------------------------------------------------------


def shares(raw: tuple[wire.ShareSeen, ...], count: Count) -> tuple[wire.ShareSeen, ...]:
    """Each allocation's share once, in a state that is known."""
    found: dict[str, wire.ShareSeen] = {}
    for one in raw[:MOST_SHARES]:
        if not is_allocation(one.allocation) or one.state not in _SHARE_STATES or one.allocation in found:
            count.dropped += 1
            continue
        used = count(clean_int(one.memory_used_mib, 0, mig.MAX_MEMORY_MIB))
        found[one.allocation] = _with(one, {"memory_used_mib": used, "detail": _shown(one.detail, MOST_TEXT)})
    return tuple(found.values())


def health(gpu: wire.GpuReport, count: Count) -> dict[str, Any]:
    """How the card is, as rows keep it; what is not known is not in it."""
    found = {
        "sm_clock_mhz": count(clean_int(gpu.sm_clock_mhz, 0, _MOST_MHZ)),
        "memory_clock_mhz": count(clean_int(gpu.memory_clock_mhz, 0, _MOST_MHZ)),
        "throttle": None if gpu.throttle is None else words(gpu.throttle),
        "ecc_corrected": count(clean_int(gpu.ecc_corrected, 0, _BIGGEST)),
        "ecc_uncorrected": count(clean_int(gpu.ecc_uncorrected, 0, _BIGGEST)),
        "remapped": _remapped(gpu.remapped, count),
        "fabric_state": word(gpu.fabric_state) or None,
        "fabric_health": word(gpu.fabric_health) or None,
        "compute_mode": word(gpu.compute_mode) or None,
        "reset": reset(gpu, count) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _remapped(raw: wire.Remapped | None, count: Count) -> dict[str, Any] | None:
    if raw is None:
        return None
    return {
        "correctable": count(clean_int(raw.correctable, 0, _BIGGEST)),
        "uncorrectable": count(clean_int(raw.uncorrectable, 0, _BIGGEST)),
        "pending": raw.pending,
        "failure": raw.failure,
    }


def reset(gpu: wire.GpuReport, count: Count) -> int:
    """The newest reset that was carried out; 0 also for a number that makes no sense."""
    return count(clean_int(gpu.reset, 0, 2**31 - 1)) or 0


def links(raw: tuple[wire.Link, ...] | None, count: Count) -> list[dict[str, Any]] | None:
    """The NVLinks to each neighbour, as rows keep them, in a fixed order."""
    if raw is None:
        return None
    found = []
    for one in raw[:MOST_LINKS]:
        number = count(clean_int(one.count, 0, 1024))
        if (one.peer is not None and not is_gpu(one.peer)) or not _WORD.fullmatch(one.kind):
            count.dropped += 1
            continue
        found.append({"peer": one.peer, "kind": one.kind, "count": number})
    return sorted(found, key=lambda link: (link["kind"], link["peer"] or ""))


def readings(gpu: wire.GpuReport, memory_mib: int | None, count: Count) -> dict[str, Reading]:
    """The windows that were measured, by the names they have on the wire."""
    windows = {
        "utilization_pct": clean_window(gpu.utilization_pct, "utilization"),
        "memory_used_mib": clean_window(gpu.memory_used_mib, "memory", memory_mib),
        "power_w": clean_window(gpu.power_w, "power"),
        "temperature_c": clean_window(gpu.temperature_c, "temperature"),
        "activity_pct": clean_window(gpu.activity_pct, "utilization"),
        "memory_activity_pct": clean_window(gpu.memory_activity_pct, "utilization"),
    }
    return {name: window for name, raw in windows.items() if (window := count(raw)) is not None}
