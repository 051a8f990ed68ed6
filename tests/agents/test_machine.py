"""Programs of the machine: found in its own root, run with a limit, and quoted when they fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.gpu import DriverRefusal
from agents.machine import program, run
from agents.place import Place


def make(place: Place, name: str, text: str) -> str:
    path = place.root / "usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_simulated_machine_has_only_what_lies_in_its_root(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert program(place, "sh") is None
    assert program(place, "own") is None
    assert program(place, "own") != make(place, "own", "true")
    assert program(place, "own") == str(place.root / "usr/bin/own")


def test_a_real_machine_has_what_is_installed(tmp_path: Path) -> None:
    assert Path(program(Place(tmp_path, real=True), "sh") or "").name == "sh"


def test_what_cannot_be_run_is_no_program(tmp_path: Path) -> None:
    place = Place(tmp_path)
    os.chmod(make(place, "own", "true"), 0o644)
    assert program(place, "own") is None


def test_it_is_told_by_standard_input_and_sees_no_settings_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    name = make(Place(tmp_path), "own", 'cat; echo "$SECRET$GIVEN"')
    assert run([name], "sharing", told="said\n", environment={"GIVEN": "y"}) == "said\ny\n"


def test_a_failure_is_quoted(tmp_path: Path) -> None:
    name = make(Place(tmp_path), "own", "echo what went wrong >&2; exit 3")
    with pytest.raises(DriverRefusal, match="own failed with 3: what went wrong") as refusal:
        run([name], "access")
    assert refusal.value.code == "access"


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    name = make(Place(tmp_path), "own", "exec sleep 100")
    with pytest.raises(DriverRefusal, match="did not answer"):
        run([name], "sharing", longest_s=0.2)


def test_one_that_is_gone_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(DriverRefusal, match="could not be started"):
        run([tmp_path / "none"], "sharing")
