"""What the portal told of the reservations on this node, and what its pool allows; kept on disk.

Kept, so that after a restart without the portal a holder can still read when the stay ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from agents.place import Place, write_whole
from pool.core.wire import Policy, Stay

log = logging.getLogger("agents.stays")

#: So many report periods without an answer, and the portal counts as away.
MISSED = 3


class _Told(msgspec.Struct, frozen=True):
    stays: tuple[Stay, ...] = ()
    policy: Policy = Policy()


class Stays:
    """One thread writes (the watch), others read. `here`: the portal has answered lately.

    While it has not, the agent ends, signals and carves nothing on its own.
    """

    def __init__(
        self, place: Place, boot_id: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = place.folder / "stays.json"
        self._boot_id = boot_id
        self._clock = clock
        self._told = self._load()
        self._by_allocation = {one.allocation: one for one in self._told.stays}
        self._heard = float("-inf")
        self._patience_s = 45.0

    def heed(self, stays: Sequence[Stay], policy: Policy, next_report_s: float) -> None:
        """Take what an answer said; the portal counts as away after three reports without one."""
        told = _Told(tuple(stays), policy)
        news = told != self._told
        self._told = told
        self._by_allocation = {one.allocation: one for one in stays}
        self._patience_s = MISSED * next_report_s
        self._heard = self._clock()
        if news:
            write_whole(self._path, msgspec.json.encode(told), durable=False)

    @property
    def policy(self) -> Policy:
        return self._told.policy

    def here(self) -> bool:
        return self._clock() - self._heard <= self._patience_s

    def boot_id(self) -> str:
        return self._boot_id()

    def of(self, allocation: str) -> Stay | None:
        return self._by_allocation.get(allocation)

    def on(self, gpu: str) -> tuple[Stay, ...]:
        """Those on one GPU, by its UUID."""
        return tuple(one for one in self._told.stays if one.gpu == gpu)

    def all(self) -> tuple[Stay, ...]:
        return self._told.stays

    def _load(self) -> _Told:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Told)
        except FileNotFoundError:
            return _Told()
        except (OSError, msgspec.DecodeError) as error:  # the next answer tells it all again
            log.warning("What the portal told earlier cannot be read: %s", error)
            return _Told()
