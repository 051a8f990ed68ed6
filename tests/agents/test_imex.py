"""The state of the IMEX daemon, tested against a stand-in with the documented `-q`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.driver import Driver
from agents.imex import Imex


def stand_in(folder: Path, script: str) -> tuple[str, ...]:
    program = folder / "nvidia-imex-ctl"
    program.write_text(f'#!/bin/sh\n[ "$1" = -q ] || exit 64\necho asked >> {folder}/asked\n{script}\n')
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo READY", "READY"),
        ("echo WAITING_FOR_RECOVERY", "WAITING_FOR_RECOVERY"),
        ("echo READY; exit 1", "UNAVAILABLE"),
        ("echo 'Failed to connect to the service'", "UNAVAILABLE"),
        ("true", "UNAVAILABLE"),
    ],
)
def test_the_answer_is_one_word(tmp_path: Path, script: str, state: str) -> None:
    assert Imex(stand_in(tmp_path, script)).state() == state


def test_without_the_program_there_is_no_state(tmp_path: Path) -> None:
    assert Imex((str(tmp_path / "nothing"),)).state() is None
    assert Imex(()).state() is None


def test_a_program_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.imex._PATIENCE_S", 0.05)
    assert Imex(stand_in(tmp_path, "exec sleep 60")).state() == "UNAVAILABLE"


def test_it_is_asked_once_a_minute_only(tmp_path: Path) -> None:
    times = iter([0.0, 59.0, 60.0])
    imex = Imex(stand_in(tmp_path, "echo READY"), lambda: next(times))
    assert [imex.state() for _ in range(3)] == ["READY"] * 3
    assert (tmp_path / "asked").read_text().count("asked") == 2


@pytest.mark.parametrize(
    ("spec", "cluster", "state"),
    [("1xH100-80GB", None, None), ("1xGB200-186GB", "7e0c1b52-91aa-4c1e-8f5e-1f3f6d1d2a3b", "READY")],
)
def test_only_a_node_in_a_domain_is_asked(
    simulate: Callable[..., Path], tmp_path: Path, spec: str, cluster: str | None, state: str | None
) -> None:
    simulate(spec, cluster=cluster)
    with Driver(imex=Imex(stand_in(tmp_path, "echo READY"))) as one:
        assert one.look().imex == state
    assert (tmp_path / "asked").exists() == (state is not None)
