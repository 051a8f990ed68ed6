"""Simulated machines for the agents' tests: made, installed under pynvml, and cleared away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.simulator_state import create_state

Simulate = Callable[..., Path]


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Simulate]:
    """`simulate("2xH100-80GB", mig=(0,))` makes a machine and puts it under pynvml; returns its folder."""
    folder = tmp_path / "machine"

    def make(spec: str, **options: Any) -> Path:
        create_state(folder, spec, seed="node-1", **options)
        simulator.install(folder)
        return folder

    yield make
    simulator.uninstall()
    if (folder / "driver.json").exists():
        simulator_world.stop_processes(folder)


@pytest.fixture
def driver(simulate: Simulate) -> Iterator[Callable[..., tuple[Driver, Path]]]:
    """The same with a `Driver` opened on it: `driver("2xH100-80GB")` returns both."""
    opened: list[Driver] = []

    def make(spec: str, **options: Any) -> tuple[Driver, Path]:
        folder = simulate(spec, **options)
        one = Driver()
        one.open()
        opened.append(one)
        return one, folder

    yield make
    for one in opened:
        one.close()
