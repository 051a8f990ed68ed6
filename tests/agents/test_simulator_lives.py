"""Whether processes still run, told at once and never of another one."""

from __future__ import annotations

import os
import subprocess

import pytest

from agents import processes, simulator_lives


def watched(pid: int) -> bool:
    return pid in {pid for pid, _ in simulator_lives._watched}


def test_it_ends_with_the_process_and_its_descriptor_is_closed() -> None:
    one = subprocess.Popen(["sleep", "600"])
    began = processes.started(one.pid)
    assert began is not None
    assert all(simulator_lives.lives(one.pid, began) for _ in range(3))
    assert watched(one.pid)
    descriptor = simulator_lives._watched[one.pid, began]
    one.kill()
    one.wait()
    assert not simulator_lives.lives(one.pid, began)
    assert not watched(one.pid)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert not simulator_lives.lives(one.pid, began)


def test_another_process_under_the_same_pid_is_not_it() -> None:
    assert not simulator_lives.lives(os.getpid(), "another start")
    assert not simulator_lives.lives(2**22 + 1, "never")


def test_those_that_nobody_asks_about_any_more_are_cleared_away() -> None:
    first, second = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    assert simulator_lives.lives(first.pid, str(processes.started(first.pid)))
    first.kill()
    first.wait()
    assert simulator_lives.lives(second.pid, str(processes.started(second.pid)))
    assert (watched(first.pid), watched(second.pid)) == (False, True)
    second.kill()
    second.wait()
    assert not simulator_lives.lives(second.pid, "another start")
    assert not watched(second.pid)


def test_a_system_without_such_descriptors_is_asked_in_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    one = subprocess.Popen(["sleep", "600"])
    began = str(processes.started(one.pid))
    assert simulator_lives.lives(one.pid, began)
    one.kill()
    one.wait()
    assert not simulator_lives.lives(one.pid, began)
