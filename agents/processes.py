"""What the operating system knows of a process: who runs it, and whether it still does.

Not here: which processes use a GPU (the driver says that).
"""

from __future__ import annotations

import os
import pwd
import subprocess
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
#: Fields of /proc/PID/stat after the closing bracket of the name (proc(5): 3 is state, 22 starttime).
_STATE, _START = 0, 19


def started(pid: int) -> str | None:
    """When the process began, as a word that no other process with this pid shares.

    None when nothing lives under this pid; a zombie does not live.
    """
    if not (_PROC / "self").exists():
        return _started_by_ps(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if len(fields) <= _START or fields[_STATE] in "ZX" else fields[_START]


def _started_by_ps(pid: int) -> str | None:
    """The same on systems without /proc (macOS), where only demos run."""
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, start = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else start.strip()


def owner(pid: int) -> tuple[int | None, str | None]:
    """Real uid and its user name; None for what cannot be read."""
    try:
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
                return uid, user_name(uid)
    except (OSError, ValueError, IndexError):
        pass
    return None, None


def name(pid: int) -> str | None:
    """File name of the program, or the kernel's short name when there is no command line."""
    try:
        program = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[0]
        if program:
            return os.path.basename(program.decode(errors="replace"))
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip() or None
    except OSError:
        return None


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str | None:
    """The account's name; kept, since an account may come from a slow directory."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
