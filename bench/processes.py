"""What processes weigh, from /proc: Linux only."""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = {child: _parent(child) for child in map(int, filter(str.isdigit, _names()))}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one and child not in found]
    return found


def command(pid: int) -> str:
    """How it was started; empty when it has ended."""
    return _read(pid, "cmdline").replace("\0", " ")


def resident_mb(pid: int) -> float:
    """All memory that it has in use, shared or not."""
    return _kib(_read(pid, "status"), "VmRSS") / 1024


def share_mb(pid: int) -> float:
    """Its own memory and its share of what it has in common with others (PSS)."""
    return _kib(_read(pid, "smaps_rollup"), "Pss") / 1024


def _names() -> list[str]:
    return [entry.name for entry in PROC.iterdir()]


def _parent(pid: int) -> int:
    return _kib(_read(pid, "status"), "PPid")


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text()
    except OSError:  # it has ended
        return ""
