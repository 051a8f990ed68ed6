"""Signals reach the very process that was seen, or nobody. No test signals what it did not start."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents import processes, signals
from agents.signals import Outcome, Seen, send

TERM = signal.SIGTERM


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as one:
        yield one
        one.kill()


def seen(child: subprocess.Popen[bytes]) -> Seen:
    return Seen("boot-1", child.pid, processes.started(child.pid), os.getuid())


def test_the_process_that_was_seen_gets_the_signal(child: subprocess.Popen[bytes]) -> None:
    assert send(seen(child), TERM, "boot-1") is Outcome.SENT
    assert child.wait(10) == -TERM


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"started": "12345"}, Outcome.GONE),  # another has the pid by now
        ({"boot_id": "boot-0"}, Outcome.GONE),
        ({"uid": 54321}, Outcome.REFUSED),
        ({"uid": None}, Outcome.REFUSED),
        ({"started": None}, Outcome.REFUSED),
        ({"pid": 1}, Outcome.REFUSED),
        ({"pid": 0}, Outcome.REFUSED),
        ({"pid": -1}, Outcome.REFUSED),
        ({"pid": 2**22 + 1}, Outcome.GONE),
    ],
)
def test_whatever_does_not_match_gets_none(
    child: subprocess.Popen[bytes], change: dict[str, object], outcome: Outcome
) -> None:
    assert send(replace(seen(child), **change), TERM, "boot-1") is outcome  # type: ignore[arg-type]
    assert child.poll() is None


def test_it_never_signals_itself() -> None:
    own = Seen("b", os.getpid(), processes.started(os.getpid()), os.getuid())
    assert send(own, TERM, "b") is Outcome.REFUSED


def test_one_that_ended_is_gone(child: subprocess.Popen[bytes]) -> None:
    before = seen(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert send(before, TERM, "boot-1") is Outcome.GONE  # a zombie still has its pid
    child.wait()
    assert send(before, TERM, "boot-1") is Outcome.GONE


def test_the_pid_is_pinned_before_it_is_compared(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends, and whose pid goes to another, between the comparison and the signal."""
    before = seen(child)

    def uid(pid: int) -> tuple[int, str]:
        child.kill()
        child.wait()  # from here on the pid may be anybody's
        return os.getuid(), "x"

    monkeypatch.setattr(processes, "owner", uid)
    assert send(before, TERM, "boot-1") is Outcome.GONE


@pytest.mark.parametrize("error", [PermissionError(1, "no"), OSError(38, "no such call")])
def test_what_the_system_does_not_allow_is_refused(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def no(*_: object) -> None:
        raise error

    monkeypatch.setattr(signals.signal, "pidfd_send_signal", no)
    assert send(seen(child), TERM, "boot-1") is Outcome.REFUSED
    monkeypatch.setattr(os, "pidfd_open", no)
    assert send(seen(child), TERM, "boot-1") is Outcome.REFUSED


def test_a_system_without_pidfds_signals_nothing(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert send(seen(child), TERM, "boot-1") is Outcome.REFUSED


def test_no_handle_is_left_open(child: subprocess.Popen[bytes]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for change in ({"started": "1"}, {"uid": 54321}, {}):
        send(replace(seen(child), **change), signal.SIGCONT, "boot-1")  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before
