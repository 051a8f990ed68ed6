"""What an agent is put together from, on a real node and on a simulated one."""

from __future__ import annotations

import sys
from pathlib import Path

from agents.config import Config
from agents.driver import Driver
from agents.parts import assemble, simulator
from agents.place import Place

OWN = Config(portal="https://p", node="n", token="t", pause_units=("nvidia-dcgm",))


def test_the_services_of_a_host_are_not_those_of_a_machine_simulated_on_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    simulated = Config(portal="p", node="n", token="t", simulated="1xH100", pause_units=("nvidia-dcgm",))
    assert assemble(place, Driver(), lambda: "b", OWN).units._names == ("nvidia-dcgm",)
    assert assemble(place, Driver(), lambda: "b", simulated).units._names == ()


def test_a_real_gpu_is_reset_by_nvidias_tool_and_a_simulated_one_by_the_simulator(tmp_path: Path) -> None:
    place = Place(tmp_path)
    simulated = Config(portal="p", node="n", token="t", simulated="1xH100")
    real = assemble(place, Driver(), lambda: "b", OWN)
    assert real.reset._words == ("nvidia-smi", "--gpu-reset", "-i")
    words = assemble(place, Driver(), lambda: "b", simulated).reset._words
    assert words == simulator(place)
    assert words[:3] == (sys.executable, "-m", "agents")


def test_all_of_it_writes_into_the_agents_own_folder_only(tmp_path: Path) -> None:
    place = Place(tmp_path / "state")
    place.make()
    assert place.root == tmp_path / "state/root"
    assert place.run.is_relative_to(tmp_path)
    assert place.hooks.is_relative_to(tmp_path)
    assemble(place, Driver(), lambda: "b", OWN)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}
