"""The simulated processes: real idle children that outlive whoever started them.

Real, so that /proc, signals and uids are real. Nothing here ever signals a
process that was not started here: a pid that was given to another is left alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from gettext import gettext as _

from agents import processes

#: What a child does: nothing, for as long as anybody could want.
IDLE = ("sleep", "2147483647")
#: Detached by way of a shell that ends at once: nobody waits for the child, and no parent ends it.
_SCRIPT = '"$@" </dev/null >/dev/null 2>&1 & echo $!'


def start(
    uid: int | None, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Start a child, as another user if asked; returns its pid and when it began.

    `argv` is a program that must idle by itself; `env` is added to the environment.
    Raises PermissionError when this user may not become `uid`, FileNotFoundError
    when there is no such program.
    """
    words = list(argv or IDLE)
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(_("there is no program {name}").format(name=words[0]))
    other = uid if uid != os.getuid() else None
    if other is not None and os.getuid() != 0:
        raise PermissionError(_("only root can start a process of another user"))
    done = subprocess.run(
        ["sh", "-c", _SCRIPT, "sh", *words],
        stdout=subprocess.PIPE,
        start_new_session=True,
        user=other,
        group=other,
        extra_groups=None if other is None else [],
        cwd="/",
        env={**os.environ, **(env or {})},
        text=True,
        check=True,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 1
    while processes.words(pid)[:2] == ["sh", "-c"] and time.monotonic() < deadline:
        time.sleep(0.001)  # not yet itself
    began = processes.started(pid)
    if began is None:
        raise RuntimeError(f"the process {pid} ended at once")
    return pid, began


def lives(pid: int, began: str) -> bool:
    """Whether the very process that was started still runs."""
    return processes.started(pid) == began


def stop(children: list[tuple[int, str]], patience_s: float = 5.0) -> None:
    """End these children and return when they are gone."""
    for pid, began in children:
        if lives(pid, began):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while any(lives(pid, began) for pid, began in children) and time.monotonic() < deadline:
        time.sleep(0.002)
