"""A site's own programs at the start, at a notice and at the end of a stay, and the file for prompts."""

from __future__ import annotations

from collections.abc import Collection

from agents.happened import Log
from agents.place import Place
from agents.stays import Stays


class Hooks:
    """Has a thread of its own, so that a slow program silences nothing. What was run is on disk."""

    def __init__(self, place: Place, stays: Stays, log: Log) -> None:
        self._place = place
        self._stays = stays
        self._log = log

    def start(self) -> None:
        """Begin to work off what `notice` finds."""

    def stop(self, timeout_s: float) -> None:
        """End; a program that runs is left alone."""

    def notice(self, in_force: Collection[str]) -> None:
        """Told by the watch after each answer: allocations in force now. Returns at once.

        on-start.d runs once per allocation that came into force, on-notice.d once per
        new `notice_until`, on-end.d once when it is over.
        """
