"""Stops an agent at one exact moment, without a word in its code: a named pipe where it writes a file.

Opening a pipe for writing waits until somebody reads. The agent's other
threads go on meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.stack import await_


class Gate:
    """While it is closed, whoever opens `path` for writing waits. Leaving the context opens it.

    A file that is there is replaced (a lock, which nobody reads); with
    `between_writes` it is a draft, and the gate closes only when none is being written.
    """

    def __init__(self, path: Path, *, between_writes: bool = False) -> None:
        self._path = path
        self._between_writes = between_writes
        self._readers: list[int] = []

    def __enter__(self) -> Gate:
        if self._between_writes:
            await_(self._made, f"nobody writes {self._path}")
        else:
            pipe = self._path.with_name(f"{self._path.name}.pipe")
            os.mkfifo(pipe)
            pipe.replace(self._path)
        return self

    def _made(self) -> bool:
        with suppress(FileExistsError):
            os.mkfifo(self._path)
            return True
        return False

    def let_one_through(self) -> None:
        """Of writers that each take a lock on what they opened, exactly one gets by."""
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        # It may open, but then waits for the lock; meanwhile the pipe is without reader again.
        fcntl.flock(reader, fcntl.LOCK_EX)
        await_(lambda: _has_writer(reader), f"somebody writes {self._path}")
        os.close(reader)

    def open(self) -> None:
        """Let everybody through from now on."""
        with suppress(FileNotFoundError):
            self._readers.append(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
            self._path.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._readers:
            self.open()
        for reader in self._readers:
            os.close(reader)


def _has_writer(reader: int) -> bool:
    try:
        os.read(reader, 1)
    except BlockingIOError:  # nothing to read, but somebody could still write
        return True
    return False
