"""Who has a GPU's device file open: clients that the driver does not count among its processes.

A monitor, a daemon or a display server blocks a mode change and a reset as a
computing process does, but no call of NVML names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agents import processes
from pool.core.wire import Process

PROC = Path("/proc")


def openers(minor: int | None, root: Path = Path("/")) -> tuple[Process, ...]:
    """Processes other than this one with /dev/nvidia<minor> open, as far as this account may see, by pid."""
    if minor is None:
        return ()
    device = str(root / f"dev/nvidia{minor}")
    pids = (int(one.name) for one in PROC.iterdir() if one.name.isdecimal())
    found = sorted(pid for pid in pids if pid != os.getpid() and device in _open_files(pid))
    return tuple(_described(pid) for pid in found)


def _open_files(pid: int) -> Iterator[str]:
    try:
        handles = list(os.scandir(PROC / str(pid) / "fd"))
    except OSError:  # it has ended, or is another account's
        return
    for handle in handles:
        try:
            yield os.readlink(handle.path)
        except OSError:
            continue


def _described(pid: int) -> Process:
    uid, user = processes.owner(pid)
    return Process(
        pid=pid, uid=uid, user=user, name=processes.name(pid), computes=False, started=processes.started(pid)
    )
