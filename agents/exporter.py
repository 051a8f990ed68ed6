"""Metrics for Prometheus: dcgm-exporter's names, labels and units, and gpupool's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.gpu import Inventory, Readings
from agents.place import Place
from agents.record import Record
from pool.core.wire import Stay


@dataclass(frozen=True, slots=True)
class Latest:
    """What the watch saw last: the exporter asks the driver nothing. GPUs' processes are attributed."""

    inventory: Inventory
    readings: dict[str, Readings]
    record: Record
    stays: tuple[Stay, ...]
    xids: dict[str, int]
    dropped: int
    up: bool  # the portal takes reports


class Exporter:
    """Serves /metrics on `port` (0: not at all) in a thread of its own."""

    def __init__(self, place: Place, port: int, latest: Callable[[], Latest | None]) -> None:
        self._place = place
        self._port = port
        self._latest = latest

    @property
    def port(self) -> int | None:
        """Where it serves: the wished port, or the next when that is taken; None when it does not."""
        return None

    def start(self) -> None:
        """Never raises: without the exporter the agent works as well."""

    def stop(self) -> None:
        """Give the port back."""

    def refresh(self) -> None:
        """After each sample: rewrite the job mapping files if holders have changed."""
