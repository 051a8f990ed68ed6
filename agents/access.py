"""How holders get their slice, and nobody else: files of CDI, devices of systemd, or advice only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agents.gpu import Gpu
from agents.place import Place
from pool.core.wire import Layout


class Access:
    """One thread changes (the applier). What it wrote is on disk, so that it is taken back after a crash."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def offered(self) -> tuple[str, ...]:
        """What works on this node: advisory always; cdi, unix where their parts are there."""
        return ("advisory",)

    def bring(
        self,
        gpu: Gpu,
        layout: Layout,
        environment: Mapping[str, Mapping[str, str]],
        check: Callable[[], None],
    ) -> bool:
        """Give each holder of `layout` that is in force its way in, take everybody else's; True if changed.

        `environment` holds, by allocation, what a share has to set. Idempotent.
        `check` raises when nothing may be changed now. Raises `DriverRefusal` (access, no_permission).
        """
        return False
