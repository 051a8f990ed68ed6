"""What is seen of the node: one moment, attributed, with what is in force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.driver import Driver
from agents.gpu import Inventory
from agents.observe import Observer
from tests.agents.stand_in import command, parts_of

Open = Callable[..., tuple[Driver, Path]]


class Bench:
    """Two GPUs, the first with MIG on, and who looks at them."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.uuid, self.other = (gpu.uuid for gpu in driver.look().gpus)
        self.parts = parts_of(driver, folder, lambda: "boot-1")
        self.observer = Observer(self.parts)


@pytest.fixture
def bench(driver: Open) -> Bench:
    return Bench(*driver("2xH100-80GB", mig=(0,)))


@pytest.mark.parametrize("changes", [1, 99])
def test_instances_and_record_are_of_one_moment_or_not_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    usual, numbers = bench.driver.look, iter(range(1, changes + 1))

    def look() -> Inventory:
        seen = usual()
        number = next(numbers, None)
        if number is not None:  # the applier is at work meanwhile
            bench.parts.ledger.want(command(bench.uuid, number))
        return seen

    monkeypatch.setattr(bench.driver, "look", look)
    seen, record = bench.observer._look()
    told = {gpu.uuid: gpu.instances for gpu in seen.gpus}
    assert told == {bench.uuid: () if changes == 1 else None, bench.other: ()}
    assert record is bench.parts.ledger.record
