"""One simulated GPU under the applier's hands, without its thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.carve import carve
from agents.driver import Driver
from agents.gpu import Gpu
from pool.core.wire import Command, Held, Layout, Trouble
from tests.agents.stand_in import parts_of


class Bench:
    """One GPU under the applier's hands."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.uuid = driver.look().gpus[0].uuid
        self.boot_id = "boot-1"
        self.reason: str | None = None
        self.generation = 0
        self.restart()

    def restart(self, **own: Any) -> None:
        self.parts = parts_of(self.driver, self.folder, lambda: self.boot_id, **own)

    def carve(self, *held: Held, mig: bool = True, **layout: Any) -> Trouble | None:
        self.generation += 1
        wanted = Layout(mig=mig, held=held, **layout)
        order = Command(id="c", node="node-1", gpu=self.uuid, generation=self.generation, layout=wanted)
        return carve(order, self.parts, lambda uuid: self.reason).trouble

    def gpu(self) -> Gpu:
        return self.driver.gpu(self.uuid)

    @property
    def record(self) -> Any:
        return self.parts.ledger.gpu(self.uuid)

    def kinds(self) -> list[str]:
        return [one.kind for one in self.parts.log.pending()]
