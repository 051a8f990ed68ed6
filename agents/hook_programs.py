"""Runs the programs of one hooks folder, one after another, each with a time-out and its output kept.

Only what nobody but root, or the agent's own account, can change is run: it runs with the agent's rights.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from gettext import gettext as _
from pathlib import Path
from typing import IO

log = logging.getLogger("agents.hooks")

TIMEOUT_S = 60.0
#: So much of the end of an output is kept.
KEPT_BYTES = 400
#: Names as run-parts(8) takes them, and with a suffix; leaves out backups and packages' leftovers.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?<!~)")
_LEFTOVERS = (".bak", ".orig", ".rej", ".swp", ".dpkg-old", ".dpkg-dist", ".dpkg-new", ".rpmsave", ".rpmnew")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Run:
    """`rc` is the exit status, negative for a signal, None where it could not be run or took too long."""

    name: str
    rc: int | None
    text: str


def run_all(folder: Path, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> list[Run]:
    """Run what may be run in the order of names; one that fails does not keep the next from running."""
    return [_run(path, environment, timeout_s) for path in programs(folder)]


def programs(folder: Path) -> Iterator[Path]:
    """The programs of a folder in the order of their names; one that others can change is passed over."""
    try:
        found = sorted(folder.iterdir())
        if found and not (_is_safe(folder) and _is_safe(folder.parent)):
            log.error("%s can be changed by others: nothing in it is run", folder)
            return
    except OSError:
        return
    for path in found:
        if not _NAME.fullmatch(path.name) or path.suffix in _LEFTOVERS:
            continue
        if not path.is_file() or not os.access(path, os.X_OK):
            continue
        if _is_safe(path):
            yield path
        else:
            log.error("%s can be changed by others and is not run", path)


def _is_safe(path: Path) -> bool:
    seen = path.stat()
    return seen.st_uid in (0, os.getuid()) and not seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _run(path: Path, environment: Mapping[str, str], timeout_s: float) -> Run:
    """The output goes to a file, not to a pipe: a program that outlives the agent can still write."""
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                [path],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": _PATH, "LANG": "C.UTF-8", **environment},
                start_new_session=True,
            )
        except OSError as error:
            return Run(
                path.name,
                None,
                _("{name} could not be run: {why}").format(name=path.name, why=error.strerror),
            )
        try:
            rc = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # its own group, with all that it started there
            child.wait()
            late = _("{name} took more than {seconds:g} s.").format(name=path.name, seconds=timeout_s)
            return Run(path.name, None, f"{late} {_end_of(output)}".strip())
        return Run(path.name, rc, _end_of(output))


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - KEPT_BYTES))
    text = output.read().decode(errors="replace").strip()
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
