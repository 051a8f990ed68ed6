"""The record on disk: what is ours, what was asked for, and what a boot takes away."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from agents import record
from agents.place import Place
from agents.record import GpuRecord, Ledger, Made, Whole
from tests.agents.stand_in import command, slice_

MADE = Made(profile_id=19, start=0, size=1, allocation="a", owner="o")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_was_noted_is_there_after_a_restart(place: Place) -> None:
    before = Ledger(place, "boot-1")
    before.want(command("GPU-1", 7, slice_("a", 0)))
    before.put("GPU-1", MADE)
    before.applied("GPU-1", 7)
    before.keep_rules(["GPU-2", "GPU-1"], True)
    after = Ledger(place, "boot-1")
    assert after.record == before.record
    assert after.gpu("GPU-1").applied == after.gpu("GPU-1").generation == 7
    assert after.record.manage == ("GPU-1", "GPU-2")
    assert after.record.frozen


def test_a_boot_takes_the_instances_and_leaves_the_wishes(place: Place) -> None:
    before = Ledger(place, "boot-1")
    before.want(command("GPU-1", 7))
    before.put("GPU-1", MADE)
    before.applied("GPU-1", 7)
    after = Ledger(place, "boot-2")
    assert after.gpu("GPU-1") == GpuRecord(wanted=command("GPU-1", 7))
    assert Ledger(place, "boot-2").record == after.record


def test_a_boot_that_nobody_has_noticed_yet_takes_nothing_that_is_noted_after_it(place: Place) -> None:
    boot = ["boot-1"]
    ledger = Ledger(place, lambda: boot[0])
    ledger.put("GPU-1", Made(profile_id=19, start=4, size=1, allocation="b", owner="o"))
    boot[0] = "boot-2"
    ledger.put("GPU-1", MADE)
    assert ledger.record.boot_id == "boot-2"
    assert ledger.gpu("GPU-1").made == (MADE,)
    ledger.notice_boot()
    assert ledger.gpu("GPU-1").made == Ledger(place, "boot-2").gpu("GPU-1").made == (MADE,)


def test_an_instance_replaces_the_note_at_its_place(place: Place) -> None:
    ledger = Ledger(place, "b")
    ledger.put("GPU-1", Made(profile_id=19, start=0, size=1, allocation="a", owner="o", state="making"))
    ledger.put("GPU-1", MADE)
    assert ledger.gpu("GPU-1").made == (MADE,)
    ledger.drop("GPU-1", [MADE.span])
    assert ledger.gpu("GPU-1").made == ()


def test_a_record_that_cannot_be_read_is_put_aside(place: Place) -> None:
    place.record.write_text("{half a")
    assert Ledger(place, "b").gpu("GPU-1") == GpuRecord()
    assert place.record.with_suffix(".unreadable").read_text() == "{half a"


def test_what_cannot_be_written_is_not_believed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(place, "b")

    def full(*args: object, **more: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(record, "write_whole", full)
    with pytest.raises(OSError, match="no space"):
        ledger.put("GPU-1", MADE)
    assert ledger.gpu("GPU-1").made == ()


def test_rules_are_news_only_once(place: Place) -> None:
    ledger = Ledger(place, "b")
    assert ledger.keep_rules(["GPU-1"], False)
    assert not ledger.keep_rules(["GPU-1"], False)
    assert ledger.keep_rules(["GPU-1"], True)


def test_the_record_is_for_its_owner_only(place: Place) -> None:
    Ledger(place, "b").put("GPU-1", MADE)
    assert stat.S_IMODE(os.stat(place.record).st_mode) == 0o600


class TestWholeGpus:
    def test_whom_a_gpu_was_handed_to_outlives_a_boot(self, place: Place) -> None:
        before = Ledger(place, "boot-1")
        before.hand("GPU-1", Whole(allocation="w", owner="o"))
        after = Ledger(place, "boot-2")
        assert after.gpu("GPU-1").has_whole("w")
        assert not after.gpu("GPU-1").has_whole("other")

    def test_a_record_of_the_former_version_counts_by_what_was_applied(self, place: Place) -> None:
        """As it was written before the holder of a whole GPU was on record."""
        place.record.write_text(
            '{"boot_id":"b","gpus":{"GPU-1":{"wanted":{"wire":1,"id":"c","node":"node-1","gpu":"GPU-1",'
            '"generation":4,"layout":{"mig":false,"held":[{"allocation":"w","owner":"o","profile":null,'
            '"profile_id":null,"start":0,"size":8,"phase":"run"}]}},"applied":4,"made":[]}},'
            '"manage":["GPU-1"],"frozen":false}'
        )
        gpu = Ledger(place, "b").gpu("GPU-1")
        assert gpu.has_whole("w")
        assert (gpu.reset, gpu.whole, gpu.compute_mode) == (0, None, None)
        assert gpu.wanted is not None
        assert gpu.wanted.layout.held[0].share is None


class TestResets:
    def test_a_reset_takes_the_instances_and_the_compute_mode(self, place: Place) -> None:
        ledger = Ledger(place, "b")
        ledger.put("GPU-1", MADE)
        ledger.closed("GPU-1", "default")
        ledger.reset("GPU-1", 3)
        assert ledger.gpu("GPU-1") == GpuRecord(reset=3)
        assert Ledger(place, "b").gpu("GPU-1").reset == 3

    def test_a_boot_carries_out_what_was_wanted(self, place: Place) -> None:
        ledger = Ledger(place, "boot-1")
        wanted = command("GPU-1", 7)
        layout = msgspec.structs.replace(wanted.layout, reset=5)
        ledger.want(msgspec.structs.replace(wanted, layout=layout))
        ledger.closed("GPU-1", "default")
        booted = Ledger(place, "boot-2").gpu("GPU-1")
        assert (booted.reset, booted.compute_mode) == (5, None)


class TestForbidden:
    def test_only_what_is_managed_may_be_changed_and_nothing_while_frozen(self, place: Place) -> None:
        ledger = Ledger(place, "b")
        ledger.keep_rules(["GPU-1"], False)
        assert (ledger.forbidden("GPU-1"), ledger.forbidden("GPU-2")) == (None, "observe")
        ledger.keep_rules(["GPU-1"], True)
        assert ledger.forbidden("GPU-1") == "frozen"
        ledger.keep_rules(["GPU-1"], False)
        place.frozen.touch()
        assert ledger.forbidden("GPU-1") == ledger.forbidden("GPU-2") == "frozen"
