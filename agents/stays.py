"""What the portal told of the reservations on this node, and what its pool allows; kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agents.place import Place
from pool.core.wire import Policy, Stay


class Stays:
    """One thread writes (the watch), others read. `here`: the portal has answered lately.

    While it has not, the agent ends, signals and carves nothing on its own.
    """

    def __init__(self, place: Place, boot_id: Callable[[], str]) -> None:
        self._place = place
        self._boot_id = boot_id
        self._stays: dict[str, Stay] = {}
        self.policy = Policy()
        self._heard = float("-inf")
        self._patience_s = 45.0

    def heed(self, stays: Sequence[Stay], policy: Policy, next_report_s: float) -> None:
        """Take what an answer said; the portal counts as away after three reports without one."""
        self._stays = {one.allocation: one for one in stays}
        self.policy = policy
        self._patience_s = 3 * next_report_s
        self._heard = time.monotonic()

    def here(self) -> bool:
        return time.monotonic() - self._heard <= self._patience_s

    def of(self, allocation: str) -> Stay | None:
        return self._stays.get(allocation)

    def all(self) -> tuple[Stay, ...]:
        return tuple(self._stays.values())
