"""What happened is told once, in order, and outlives the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents import happened
from agents.happened import MOST, Log
from agents.place import Place


def test_it_is_kept_until_a_report_with_it_was_accepted() -> None:
    log = Log()
    log.add("xid", gpu="GPU-1", allocation="a", xid=79, gi=None)
    log.add("line", "one line")
    first, second = log.pending()
    assert (first.kind, first.gpu, first.allocation, first.data) == (
        "xid",
        "GPU-1",
        "a",
        {"xid": 79, "gi": None},
    )
    assert (second.kind, second.text) == ("line", "one line")
    assert second.n > first.n
    log.told(first.n)
    assert log.pending() == (second,)


def test_what_came_while_it_was_told_is_told_next() -> None:
    log = Log()
    log.add("hook")
    sent = log.pending()
    log.add("signal")
    log.told(sent[-1].n)
    assert [one.kind for one in log.pending()] == ["signal"]


def test_it_outlives_the_process(tmp_path: Path) -> None:
    place = Place(tmp_path)
    before = Log(place)
    before.add("signal", pid=7)
    after = Log(place)
    assert after.pending() == before.pending()
    after.told(after.pending()[-1].n)
    assert Log(place).pending() == ()


def test_numbers_rise_also_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    log = Log(place)
    log.add("line")
    newest = log.pending()[-1].n
    log.told(newest)
    monkeypatch.setattr(happened.time, "time_ns", lambda: 0)
    again = Log(place)
    again.add("line")
    assert again.pending()[-1].n > newest


def test_numbers_rise_also_when_the_file_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    now = happened.time.time_ns()
    monkeypatch.setattr(happened.time, "time_ns", lambda: now)
    log = Log(place)
    log.add("line")
    newest = log.pending()[-1].n
    place.happened.write_text("{half a")
    monkeypatch.setattr(happened.time, "time_ns", lambda: now + 50_000_000)  # a restart later
    again = Log(place)
    again.add("line")
    assert again.pending()[-1].n > newest


def test_the_oldest_goes_when_too_much_comes_together() -> None:
    log = Log()
    for number in range(MOST + 5):
        log.add("line", str(number))
    assert len(log.pending()) == MOST
    assert log.pending()[0].text == "5"


def test_a_disk_that_cannot_be_written_costs_nothing_but_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError("no space left")

    log = Log(Place(tmp_path))
    monkeypatch.setattr(happened, "write_whole", full)
    log.add("line")
    assert len(log.pending()) == 1


def test_long_texts_are_cut() -> None:
    log = Log()
    log.add("hook", "x" * 5000)
    assert len(log.pending()[0].text) == happened.LONGEST_TEXT
