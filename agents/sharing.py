"""Shares of a GPU: brings what keeps them apart (MPS, HAMi-core, nothing) to a layout."""

from __future__ import annotations

from collections.abc import Callable

from agents.driver import Driver
from agents.gpu import Gpu
from agents.place import Place
from pool.core.wire import Layout, ShareSeen


class Sharing:
    """One thread changes (the applier), others look."""

    def __init__(self, place: Place, driver: Driver) -> None:
        self._place = place
        self._driver = driver

    def offered(self) -> tuple[str, ...]:
        """Ways to share that work on this node, by what is installed: mps, hami, timeslice."""
        return ()

    def bring(self, gpu: Gpu, layout: Layout, check: Callable[[], None]) -> bool:
        """Bring the shares of a GPU to its layout (none: take down what was there); True if anything changed.

        Idempotent. `check` raises when nothing may be changed now; it is asked
        before each change. Raises `DriverRefusal` (sharing, in_use, no_permission).
        """
        return False

    def standing(self, gpu: Gpu, layout: Layout) -> tuple[ShareSeen, ...]:
        """The shares of `layout` that are in force, with the memory that each one's processes use.

        `gpu.processes` are attributed already.
        """
        return ()

    def environment(self, gpu: Gpu, layout: Layout, allocation: str) -> dict[str, str]:
        """What the holder of a share has to set, so that its limits are kept."""
        return {}
