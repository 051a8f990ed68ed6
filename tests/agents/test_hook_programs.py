"""A site's programs: which are run, with what, and what became of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents import processes
from agents.hook_programs import KEPT_BYTES, Run, programs, run_all


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "on-start.d"
    made.mkdir(mode=0o755)
    return made


def put(folder: Path, name: str, script: str = "exit 0", mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


def test_they_run_in_the_order_of_their_names_and_one_failure_stops_none(folder: Path) -> None:
    put(folder, "20-second", "echo two; exit 3")
    put(folder, "10-first", "echo one")
    put(folder, "30-third.sh", "kill -9 $$")
    assert run_all(folder, {}) == [
        Run("10-first", 0, "one"),
        Run("20-second", 3, "two"),
        Run("30-third.sh", -9, ""),
    ]


def test_they_see_the_reservation_and_nothing_of_the_agents_own_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    put(folder, "env", "env | sort | cut -d= -f1 | tr '\\n' ' '; pwd; echo $GPUPOOL_RESERVATION; cat")
    (run,) = run_all(folder, {"GPUPOOL_RESERVATION": "r 1"})
    assert run.text.splitlines() == ["GPUPOOL_RESERVATION LANG PATH PWD /", "r 1"]


def test_one_that_takes_too_long_is_ended_with_all_it_started(folder: Path, tmp_path: Path) -> None:
    put(folder, "slow", f"sleep 1000 & echo $! >{tmp_path}/pid; echo begun; wait")
    (run,) = run_all(folder, {}, timeout_s=1)
    assert run == Run("slow", None, "slow took more than 1 s. begun")
    child = int((tmp_path / "pid").read_text())
    for _ in range(1000):
        if processes.started(child) is None:
            break
        os.sched_yield()
    assert processes.started(child) is None


def test_of_a_long_output_the_end_is_kept_without_control_signs(folder: Path) -> None:
    put(folder, "loud", "yes x | head -c 100000; printf '\\033[31mend'")
    (run,) = run_all(folder, {})
    assert len(run.text) <= KEPT_BYTES
    assert run.text.endswith("?[31mend")


def test_what_cannot_be_run_says_so(folder: Path) -> None:
    path = folder / "broken"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    (run,) = run_all(folder, {})
    assert (run.name, run.rc) == ("broken", None)
    assert "could not be run" in run.text


def test_only_programs_are_run_and_no_leftovers(folder: Path) -> None:
    put(folder, "ok")
    put(folder, "not-executable", mode=0o644)
    for name in ("a~", ".hidden", "b.bak", "c.dpkg-old", "d.rpmnew", "with space"):
        put(folder, name)
    (folder / "sub").mkdir()
    assert [path.name for path in programs(folder)] == ["ok"]


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_can_change_is_not_run(folder: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    put(folder, "ok")
    put(folder, "bad", mode=mode)
    assert [path.name for path in programs(folder)] == ["ok"]
    folder.chmod(mode)
    assert list(programs(folder)) == []
    folder.chmod(0o755)
    folder.parent.chmod(mode)
    assert list(programs(folder)) == []
    assert "can be changed by others" in caplog.text


def test_another_accounts_program_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(folder, "theirs")
    if os.getuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: -1)
    assert list(programs(folder)) == []


def test_no_folder_is_no_programs(tmp_path: Path) -> None:
    assert run_all(tmp_path / "none", {}) == []
