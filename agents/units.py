"""Services of the machine that hold GPUs open: stopped for a mode change, and always started again."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from agents.happened import Log
from agents.place import Place, write_whole

log = logging.getLogger("agents.units")

SYSTEMCTL = ("systemctl",)
#: A service that takes longer to stop or to start is left to itself.
LONGEST_S = 60.0
#: So long the end of the agent waits for systemd to note down what it is to start.
LEAVE_S = 0.3


class Units:
    """`names` are systemd units from the configuration; which were stopped is on disk until they run again.

    They are stopped in reverse and started in the order given, so that what needs
    another comes after it. One thread calls this (the applier), but for `leave`.
    """

    def __init__(
        self, place: Place, names: Sequence[str], log: Log, systemctl: Sequence[str] = SYSTEMCTL
    ) -> None:
        self._place = place
        self._names = tuple(names)
        self._log = log
        self._systemctl = tuple(systemctl)
        self._stopped = _load(place)
        self._leaving = threading.Event()

    def start_again(self) -> None:
        """Start what was stopped and does not run yet: by an earlier agent, or because it did not start."""
        if not self._stopped:
            return
        names, self._stopped = self._stopped, ()
        left = [name for name in names if not self._do("start", name)]
        self._keep(left)
        started = [name for name in names if name not in left]
        if started:
            self._log.add("pause", f"started again: {', '.join(started)}", started=started)
        if left:
            self._log.add("pause", f"did not start again: {', '.join(left)}", left=left)

    @contextmanager
    def paused(self, check: Callable[[], None]) -> Iterator[None]:
        """Stopped within, started again in any case. Only those that run are stopped.

        `check` raises when nothing may be changed now. What does not stop is no
        error here: the change itself will say what is in its way.
        """
        running = [name for name in self._names if self._do("is-active", name, "--quiet")]
        if not running:
            yield
            return
        check()
        # On disk before the first is stopped: a crash must not leave the machine without its monitoring.
        # What did not start the last time is tried again with them.
        self._keep(list(dict.fromkeys((*self._stopped, *running))))
        try:
            for name in reversed(running):
                if not self._leaving.is_set():
                    self._do("stop", name)
            self._log.add("pause", f"stopped: {', '.join(running)}", stopped=running)
            yield
        finally:
            self.start_again()

    def leave(self, wait_s: float = LEAVE_S) -> None:
        """Have systemd start what is stopped now, and stop nothing any more: the agent ends.

        Any thread. The start is only asked for, since a pause that is cut may be in
        the middle of a long stop; the record stays, so that the next agent sees to it.
        """
        self._leaving.set()
        names = _load(self._place)
        if not names:
            return
        log.info("Left to systemd to start: %s", ", ".join(names))
        with suppress(OSError, subprocess.TimeoutExpired):
            # One that is slow to answer lives on without us.
            subprocess.Popen(
                [*self._systemctl, "start", "--no-block", "--", *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ).wait(wait_s)

    def _keep(self, names: Sequence[str]) -> None:
        write_whole(self._place.units, msgspec.json.encode(names), durable=True)
        self._stopped = tuple(names)

    def _do(self, verb: str, name: str, *more: str) -> bool:
        try:
            done = subprocess.run(
                [*self._systemctl, verb, *more, "--", name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LONGEST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("%s %s: %s", verb, name, error)
            return False
        if done.returncode and verb != "is-active":
            log.warning("%s %s: %s", verb, name, done.stdout.strip() or done.returncode)
        return done.returncode == 0


def _load(place: Place) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(place.units.read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.DecodeError):
        return ()
