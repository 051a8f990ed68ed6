"""Services of the machine that hold GPUs open: stopped for a mode change, and always started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from agents.happened import Log
from agents.place import Place


class Units:
    """`names` are systemd units from the configuration; which were stopped is on disk until they run again."""

    def __init__(self, place: Place, names: Sequence[str], log: Log) -> None:
        self._place = place
        self._names = names
        self._log = log

    def start_again(self) -> None:
        """At agent start: start what an earlier agent stopped and did not start again."""

    @contextmanager
    def paused(self, check: Callable[[], None]) -> Iterator[None]:
        """Stopped within, started again in any case."""
        yield
