"""A file for each stay on this node, `<reservation>.json`, that prompts and notebooks of its holder read.

It belongs to the holder's account, and nobody else can read it. It says when the stay ends, whether
and why it may be taken back earlier, and where it can be extended.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Sequence
from gettext import gettext as _
from pathlib import Path
from typing import Any

from agents import terminals
from pool.core.wire import Stay

log = logging.getLogger("agents.prompts")

#: Names of files that are ours to write and to remove: a reservation's id, nothing that leads elsewhere.
_OURS = re.compile(r"(?P<reservation>[0-9a-zA-Z][0-9a-zA-Z-]{0,63})\.json")


class Prompts:
    """Writes to the folder `run`; one thread (the watch) calls."""

    def __init__(self, run: Path, uid_of: Callable[[str], int | None] = terminals.uid_of) -> None:
        self._run = run
        self._uid_of = uid_of
        self._shown: dict[str, tuple[bytes, int | None]] = {}

    def show(self, stays: Collection[Stay]) -> None:
        """Bring the files to these stays: write what is new or changed, remove every other."""
        wanted: dict[str, list[Stay]] = {}
        for stay in stays:
            if _OURS.fullmatch(f"{stay.reservation}.json"):
                wanted.setdefault(stay.reservation, []).append(stay)
        try:
            self._make_folder()
            for path in self._run.iterdir():
                found = _OURS.fullmatch(path.name)
                if found and found["reservation"] not in wanted:
                    path.unlink(missing_ok=True)
            for reservation, parts in wanted.items():
                self._write(reservation, parts)
            self._shown = {name: one for name, one in self._shown.items() if name in wanted}
        except OSError as error:
            log.error("Files for prompts in %s: %s", self._run, error)

    def _make_folder(self) -> None:
        """Anybody may go in: whose a file is decides who reads it."""
        if not self._run.is_dir():
            self._run.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._run.chmod(0o755)

    def _write(self, reservation: str, parts: Sequence[Stay]) -> None:
        path = self._run / f"{reservation}.json"
        data = (json.dumps(content(parts), ensure_ascii=False, indent=1) + "\n").encode()
        uids = (self._uid_of(user) for user in parts[0].users)
        uid = next((one for one in uids if one is not None), None)
        if self._shown.get(reservation) == (data, uid) and path.exists():
            return
        beside = self._run / f".{reservation}.new"
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if uid is not None and uid != os.getuid() and os.getuid() == 0:
                os.fchown(handle, uid, -1)
        beside.replace(path)
        self._shown[reservation] = (data, uid)


def content(parts: Sequence[Stay]) -> dict[str, Any]:
    """What the file says; `parts` are the allocations of one reservation on this node, at least one."""
    one = parts[0]
    notices = [part.notice_until for part in parts if part.notice_until is not None]
    return {
        "reservation": one.reservation,
        "team": one.team,
        "start": one.start.isoformat(),
        "end": one.end.isoformat() if one.end else None,
        "ending": one.ending,
        "notice_until": min(notices).isoformat() if notices else None,
        "why": one.why or None,
        "how_to_extend": _("Open {url} and choose Extend.").format(url=one.url) if one.url else None,
        "url": one.url or None,
        "slices": [{"allocation": part.allocation, "gpu": part.gpu} for part in parts],
    }
