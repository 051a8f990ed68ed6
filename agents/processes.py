"""What the operating system knows of a process: who runs it, since when, what, where, and how much it did.

Not here: which processes use a GPU (the driver says that), and whose a process is (agents.attribution).
What never changes is read once for each (pid, start); a sample of hundreds costs two short reads each.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from agents import containers, discretion
from pool.core.wire import Process

_PROC = Path("/proc")
#: Where container runtimes keep their notes.
_ROOT = Path("/")
#: Fields of /proc/PID/stat after the closing bracket of the name (proc(5): 3 is state, 22 starttime).
_STATE, _TTY, _UTIME, _STIME, _START = 0, 4, 11, 12, 19
_TICKS = os.sysconf("SC_CLK_TCK")
#: What is kept of a process is read anew so often: it may become another program under its pid.
FRESH_S = 300.0
_MOST_KEPT = 2048
_MOST_TEXT = 64 * 1024

#: What is looked for in an environment: whose it is, and whether a notebook's kernel started it.
_MARKS = ("GPUPOOL_RESERVATION", "GPUPOOL_ALLOCATION")
_NOTEBOOK_MARKS = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "JUPYTERHUB_USER")
_NOTEBOOK = re.compile(r"(^|[/.])(ipykernel|ipykernel_launcher|jupyter(-[\w-]+)?)(\.py)?$")


@dataclass(frozen=True, slots=True)
class Moment:
    """/proc/PID/stat of a living process."""

    started: str
    name: str
    tty: bool
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What stays true of a process, with what tells whose it is.

    `program` is its executable's file name, only where root alone could have put
    that file there. `root_inside`: root of a container that no plain user can
    have made up. `marks`: of its environment, only the names that matter here.
    """

    uid: int | None = None
    user: str | None = None
    name: str | None = None
    command: str | None = None
    started_at: datetime | None = None
    notebook: bool = False
    container: containers.Container | None = None
    root_inside: bool = False
    program: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    labels: containers.Labels = field(default_factory=containers.Labels)


@dataclass(frozen=True, slots=True)
class _Kept:
    started: str
    name: str
    read_at: float
    facts: Facts


_kept: dict[int, _Kept] = {}


def started(pid: int) -> str | None:
    """When the process began, as a word that no other process with this pid shares.

    None when nothing lives under this pid; a zombie does not live.
    """
    if not (_PROC / "self").exists():
        return _started_by_ps(pid)
    now = _moment(pid)
    return now.started if now else None


def _moment(pid: int) -> Moment | None:
    try:
        head, _, tail = _text(pid, "stat").rpartition(")")
        fields = tail.split()
        if len(fields) <= _START or fields[_STATE] in "ZX":
            return None
        cpu_s = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
        return Moment(fields[_START], head.partition("(")[2], fields[_TTY] != "0", cpu_s)
    except (OSError, ValueError):
        return None


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
        for line in _text(pid, "status").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
                return uid, user_name(uid)
    except (OSError, ValueError, IndexError):
        pass
    return None, None


def name(pid: int) -> str | None:
    """File name of the program, or the kernel's short name when there is no command line."""
    try:
        return _name(words(pid), _text(pid, "comm").strip())
    except OSError:
        return None


def _name(line: Sequence[str], short: str) -> str | None:
    return (os.path.basename(line[0]) if line and line[0] else short) or None


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str | None:
    """The account's name; kept, since an account may come from a slow directory."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def describe(pid: int, *, memory_mib: Any = None, computes: bool = True) -> Process:
    """The process as it travels in a report; what cannot be read stays None. Not: whose it is."""
    now = _moment(pid)
    if now is None:
        _kept.pop(pid, None)
        return Process(pid=pid, memory_mib=memory_mib, computes=computes)
    facts = _facts(pid, now)
    read_bytes, written_bytes = _disk(pid)
    return Process(
        pid=pid,
        uid=facts.uid,
        user=facts.user,
        name=facts.name,
        memory_mib=memory_mib,
        computes=computes,
        started=now.started,
        started_at=facts.started_at,
        command=facts.command,
        container=str(facts.container) if facts.container else None,
        cpu_s=now.cpu_s,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        session="notebook" if facts.notebook else "terminal" if now.tty else None,
    )


def facts_of(process: Process) -> Facts:
    """What tells whose a described process is; empty when it is gone or another has its pid."""
    kept = _kept.get(process.pid)
    if kept and kept.started == process.started and time.monotonic() - kept.read_at < FRESH_S:
        return kept.facts
    now = _moment(process.pid)
    if now is None or process.started != now.started:
        return Facts()
    return _facts(process.pid, now)


def _facts(pid: int, now: Moment) -> Facts:
    kept = _kept.get(pid)
    known = kept is not None and kept.started == now.started
    if kept and known and kept.name == now.name and time.monotonic() - kept.read_at < FRESH_S:
        return kept.facts
    facts = _read(pid, now)
    if kept and known:
        facts = _with_earlier_marks(facts, kept.facts)
    if started(pid) != now.started:
        return Facts()
    if len(_kept) >= _MOST_KEPT:
        _forget_the_dead()
    _kept[pid] = _Kept(now.started, now.name, time.monotonic(), facts)
    return facts


def _with_earlier_marks(facts: Facts, earlier: Facts) -> Facts:
    """Programs that give themselves a title (setproctitle) write it over their environment."""
    if facts.marks or facts.uid != earlier.uid:
        return facts
    return replace(facts, marks=earlier.marks, notebook=facts.notebook or earlier.notebook)


def _forget_the_dead() -> None:
    for pid, kept in list(_kept.items()):
        if started(pid) != kept.started:
            _kept.pop(pid, None)


def _read(pid: int, now: Moment) -> Facts:
    uid, user = owner(pid)
    line = words(pid)
    environment = _environment(pid)
    container = _container(pid)
    return Facts(
        uid=uid,
        user=user,
        name=_name(line, now.name),
        command=discretion.shown(line),
        started_at=_started_at(now.started),
        notebook=_is_notebook(line, environment),
        container=container,
        root_inside=_is_root_inside(pid, uid, container),
        program=_program(pid),
        marks={key: environment[key] for key in _MARKS if environment.get(key)},
        labels=_labels(pid, container),
    )


def words(pid: int) -> list[str]:
    """The command line; empty for what has none or cannot be read."""
    try:
        raw = _text(pid, "cmdline")
    except OSError:
        return []
    return raw.removesuffix("\0").split("\0") if raw else []


def _environment(pid: int) -> dict[str, str]:
    """Empty without the rights to read it."""
    try:
        pairs = (line.partition("=") for line in _text(pid, "environ").split("\0"))
    except OSError:
        return {}
    return {key: value for key, sign, value in pairs if sign}


def _container(pid: int) -> containers.Container | None:
    try:
        return containers.container_of(_text(pid, "cgroup"))
    except OSError:
        return None


def _labels(pid: int, container: containers.Container | None) -> containers.Labels:
    """Nothing below a user's own slice counts: there a user mounts and labels at will."""
    if container is None or container.rootless:
        return containers.Labels()
    labels = containers.labels(container, _ROOT)
    try:
        mounted = containers.mounted_slices(_text(pid, "mountinfo"))
    except OSError:
        mounted = frozenset()
    return replace(labels, devices=labels.devices | mounted)


def _is_root_inside(pid: int, uid: int | None, container: containers.Container | None) -> bool:
    """Root in a container: the machine's own root, or what a user namespace made of an unnamed uid.

    A user can be root of a namespace of its own as well, but only under its own uid.
    """
    if container is None or container.rootless or uid is None:
        return False
    return uid == 0 or (user_name(uid) is None and _outside(pid, inside=0) == uid)


def _outside(pid: int, *, inside: int) -> int | None:
    """The uid on this machine of one inside the process's user namespace (user_namespaces(7))."""
    try:
        rows = [[int(word) for word in line.split()] for line in _text(pid, "uid_map").splitlines()]
    except (OSError, ValueError):
        return None
    return next((row[1] + inside - row[0] for row in rows if row[0] <= inside < row[0] + row[2]), None)


def _program(pid: int) -> str | None:
    try:
        link = _PROC / str(pid) / "exe"
        seen = link.stat()
        if seen.st_uid != 0 or seen.st_mode & 0o022:
            return None
        return os.path.basename(os.readlink(link)).removesuffix(" (deleted)")
    except OSError:
        return None


def _is_notebook(line: Sequence[str], environment: Mapping[str, str]) -> bool:
    return any(mark in environment for mark in _NOTEBOOK_MARKS) or any(
        _NOTEBOOK.search(word) for word in line[:4]
    )


def _started_at(ticks: str) -> datetime | None:
    """The start on the wall clock; to the second, since that clock is corrected now and then."""
    if not ticks.isdecimal() or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return datetime.fromtimestamp(round(booted + int(ticks) / _TICKS), UTC)


def _disk(pid: int) -> tuple[int | None, int | None]:
    """Bytes read from and written to storage (proc(5): io); None without rights."""
    try:
        rows = dict(line.split(": ", 1) for line in _text(pid, "io").splitlines())
        return int(rows["read_bytes"]), int(rows["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None, None


def _text(pid: int, file: str) -> str:
    with open(f"{_PROC}/{pid}/{file}", "rb", buffering=0) as opened:
        text = part = opened.read(_MOST_TEXT)
        # Some of these files come a page at a time; the two that are read at each look come whole.
        while part and len(text) < _MOST_TEXT and file not in ("stat", "io"):
            part = opened.read(_MOST_TEXT)
            text += part
    return text.decode(errors="replace")
