"""Ends what still runs for a stay that is over: SIGTERM, grace, and SIGKILL where the pool allows it."""

from __future__ import annotations

from collections.abc import Sequence

from agents.gpu import Gpu
from agents.happened import Log
from agents.stays import Stays


class Ending:
    """Asked at each report by the watch, with GPUs whose processes are attributed.

    It does nothing while the portal is away, while the node is frozen, or to
    what is not attributed.
    """

    def __init__(self, stays: Stays, log: Log) -> None:
        self._stays = stays
        self._log = log

    def step(self, gpus: Sequence[Gpu]) -> None:
        """Signal what is due: stays that are ending, shares over their memory, foreign use where the pool says so."""

    def end_application(self, gpu: Gpu, gi: int | None) -> None:
        """An error of the card ended this application's memory (Xid 94): what runs there is told to go."""
