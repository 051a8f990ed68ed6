"""Shares that HAMi-core keeps apart: a library in every process of a holder (HAMi-core's README).

It is the weakest of the limits: a process that is started without the library knows none (escapes).
Tested against a stand-in for the library. Not here: its variables (core.connect).
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from agents.escapes import LIBRARY
from agents.gpu import DriverRefusal
from agents.place import Place
from pool.core import connect
from pool.core.wire import Held

#: Where HAMi's own installer and packagers put it.
_FOLDERS = ("usr/local/vgpu", "usr/lib/gpupool", "usr/local/lib", "usr/lib64", "usr/lib")


class Hami:
    """The folders that holders need. One thread changes, others look."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._run = str(place.run)

    def library(self) -> Path | None:
        found = (self._place.root / folder / LIBRARY for folder in _FOLDERS)
        return next((path for path in found if path.is_file()), None)

    def works(self) -> bool:
        return self.library() is not None

    def stands(self, allocation: str) -> bool:
        """Whether a holder finds what its variables name; all of it is gone after a boot."""
        return self._folder(allocation).is_dir() and self._linked().exists()

    def bring(self, held: Held) -> None:
        """Make a share's own folder and what all of them need. Raises `DriverRefusal` (sharing)."""
        library = self.library()
        if library is None:
            raise DriverRefusal("sharing", None, f"{LIBRARY} is not installed")
        try:
            self._link(library)
            folder = self._folder(held.allocation)
            folder.mkdir(parents=True, exist_ok=True)
            self._give(folder, held.users)
        except OSError as error:
            raise DriverRefusal("sharing", None, f"the folders of {LIBRARY}: {error}") from error

    def drop(self, allocation: str) -> None:
        shutil.rmtree(self._folder(allocation), ignore_errors=True)

    def _link(self, library: Path) -> None:
        """One name for the library on every machine, and the list of what is loaded into containers."""
        linked = self._linked()
        linked.parent.mkdir(parents=True, exist_ok=True)
        linked.parent.chmod(0o711)  # who does not know an allocation does not find its folder
        if not linked.exists() or os.readlink(linked) != str(library):
            linked.unlink(missing_ok=True)
            linked.symlink_to(library)
        (Path(self._run) / connect.PRELOAD).write_text(f"{linked}\n")
        locks = self._place.root / connect.LOCKS[1:]
        locks.mkdir(parents=True, exist_ok=True)
        _open_to_all(locks)

    def _give(self, folder: Path, users: Collection[str]) -> None:
        """To the holder's account alone; with several accounts to whoever knows the allocation."""
        uids = []
        for name in users:
            with suppress(KeyError):
                uids.append(pwd.getpwnam(name).pw_uid)
        if len(uids) == 1:
            os.chown(folder, uids[0], -1)
        folder.chmod(0o700 if len(uids) == 1 else 0o777)

    def _folder(self, allocation: str) -> Path:
        return Path(connect.cache(allocation, self._run))

    def _linked(self) -> Path:
        return Path(self._run) / connect.LIBRARY


def _open_to_all(folder: Path) -> None:
    """As /tmp is. It lies where anybody may put a link under that name, which is refused (OSError)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(handle, os.getuid(), -1)
        os.fchmod(handle, 0o1777)
    finally:
        os.close(handle)
