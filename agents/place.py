"""The agent's folder: the names of its files, whole writes, and the lock of the one running agent.

What the files mean is told where they are used: config, record, report, status.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gettext import gettext as _
from pathlib import Path

DEFAULT = Path("/var/lib/gpupool-agent")


class Fault(Exception):
    """Something that the person at the keyboard has to put right; its text is one clear sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one agent keeps what it must not forget, and where it finds its machine.

    A machine is taken for a simulated one, with a root of its own inside the
    folder, until somebody says that it is `real`. `run_at` and `hooks_at` are
    the operator's choices, None for the usual places.
    """

    folder: Path = DEFAULT
    real: bool = False
    run_at: Path | None = None
    hooks_at: Path | None = None

    @property
    def root(self) -> Path:
        """The machine's root folder; nothing outside it is read or written of a simulated machine."""
        return Path("/") if self.real else self.folder / "root"

    @property
    def run(self) -> Path:
        """What holders may read: a file for each reservation. Gone after a boot."""
        return self.run_at or self.root / "run/gpupool"

    @property
    def hooks(self) -> Path:
        """The site's own programs lie in on-start.d, on-notice.d and on-end.d of it."""
        return self.hooks_at or self.root / "etc/gpupool"

    @property
    def agent(self) -> Path:
        """Who this node is, with its secrets (0600)."""
        return self.folder / "agent.json"

    @property
    def record(self) -> Path:
        """What the agent made and what it was asked for."""
        return self.folder / "record.json"

    @property
    def seq(self) -> Path:
        return self.folder / "seq.json"

    @property
    def last(self) -> Path:
        """The last report and what became of it; only `status` reads it."""
        return self.folder / "last.json"

    @property
    def happened(self) -> Path:
        """What no accepted report has told yet."""
        return self.folder / "happened.json"

    @property
    def units(self) -> Path:
        """The services that were stopped and not started again yet."""
        return self.folder / "units.json"

    @property
    def frozen(self) -> Path:
        """While this file is there, nothing on the node is changed."""
        return self.folder / "frozen"

    @property
    def lock(self) -> Path:
        return self.folder / "agent.lock"

    @property
    def driver(self) -> Path:
        """The simulated driver's state; real nodes have none."""
        return self.folder / "driver.json"

    def is_frozen(self) -> bool:
        return self.frozen.exists()

    def make(self) -> None:
        """Make the folder, for this account alone. Raises `Fault`."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Fault(
                _("The folder {folder} cannot be made: {why}").format(folder=self.folder, why=error.strerror)
            ) from error


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace a file so that a reader, or a start after a crash, sees the old or the new one.

    `durable` outlives a power cut too, and costs a disk flush. The file is 0600.
    """
    beside = path.with_name(f".{path.name}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
    if durable:
        _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def only_one(place: Place) -> Iterator[None]:
    """Hold the folder's lock. Raises `Fault` while another agent runs on it."""
    place.make()
    with place.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Fault(_("Another agent runs on {folder}.").format(folder=place.folder)) from error
        yield


def is_running(place: Place) -> bool:
    """Whether an agent holds the folder's lock now."""
    try:
        with place.lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
