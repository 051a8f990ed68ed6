"""One line to the terminals of a holder: 10 minutes before the end, at a notice; and to users of an unbooked GPU."""

from __future__ import annotations

from collections.abc import Sequence

from agents.gpu import Gpu
from agents.happened import Log
from agents.stays import Stays


class Lines:
    """Each is written once. Terminals are the devices that the user's own sessions have open for messages."""

    def __init__(self, stays: Stays, log: Log) -> None:
        self._stays = stays
        self._log = log

    def step(self, gpus: Sequence[Gpu]) -> None:
        """Asked at each report by the watch, with GPUs whose processes are attributed."""
