"""Who has a GPU's device file open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.openers import openers


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "dev/nvidia3"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def client(device: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that has the file open and says so."""
    code = f"import sys; file = open({str(device)!r}); print(); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_it_names_who_has_it_open(tmp_path: Path, client: subprocess.Popen[bytes]) -> None:
    found = openers(3, tmp_path)
    assert [one.pid for one in found] == [client.pid]
    assert found[0].uid == os.getuid()
    assert found[0].name
    assert found[0].started
    assert not found[0].computes


@pytest.mark.usefixtures("client")
def test_another_gpus_file_is_not_its(tmp_path: Path) -> None:
    assert openers(30, tmp_path) == ()
    assert openers(None, tmp_path) == ()


def test_the_agent_itself_is_in_nobodys_way(tmp_path: Path, device: Path) -> None:
    with device.open():
        assert openers(3, tmp_path) == ()
