"""What the operating system knows of a process."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from agents import processes

NOBODY = 2**22 + 1  # above any pid_max


def test_a_living_process_has_a_start_that_stays() -> None:
    assert processes.started(os.getpid()) is not None
    assert processes.started(os.getpid()) == processes.started(os.getpid())


def test_a_process_that_never_was_has_none() -> None:
    assert processes.started(NOBODY) is None


def test_a_zombie_does_not_live() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        assert processes.started(child.pid) is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.started(child.pid) is None


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ("Ss   Tue Mar  3 09:12:44 2026\n", "Tue Mar  3 09:12:44 2026"),
        ("Z+   Tue Mar  3 09:12:44 2026\n", None),
        ("", None),
    ],
)
def test_without_proc_the_start_comes_from_ps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, start: str | None
) -> None:
    def ps(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=said)

    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(subprocess, "run", ps)
    assert processes.started(os.getpid()) == start
    assert processes.owner(os.getpid()) == (None, None)
    assert processes.name(os.getpid()) is None


def test_it_tells_who_runs_it_and_what_it_is() -> None:
    uid, user = processes.owner(os.getpid())
    assert uid == os.getuid()
    assert user == processes.user_name(os.getuid())
    with subprocess.Popen(["sleep", "100"]) as child:
        deadline = time.monotonic() + 10
        while processes.name(child.pid) != "sleep" and time.monotonic() < deadline:
            time.sleep(0.001)  # the exec may still be under way
        assert processes.name(child.pid) == "sleep"
        child.kill()


def test_what_is_gone_has_no_owner_and_no_name() -> None:
    assert processes.owner(NOBODY) == (None, None)
    assert processes.name(NOBODY) is None


def test_a_uid_without_an_account_has_no_name() -> None:
    assert processes.user_name(4_000_000_001) is None


def test_a_kernel_thread_is_named_by_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"")
    (tmp_path / "7" / "comm").write_text("kworker/0:1\n")
    assert processes.name(7) == "kworker/0:1"
