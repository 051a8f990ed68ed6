"""The program that resets a GPU: what it is asked, and what its refusal becomes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agents.gpu import DriverRefusal
from agents.reset import Reset


def program(folder: Path, code: str) -> tuple[str, ...]:
    path = folder / "tool.py"
    path.write_text(code)
    return sys.executable, str(path), "--gpu-reset", "-i"


def test_it_is_called_with_the_gpus_uuid(tmp_path: Path) -> None:
    said = tmp_path / "said"
    Reset(program(tmp_path, f"import sys; open({str(said)!r}, 'w').write(' '.join(sys.argv[1:]))"))("GPU-1")
    assert said.read_text() == "--gpu-reset -i GPU-1"


def test_what_it_says_is_the_refusals_detail(tmp_path: Path) -> None:
    tool = program(tmp_path, "import sys; print('GPU is in use\\n by another client'); sys.exit(3)")
    with pytest.raises(DriverRefusal) as refusal:
        Reset(tool)("GPU-1")
    assert refusal.value.code == "reset_required"
    assert "GPU is in use by another client" in refusal.value.detail


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DriverRefusal, match="No such file"):
        Reset([str(tmp_path / "nvidia-smi")])("GPU-1")


def test_one_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.reset.LONGEST_S", 0.2)
    with pytest.raises(DriverRefusal, match="timed out"):
        Reset(program(tmp_path, "import threading; threading.Event().wait(30)"))("GPU-1")
