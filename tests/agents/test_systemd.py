"""The unit under which a real node's agent runs: systemd takes it, and it is bound as its work allows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents import cdi
from agents.doctor_machine import HOOKS
from agents.place import DEFAULT, Place
from tests.agents.stand_in import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "gpupool-agent.service"
TMPFILES = FOLDER / "gpupool-agent.tmpfiles"
REAL = Place(real=True)
#: systemd's own measure, 0 to 10: below 5 is its "OK". A unit without any bound has 9.6.
EXPOSURE = 45


def settings() -> dict[str, str]:
    """NAME=value lines; the last of a name counts."""
    lines = (line for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    return dict(line.split("=", 1) for line in lines)


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: install Debian's package systemd")
    call = ["systemd-analyze", "--no-pager", *words]
    return subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a Python that is there."""
    own = tmp_path / UNIT.name
    own.write_text(UNIT.read_text().replace("/opt/gpupool/bin/python", sys.executable))
    return own


def test_systemd_understands_every_line_of_it(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


def test_a_line_that_systemd_does_not_know_would_be_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))
    assert "ProtectClocks" in analyze("verify", str(unit)).stderr


def test_it_is_bound_as_systemd_measures_it(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(unit))
    assert done.returncode == 0, done.stdout[-200:]


def test_without_its_bounds_it_would_be_found_exposed(unit: Path) -> None:
    bare = "\n".join(line for line in unit.read_text().splitlines() if line.startswith(("[", "Exec")))
    unit.write_text(bare)
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(unit)).returncode != 0


def test_its_folders_are_the_agents() -> None:
    found = settings()
    assert Path("/var/lib") / found["StateDirectory"] == DEFAULT
    assert found["StateDirectoryMode"] == "0700"
    assert Path("/run") / found["RuntimeDirectory"] == REAL.run
    assert found["ConditionPathExists"] == str(REAL.agent)


def test_a_restart_ends_no_holders_work() -> None:
    found = settings()
    assert found["KillMode"] == "process"
    assert found["RuntimeDirectoryPreserve"] == "yes"
    assert (found["Restart"], found["StartLimitIntervalSec"]) == ("always", "0")


def test_nothing_that_its_work_needs_is_taken_from_it() -> None:
    found = settings()
    assert not {"PrivateDevices", "DevicePolicy", "PrivateTmp", "ProtectProc", "User"} & set(found)
    assert {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_KILL"} <= set(found["CapabilityBoundingSet"].split())


def test_the_folders_that_are_made_at_boot_are_where_the_agent_looks() -> None:
    lines = [line.split() for line in TMPFILES.read_text().splitlines() if line and line[0] != "#"]
    made = {line[1]: line[2:5] for line in lines if line[0] == "d"}
    specs = str(cdi._folder(REAL)).removeprefix("/var")  # /var/run is /run
    assert {str(REAL.run), str(DEFAULT), specs} <= set(made)
    assert {str(REAL.hooks / name) for name in HOOKS} <= set(made)
    assert made[str(DEFAULT)] == ["0700", "root", "root"]
    assert {tuple(rights[1:]) for rights in made.values()} == {("root", "root")}
    assert ["x", "/tmp/vgpulock"] in lines
