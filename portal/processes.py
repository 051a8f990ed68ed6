"""Which process is which: start times, accounts, and ending what is really ours.

A pid alone proves nothing after a crash, so a process is named by its pid and
its start time. Nothing here decides when to start or stop something.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Fault(Exception):
    """Something outside the program is wrong; one sentence says what, and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system's account that a server runs as."""

    name: str
    uid: int
    gid: int

    def may_enter(self, folder: Path) -> bool:
        """Whether this account can reach things inside `folder`."""
        return self._test("-x", folder)

    def may_read(self, path: Path) -> bool:
        return self._test("-r", path)

    def _test(self, flag: str, path: Path) -> bool:
        call = ["/bin/sh", "-c", f'test {flag} "$0"', str(path)]
        return subprocess.run(call, cwd="/", check=False, **as_account(self)).returncode == 0


def server_account() -> Account | None:
    """Whom servers run as: None for an ordinary user (as oneself), `postgres` or `nobody` for root.

    PostgreSQL refuses to run as root, and initdb needs an entry in the passwd file.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise Fault(
        "This machine has neither an account `postgres` nor `nobody`, and PostgreSQL cannot run as root."
    )


def as_account(account: Account | None) -> dict[str, Any]:
    """The keywords that make `subprocess` run a program as `account`."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def start_time(pid: int) -> str | None:
    """When a living process started, in the kernel's own words; None if it is gone (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    return None if fields[0] in "ZX" else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    shown = subprocess.run(
        ["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return None if not shown or shown[-1].startswith("Z") else " ".join(shown[:-1])


def command_line(pid: int) -> str:
    """The arguments of a process, joined by spaces; empty if it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    shown = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


def wait_until(done: Callable[[], bool], seconds: float, pause: float = 0.02) -> bool:
    """Ask `done` again and again for at most `seconds`; the last answer counts."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return done()
        time.sleep(pause)
    return True


def end_process(pid: int, started: str, signals: Sequence[tuple[signal.Signals, float]]) -> bool:
    """End the process that had this pid and start time; True when it is gone.

    Each signal is given its number of seconds. A pid that has been handed to
    another process since is left alone.
    """
    for number, seconds in signals:
        if start_time(pid) != started:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_until(lambda: start_time(pid) != started, seconds):
            return True
    return start_time(pid) != started
