"""What our own PostgreSQL and Redis have in common: a place, a process, an end.

`portal/postgres.py` and `portal/broker.py` say what each needs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from portal.processes import Account, Fault, as_account, wait_until

START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pair lives: its data, its sockets (a short path), and as whom it runs."""

    data: Path
    sockets: Path
    account: Account | None = None
    #: False gives up durability for speed; only for databases that a test throws away.
    durable: bool = True

    def own(self, path: Path) -> Path:
        """Make `path` a private folder of the account that the servers run as."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)
        return path


def clean_environment() -> dict[str, str]:
    """What a server inherits: no PG* settings of the caller, and UTC."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PG")} | {"TZ": "UTC"}


class Server:
    """One server process; a subclass says how to start it and what ends it cleanly."""

    name = "server"
    stop_signals: tuple[tuple[signal.Signals, float], ...] = ()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.log = place.data / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.poll() is None else None

    def spawn(self, arguments: list[str]) -> None:
        """Start the program in a session of its own, so that Ctrl-C does not reach it first."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                cwd="/",
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_account(self.place.account),
            )

    def await_ready(self) -> None:
        process = self.process
        assert process is not None
        ready = wait_until(lambda: process.poll() is not None or self.answers(), START_SECONDS)
        if not ready or process.poll() is not None:
            words = self.last_words()  # before our own stop adds to them
            self.stop()
            raise Fault(f"{self.name} did not start; the end of {self.log}: {words}")

    def answers(self) -> bool:
        raise NotImplementedError

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or "(empty)"

    def stop(self) -> None:
        """End the server in order, then by force; it is gone when this returns."""
        process, self.process = self.process, None
        if process is None:
            return
        for number, seconds in (*self.stop_signals, (signal.SIGKILL, 10.0)):
            if process.poll() is None:
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                return

    def kill(self) -> None:
        """End the server as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def wheel_folder(package: str) -> Path | None:
    """Where an installed wheel lies; its Python is not run."""
    spec = importlib.util.find_spec(package)
    return (
        Path(next(iter(spec.submodule_search_locations)))
        if spec and spec.submodule_search_locations
        else None
    )


def _same(copy: Path, source: Path) -> bool:
    """Whether the copy was made of this very file, not of an earlier release."""
    if not copy.exists():
        return False
    ours, theirs = copy.stat(), source.stat()
    return (ours.st_size, int(ours.st_mtime)) == (theirs.st_size, int(theirs.st_mtime))


def reachable(source: Path, beside: list[Path], program: str, place: Place) -> Path:
    """`source`, or a copy of it in the data folder if the servers' account cannot run it there.

    A virtual environment below a home of mode 0700 is such a case. Folders in
    `beside` keep their place relative to `source`, because RPATH needs it.
    """
    if place.account is None or place.account.may_enter((source / program).parent):
        return source
    copy = place.data / "programs" / source.parent.name / source.name
    if not _same(copy / program, source / program):
        for folder in (*beside, source):
            target = place.data / "programs" / folder.relative_to(source.parent.parent)
            shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
    return copy
