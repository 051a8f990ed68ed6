"""Who holds what, and the files by which a dcgm-exporter labels its own series."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from agents.exporter import Latest
from agents.exporter_holders import JobFiles, holders
from agents.gpu import Inventory
from pool.core.wire import Stay
from tests.agents.metrics import LOST, NODE, SHARED, SLICED, WHOLE, gpu, held, instance, record


def files(folder: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in folder.iterdir()}


def write(jobs: JobFiles, latest: Latest = NODE) -> None:
    jobs.write(latest.inventory, latest.holders())


class TestHolders:
    def test_an_instance_is_its_holders_by_what_the_agent_made(self) -> None:
        found = NODE.holders()[SLICED]
        assert {gi: one.reservation for gi, one in found.instances.items()} == {7: "res-m"}
        assert found.whole is None

    def test_what_is_wanted_but_not_in_force_is_nobodys(self) -> None:
        late = replace(NODE, held={SLICED: ()})
        assert late.holders()[SLICED].instances == {}

    def test_an_instance_that_is_not_ours_is_nobodys(self) -> None:
        foreign = gpu(SLICED, 0, mig=True, instances=(instance(3, 4),))
        mine = record(SLICED, held("m", start=0), mig=True)
        assert holders(foreign, mine, ("m",), {}).instances == {}

    def test_a_share_is_not_the_whole_gpu(self) -> None:
        found = NODE.holders()[SHARED]
        assert found.whole is None
        assert [one.allocation for one in found.shares] == ["s1", "s2"]

    def test_nobody_holds_a_lost_gpu(self) -> None:
        latest = replace(NODE, held={LOST: ("x",)})
        assert latest.holders()[LOST].whole is None

    def test_the_portals_word_names_the_reservation_where_the_layout_does_not(self) -> None:
        older = changed(held("a"), reservation="", team="")
        noon = datetime(2026, 1, 1, tzinfo=UTC)
        stay = Stay(allocation="a", reservation="r", gpu=WHOLE, team="t", owner="o", start=noon)
        found = holders(gpu(WHOLE, 0), record(WHOLE, older), ("a",), {"a": stay}).whole
        assert found is not None
        assert found.labels == {"reservation": "r", "team": "t"}


class TestJobFiles:
    def test_there_is_a_file_for_each_gpu_and_instance_that_is_held(self, tmp_path: Path) -> None:
        write(JobFiles(tmp_path / "run" / "jobs"))
        assert files(tmp_path / "run" / "jobs") == {
            "0": "res-a\n",
            "1.7": "res-m\n",
            "2": "res-s1\nres-s2\n",
        }

    def test_any_account_may_read_them(self, tmp_path: Path) -> None:
        write(JobFiles(tmp_path / "jobs"))
        assert {one.stat().st_mode & 0o777 for one in (tmp_path / "jobs").iterdir()} == {0o644}

    def test_what_is_held_no_more_has_no_file(self, tmp_path: Path) -> None:
        jobs = JobFiles(tmp_path)
        write(jobs)
        write(jobs, replace(NODE, held={WHOLE: ("a",)}))
        assert files(tmp_path) == {"0": "res-a\n"}

    def test_what_an_earlier_agent_left_goes_and_what_is_not_ours_stays(self, tmp_path: Path) -> None:
        for name in ("0", "5", "6.3", "notes.txt"):
            (tmp_path / name).write_text("old\n")
        write(JobFiles(tmp_path))
        assert set(files(tmp_path)) == {"0", "1.7", "2", "notes.txt"}
        assert files(tmp_path)["0"] == "res-a\n"

    def test_nothing_is_written_while_nothing_changes(self, tmp_path: Path) -> None:
        jobs = JobFiles(tmp_path)
        write(jobs)
        (tmp_path / "0").unlink()
        write(jobs)
        assert "0" not in files(tmp_path)

    def test_a_node_that_nobody_uses_gets_no_folder(self, tmp_path: Path) -> None:
        write(JobFiles(tmp_path / "jobs"), replace(NODE, inventory=Inventory(None, ())))
        assert not (tmp_path / "jobs").exists()

    def test_a_folder_that_cannot_be_written_is_said_once_and_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "jobs").write_text("a file is in the way")
        jobs = JobFiles(tmp_path / "jobs")
        write(jobs)
        write(jobs)
        assert len(caplog.records) == 1
        (tmp_path / "jobs").unlink()
        write(jobs)
        assert "0" in files(tmp_path / "jobs")
