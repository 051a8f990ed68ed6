"""Programs that run without their share's limits: real ones, with a real library in HAMi-core's place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from agents import processes
from agents.escapes import Escapes, looser, without_library
from pool.core.wire import Process, Share

SHARE = Share(memory_mib=8_192, compute_pct=20, limit_pct=20)
MEMORY, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT": "8192m", "CUDA_DEVICE_SM_LIMIT": "20"}
NOBODY = 2**22 + 1  # above any pid_max


@pytest.fixture
def library(tmp_path: Path) -> str:
    lines = Path("/proc/self/maps").read_text().splitlines()
    some = next(line.split()[-1] for line in lines if "/libm" in line and ".so" in line)
    return shutil.copy(some, tmp_path / "libvgpu.so")


@contextmanager
def running(settings: dict[str, str]) -> Iterator[Process]:
    """A program that has started: what it echoes, it says after its libraries are loaded."""
    whole = {"PATH": os.environ["PATH"], **settings}
    with subprocess.Popen(["cat"], env=whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"ready\n")
        child.stdin.flush()
        child.stdout.readline()
        try:
            yield Process(pid=child.pid, started=processes.started(child.pid))
        finally:
            child.kill()


class TestLibrary:
    def test_a_program_with_it_is_fine(self, library: str) -> None:
        with running({"LD_PRELOAD": library, **HAMI}) as program:
            assert without_library(program.pid, SHARE) == ""

    def test_a_program_without_it_is_named(self) -> None:
        with running({}) as program:
            assert f"process {program.pid} (cat) runs without" in without_library(program.pid, SHARE)

    def test_a_program_that_switches_it_off_is_named(self, library: str) -> None:
        with running({"LD_PRELOAD": library, "CUDA_DISABLE_CONTROL": "TRUE"}) as program:
            assert "CUDA_DISABLE_CONTROL" in without_library(program.pid, SHARE)

    @pytest.mark.parametrize(
        "more",
        [
            {"CUDA_DEVICE_MEMORY_LIMIT": "9g"},
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "9g"},
            {"CUDA_DEVICE_SM_LIMIT_0": "90"},
        ],
    )
    def test_a_program_with_looser_limits_is_named(self, library: str, more: dict[str, str]) -> None:
        with running({"LD_PRELOAD": library, **HAMI, **more}) as program:
            assert "as it should" in without_library(program.pid, SHARE)

    def test_what_is_gone_is_not_accused(self) -> None:
        assert without_library(NOBODY, SHARE) == ""
        assert looser(NOBODY, SHARE) == ""


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({MEMORY: "0=8192M", THREADS: "20"}, ""),
        ({MEMORY: "0=8G", THREADS: "20"}, ""),
        ({MEMORY: "0=100M", THREADS: "5"}, ""),
        ({MEMORY: "0=9G", THREADS: "20"}, MEMORY),
        ({THREADS: "20"}, MEMORY),
        ({MEMORY: "0=8G"}, THREADS),
        ({MEMORY: "0=8G", THREADS: "100"}, THREADS),
    ],
)
def test_limits_of_mps_may_be_tightened_and_not_loosened(settings: dict[str, str], names: str) -> None:
    with running(settings) as program:
        said = looser(program.pid, SHARE)
        assert (names in said) if names else said == ""


class TestEscapes:
    def test_the_first_that_escapes_is_told(self, library: str) -> None:
        look = partial(without_library, share=SHARE)
        with running({"LD_PRELOAD": library, **HAMI}) as good, running({}) as bad:
            said = Escapes().first("a", [good, bad], look)
            assert f"process {bad.pid} " in said

    def test_the_machines_own_are_not_looked_at(self) -> None:
        with running({}) as program:
            own = Process(pid=program.pid, started=program.started, system=True)
            assert Escapes().first("a", [own], partial(without_library, share=SHARE)) == ""

    def test_each_is_looked_at_once_until_its_share_is_forgotten(self) -> None:
        looks: list[int] = []
        escapes, found = Escapes(), [Process(pid=1, started="1"), Process(pid=2, started="1")]

        def look(pid: int) -> str:
            looks.append(pid)
            return "escaped" if pid == 2 else ""

        for _ in range(3):
            assert escapes.first("a", found, look) == "escaped"
        assert looks == [1, 2]
        escapes.forget(["a"])
        escapes.first("a", found, look)
        assert looks == [1, 2]
        escapes.forget(["b"])
        escapes.first("a", found, look)
        assert looks == [1, 2, 1, 2]

    def test_another_process_under_the_same_pid_is_looked_at(self) -> None:
        escapes = Escapes()
        assert escapes.first("a", [Process(pid=1, started="1")], lambda _: "escaped") == "escaped"
        assert escapes.first("a", [Process(pid=1, started="2")], lambda _: "") == ""

    def test_a_share_of_mps_is_looked_at_with_its_own_limits(self) -> None:
        with running({MEMORY: "0=8G", THREADS: "20"}) as program:
            smaller = Share(memory_mib=4_096, compute_pct=20, limit_pct=20)
            assert Escapes().first("a", [program], partial(looser, share=SHARE)) == ""
            assert Escapes().first("b", [program], partial(looser, share=smaller)) != ""
