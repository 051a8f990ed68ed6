"""What the operating system knows of a process."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agents import processes
from agents.containers import Labels
from pool.core.wire import Process
from tests.agents.people import write_proc

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


# --- What is told of a process ------------------------------------------------

DOCKER = "0::/system.slice/docker-" + "ab" * 32 + ".scope\n"


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A /proc of our own, and no memory of earlier processes."""
    monkeypatch.setattr(processes, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "_ROOT", tmp_path)
    monkeypatch.setattr(processes, "_kept", {})
    return tmp_path / "proc"


def test_a_real_process_is_told_with_all_that_can_be_read() -> None:
    with subprocess.Popen(["sleep", "100"], env={"GPUPOOL_RESERVATION": "r-1"}) as child:
        deadline = time.monotonic() + 10
        while processes.name(child.pid) != "sleep" and time.monotonic() < deadline:
            time.sleep(0.001)  # the exec may still be under way
        told = processes.describe(child.pid, memory_mib=7)
        assert (told.pid, told.memory_mib, told.computes) == (child.pid, 7, True)
        assert (told.uid, told.name, told.command) == (os.getuid(), "sleep", "sleep 100")
        assert told.started == processes.started(child.pid)
        assert told.started_at is not None
        assert abs((told.started_at - datetime.now(UTC)).total_seconds()) < 60
        assert told.cpu_s is not None
        assert told.read_bytes is not None
        assert told.written_bytes == 0
        assert (told.system, told.allocation, told.by) == (False, None, None)
        assert processes.facts_of(told).marks == {"GPUPOOL_RESERVATION": "r-1"}
        assert processes.facts_of(told).program == "sleep"
        child.kill()


def test_of_what_is_gone_only_the_drivers_word_is_told() -> None:
    assert processes.describe(NOBODY, memory_mib=3, computes=False) == Process(
        pid=NOBODY, memory_mib=3, computes=False
    )
    assert processes.facts_of(Process(pid=NOBODY, started="1")) == processes.Facts()


def test_without_rights_bytes_are_absent_and_not_zero(proc: Path) -> None:
    write_proc(proc, 7)
    told = processes.describe(7)
    assert (told.read_bytes, told.written_bytes) == (None, None)
    (proc / "7/io").write_text("rchar: 9\nread_bytes: 4096\nwrite_bytes: 12\ncancelled_write_bytes: 0\n")
    told = processes.describe(7)
    assert (told.read_bytes, told.written_bytes) == (4096, 12)
    assert told.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


def test_a_second_look_at_many_costs_two_short_reads_each(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    text = processes._text
    for pid in range(1000, 1200):
        write_proc(proc, pid)
        (proc / str(pid) / "io").write_text("read_bytes: 1\nwrite_bytes: 2\n")
        processes.describe(pid)
    monkeypatch.setattr(processes, "_text", lambda pid, file: reads.append(file) or text(pid, file))
    told = [processes.describe(pid) for pid in range(1000, 1200)]
    assert [processes.facts_of(one).uid for one in told] == [1001] * 200
    assert len(reads) == 400
    assert set(reads) == {"stat", "io"}


def test_another_process_under_the_same_pid_is_read_anew(proc: Path) -> None:
    write_proc(proc, 7, uid=1001, started="5000", environment={"GPUPOOL_RESERVATION": "r-1"})
    before = processes.describe(7)
    write_proc(proc, 7, uid=1002, started="6000")
    after = processes.describe(7)
    assert (before.uid, after.uid) == (1001, 1002)
    assert processes.facts_of(after).marks == {}
    assert processes.facts_of(before) == processes.Facts()


def test_a_process_that_became_another_program_is_read_anew(proc: Path) -> None:
    write_proc(proc, 7, short="sh", line=["sh", "-c", "exec python"])
    assert processes.describe(7).name == "sh"
    write_proc(proc, 7, short="python", line=["python", "x.py"])
    assert processes.describe(7).command == "python x.py"


def test_a_title_over_the_environment_does_not_hide_whose_it_is(proc: Path) -> None:
    write_proc(proc, 7, environment={"GPUPOOL_RESERVATION": "r-1"})
    processes.describe(7)
    write_proc(proc, 7, short="engine", line=["vLLM::EngineCore"], environment={})
    told = processes.describe(7)
    assert told.name == "vLLM::EngineCore"
    assert processes.facts_of(told).marks == {"GPUPOOL_RESERVATION": "r-1"}
    write_proc(proc, 7, short="engine2", uid=1002, environment={})
    assert processes.facts_of(processes.describe(7)).marks == {}


def test_the_dead_are_forgotten_when_many_are_kept(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_KEPT", 3)
    for pid in range(10, 13):
        write_proc(proc, pid)
        processes.describe(pid)
        (proc / str(pid) / "stat").unlink()
    write_proc(proc, 20)
    processes.describe(20)
    assert set(processes._kept) == {20}


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"tty": 34816}, "terminal"),
        ({"tty": 0}, None),
        (
            {"line": ["/opt/conda/bin/python", "-m", "ipykernel_launcher", "-f", "x.json"], "tty": 34816},
            "notebook",
        ),
        ({"line": ["python", "/usr/bin/jupyter-lab"]}, "notebook"),
        ({"environment": {"JPY_PARENT_PID": "1"}}, "notebook"),
        ({"line": ["python", "train_jupyterlike.py"]}, None),
    ],
)
def test_a_terminal_and_a_notebook_are_told_apart(proc: Path, fields: dict[str, Any], session: str) -> None:
    write_proc(proc, 7, **fields)
    assert processes.describe(7).session == session


def test_a_container_is_told_and_what_it_says_of_itself_is_kept(proc: Path) -> None:
    mount = "36 35 0:22 /gpupool/slices/a-1 /run/gpupool/slice ro - tmpfs tmpfs rw\n"
    write_proc(proc, 7, uid=0, cgroup=DOCKER, mountinfo=mount)
    told = processes.describe(7)
    assert told.container == "docker:abababababab"
    assert processes.facts_of(told).labels.devices == {"a-1"}
    assert processes.facts_of(told).root_inside


def test_a_mount_of_a_users_own_container_proves_nothing(proc: Path) -> None:
    mount = "36 35 0:22 /gpupool/slices/a-1 /x ro - tmpfs tmpfs rw\n"
    own = DOCKER.replace("/system.slice", "/user.slice/user-1001.slice/user@1001.service")
    write_proc(proc, 7, cgroup=own, mountinfo=mount)
    facts = processes.facts_of(processes.describe(7))
    assert facts.labels == Labels()
    assert not facts.root_inside


@pytest.mark.parametrize(
    ("uid", "cgroup", "uid_map", "root"),
    [
        (0, DOCKER, "0 0 4294967295\n", True),
        (0, "0::/\n", "0 0 4294967295\n", False),
        (4_000_100_000, DOCKER, "0 4000100000 65536\n", True),  # a user namespace of the engine
        (4_000_100_007, DOCKER, "0 4000100000 65536\n", False),
        (4_000_100_000, DOCKER, "", False),
        (4_000_100_000, "0::/\n", "0 4000100000 65536\n", False),
    ],
)
def test_root_in_a_container_is_known_also_in_a_user_namespace(
    proc: Path, uid: int, cgroup: str, uid_map: str, root: bool
) -> None:
    write_proc(proc, 7, uid=uid, cgroup=cgroup, uid_map=uid_map)
    assert processes.facts_of(processes.describe(7)).root_inside is root


def test_a_named_account_that_made_itself_root_of_a_namespace_is_no_root(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "user_name", lambda uid: "bob")
    write_proc(proc, 7, uid=1002, cgroup=DOCKER, uid_map="0 1002 1\n")
    assert not processes.facts_of(processes.describe(7)).root_inside


def test_only_a_file_that_root_alone_can_change_names_the_program(proc: Path, tmp_path: Path) -> None:
    program = tmp_path / "Xorg"
    program.touch(mode=0o755)
    write_proc(proc, 7, exe=program)
    mine = "Xorg" if os.getuid() == 0 else None
    assert processes.facts_of(processes.describe(7)).program == mine
    program.chmod(0o775)
    write_proc(proc, 8, exe=program)
    assert processes.facts_of(processes.describe(8)).program is None
    write_proc(proc, 9)
    assert processes.facts_of(processes.describe(9)).program is None
