"""The demo's supervisor starts again what dies, and ends everything, also a killed run's leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal import supervisor
from portal.processes import start_time, wait_until
from portal.supervisor import Part, Supervisor

SLEEP = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def keeper(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    keeper = Supervisor(tmp_path, said.append)
    yield keeper
    keeper.stop()


def await_up(keeper: Supervisor, name: str, times: int = 1) -> None:
    assert wait_until(lambda: keeper.log(name).read_text().count("up") == times, 10)


def test_it_starts_a_part_with_the_environment_that_it_was_given(keeper: Supervisor) -> None:
    show = (
        sys.executable,
        "-c",
        "import os; print(sorted(k for k in os.environ if k.startswith('GPUPOOL')))",
    )
    keeper.start(Part("web", show, {"GPUPOOL_DEMO": "1"}))
    assert wait_until(lambda: "['GPUPOOL_DEMO']" in keeper.log("web").read_text(), 10)


def test_it_starts_again_what_died_and_says_so(keeper: Supervisor, said: list[str]) -> None:
    keeper.start(Part("web", SLEEP))
    await_up(keeper, "web")
    first = keeper.pids["web"]
    os.kill(first, signal.SIGKILL)

    def looked_after() -> bool:
        keeper.watch()
        return keeper.pids.get("web", first) != first

    assert wait_until(looked_after, 10)
    assert said == [
        f"web ended (signal SIGKILL) and is started again in 1 s; its log: {keeper.log('web')}",
    ]
    assert json.loads((keeper.folder / "children.json").read_text())["web"][0] == keeper.pids["web"]


def test_it_waits_longer_for_what_dies_at_once(
    keeper: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 4.0)
    at = 0.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: at)
    keeper.start(Part("beat", (sys.executable, "-c", "raise SystemExit(3)")))
    for _ in range(4):
        assert wait_until(lambda: not keeper.pids, 10)
        keeper.watch()
        at += 10
        keeper.watch()
    assert [line.split(" in ")[1].split(";")[0] for line in said] == ["1 s", "2 s", "4 s", "4 s"]
    assert "status 3" in said[0]


def test_it_ends_all_parts(keeper: Supervisor) -> None:
    for name in ("web", "beat"):
        keeper.start(Part(name, SLEEP))
        await_up(keeper, name)
    pids = keeper.pids.values()
    keeper.stop()
    assert not any(start_time(pid) for pid in pids)
    assert not (keeper.folder / "children.json").exists()


def test_it_forces_a_part_that_does_not_go(
    keeper: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE", 0.2)
    keeper.start(Part("web", STUBBORN))
    await_up(keeper, "web")
    keeper.stop()
    assert said == ["web did not end in time and was killed."]


def test_a_signal_to_the_terminal_does_not_reach_the_parts(keeper: Supervisor) -> None:
    keeper.start(Part("web", SLEEP))
    assert os.getpgid(keeper.pids["web"]) == keeper.pids["web"]


def test_it_ends_what_a_killed_run_has_left(tmp_path: Path, said: list[str]) -> None:
    killed = Supervisor(tmp_path, said.append)
    killed.start(Part("web", SLEEP))
    await_up(killed, "web")
    pid = killed.pids["web"]
    assert Supervisor(tmp_path, said.append).clear_leftovers() == 1
    assert wait_until(lambda: start_time(pid) is None, 10)
    killed.stop()


def test_it_leaves_alone_who_has_the_pid_of_a_leftover_now(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    try:
        note = {"web": [stranger.pid, "another start time"]}
        (tmp_path / "children.json").write_text(json.dumps(note))
        assert Supervisor(tmp_path, print).clear_leftovers() == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", [None, "", "{", "{}"])
def test_a_note_that_cannot_be_read_is_no_obstacle(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "children.json").write_text(text)
    assert Supervisor(tmp_path, print).clear_leftovers() == 0


def test_a_log_that_has_grown_long_is_put_aside(keeper: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_LOG", 10)
    keeper.log("web").parent.mkdir()
    keeper.log("web").write_text("x" * 11)
    keeper.start(Part("web", SLEEP))
    await_up(keeper, "web")
    assert keeper.log("web").with_suffix(".old.log").read_text() == "x" * 11
