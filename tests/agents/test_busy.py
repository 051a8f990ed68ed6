"""Since when a process is at work, as far as it can be told from the others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agents.busy import FirstBusy
from agents.gpu import Gpu, InstanceReadings, Readings
from agents.place import Place
from tests.agents.people import GPU, gpu, instance, process, slices


@pytest.fixture
def busy(tmp_path: Path) -> FirstBusy:
    return FirstBusy(Place(tmp_path))


def at(one: FirstBusy, seen: Gpu, **readings: Any) -> dict[int, datetime | None]:
    one.note({GPU: Readings(**readings)})
    (told,) = one.mark([seen])
    inside = [row for some in told.instances or () for row in some.processes or ()]
    return {row.pid: row.first_busy_at for row in (*(told.processes or ()), *inside)}


def test_the_first_busy_sample_counts_and_stays(busy: FirstBusy) -> None:
    before = datetime.now(UTC)
    assert at(busy, gpu(process(1)), utilization_pct=0) == {1: None}
    first = at(busy, gpu(process(1)), utilization_pct=80)[1]
    assert first is not None
    assert before <= first <= datetime.now(UTC)
    assert at(busy, gpu(process(1)), utilization_pct=0) == {1: first}
    assert at(busy, gpu(process(1)), utilization_pct=90) == {1: first}


def test_its_own_activity_counts_before_the_coarse_one(busy: FirstBusy) -> None:
    assert at(busy, gpu(process(1)), utilization_pct=100, activity_pct=0.0) == {1: None}


def test_of_two_nobody_can_say_which_is_at_work(busy: FirstBusy) -> None:
    both = gpu(process(1), process(2))
    assert at(busy, both, utilization_pct=80) == {1: None, 2: None}
    assert at(busy, gpu(process(1)), utilization_pct=80)[1] is not None


def test_what_only_draws_and_the_system_do_not_make_two(busy: FirstBusy) -> None:
    seen = gpu(process(1), process(2, computes=False), process(3, system=True))
    told = at(busy, seen, utilization_pct=80)
    assert told[1] is not None
    assert (told[2], told[3]) == (None, None)


def test_what_is_not_measured_is_not_idle_and_not_busy(busy: FirstBusy) -> None:
    assert at(busy, gpu(process(1))) == {1: None}


def test_each_instance_is_measured_for_itself(busy: FirstBusy) -> None:
    seen = slices(instance(1, 0, process(1)), instance(2, 1, process(2)))
    readings = {1: InstanceReadings(activity_pct=50.0), 2: InstanceReadings(activity_pct=0.2)}
    told = at(busy, seen, activity_pct=7.0, instances=readings)
    assert told[1] is not None
    assert told[2] is None


def test_it_outlives_a_restart_and_goes_with_the_process(busy: FirstBusy, tmp_path: Path) -> None:
    first = at(busy, gpu(process(1)), utilization_pct=80)[1]
    again = FirstBusy(Place(tmp_path))
    assert at(again, gpu(process(1)), utilization_pct=80) == {1: first}
    assert at(again, gpu(), utilization_pct=0) == {}
    assert at(FirstBusy(Place(tmp_path)), gpu(process(1)), utilization_pct=0) == {1: None}


def test_while_something_cannot_be_read_nothing_is_forgotten(busy: FirstBusy) -> None:
    first = at(busy, gpu(process(1)), utilization_pct=80)[1]
    busy.mark([Gpu(GPU, 0, "x", processes=None, instances=None)])
    busy.mark([Gpu(GPU, 0, "x", lost=True)])
    assert at(busy, gpu(process(1)), utilization_pct=0) == {1: first}


def test_another_process_under_the_pid_begins_anew(busy: FirstBusy) -> None:
    at(busy, gpu(process(1)), utilization_pct=80)
    assert at(busy, gpu(process(1, started="6")), utilization_pct=0) == {1: None}


def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "busy.json").write_text("{")
    assert at(FirstBusy(Place(tmp_path)), gpu(process(1)), utilization_pct=0) == {1: None}
