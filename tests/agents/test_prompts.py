"""The file that a holder's prompt reads: what it says, and to whom."""

from __future__ import annotations

import json
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from agents.prompts import Prompts, content
from tests.agents.people import NOON, stay

SOON = NOON + timedelta(minutes=15)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run/gpupool"


def test_it_says_when_it_ends_why_and_how_to_extend() -> None:
    parts = [
        stay("a", reservation="r", url="https://p/r/1", why="reclaim", notice_until=SOON + timedelta(1)),
        stay("b", reservation="r", gpu="GPU-2", notice_until=SOON),
    ]
    assert content(parts) == {
        "reservation": "r",
        "team": "red",
        "start": "2026-03-02T10:00:00+00:00",
        "end": "2026-03-02T14:00:00+00:00",
        "ending": False,
        "notice_until": "2026-03-02T12:15:00+00:00",
        "why": "reclaim",
        "how_to_extend": "Open https://p/r/1 and choose Extend.",
        "url": "https://p/r/1",
        "slices": [{"allocation": "a", "gpu": "GPU-1"}, {"allocation": "b", "gpu": "GPU-2"}],
    }


def test_an_open_ended_stay_without_a_page_says_so() -> None:
    said = content([stay("a", end=None)])
    assert [said[key] for key in ("end", "notice_until", "why", "how_to_extend", "url")] == [None] * 5


def test_only_the_holder_can_read_it(run: Path) -> None:
    prompts = Prompts(run, uid_of={"alice": 54321, "red-jobs": 54322}.get)
    prompts.show([stay("a"), stay("b", users=("nobody-here", "red-jobs")), stay("c", users=())])
    assert stat.S_IMODE(run.stat().st_mode) == 0o755
    for name, uid in (("r-a", 54321), ("r-b", 54322), ("r-c", os.getuid())):
        seen = (run / f"{name}.json").stat()
        assert stat.S_IMODE(seen.st_mode) == 0o400
        assert seen.st_uid == (uid if os.getuid() == 0 else os.getuid())


def test_it_is_written_anew_only_when_something_changed(run: Path) -> None:
    prompts = Prompts(run)
    prompts.show([stay("a")])
    path = run / "r-a.json"
    first = path.stat().st_ino
    prompts.show([stay("a")])
    assert path.stat().st_ino == first
    prompts.show([stay("a", notice_until=SOON)])
    assert json.loads(path.read_text())["notice_until"] == SOON.isoformat()
    path.unlink()
    prompts.show([stay("a", notice_until=SOON)])
    assert path.exists()


def test_what_is_over_goes_also_after_a_crash_and_other_files_stay(run: Path) -> None:
    Prompts(run).show([stay("a"), stay("b")])
    (run / "slices").mkdir()
    (run / "README").touch()
    Prompts(run).show([stay("b")])
    assert sorted(path.name for path in run.iterdir()) == ["README", "r-b.json", "slices"]


def test_a_name_that_leads_elsewhere_is_not_written(run: Path) -> None:
    Prompts(run).show([stay("a", reservation="../../evil"), stay("b", reservation=""), stay("c")])
    assert [path.name for path in run.iterdir()] == ["r-c.json"]
    assert not (run.parent.parent / "evil.json").exists()


def test_a_link_that_waits_in_its_place_is_not_followed(run: Path, tmp_path: Path) -> None:
    run.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (run / ".r-a.new").symlink_to(victim)
    (run / "r-a.json").symlink_to(victim)
    Prompts(run).show([stay("a")])
    assert victim.read_text() == "kept"
    assert not (run / "r-a.json").is_symlink()


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_text("a file")
    Prompts(tmp_path / "run/gpupool").show([stay("a")])
    assert "Files for prompts" in caplog.text
