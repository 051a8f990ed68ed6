"""core.reported: each value of a report about a GPU, with and without sense."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pool.core import reported, wire
from pool.core.health import Reading
from pool.core.reported import Count

A = "0198c6a0-0000-7000-8000-00000000000a"
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def instance(**over: Any) -> wire.Instance:
    values: dict[str, Any] = {
        "gi": 1,
        "ci": 0,
        "mig_uuid": "MIG-1",
        "profile_id": 19,
        "profile": "1g.10gb",
        "start": 0,
        "size": 1,
        "owned": True,
    }
    return wire.Instance(**values | over)


def report(**over: Any) -> wire.GpuReport:
    return wire.GpuReport(**{"uuid": "GPU-1", "index": 0, "name": "NVIDIA H100 80GB HBM3"} | over)


def one_process(**over: Any) -> tuple[wire.Process, int]:
    count = Count()
    kept = reported.processes((wire.Process(**{"pid": 7} | over),), count)
    assert kept is not None
    return kept[0], count.dropped


# --- Processes ------------------------------------------------------------------


def test_a_process_that_makes_sense_is_left_as_it_is() -> None:
    process = wire.Process(
        pid=7,
        uid=1000,
        user="eve",
        name="python",
        memory_mib=2048,
        started="4711",
        started_at=NOON,
        command="python train.py --lr 0.1",
        container="9f86d081884c",
        cpu_s=12.5,
        read_bytes=1,
        written_bytes=2,
        session="notebook",
        first_busy_at=NOON,
        allocation=A,
        by="cdi",
    )
    count = Count()
    kept = reported.processes((process,), count)
    assert kept is not None
    assert kept[0] is process
    assert count.dropped == 0


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("uid", -1),
        ("memory_mib", -5),
        ("memory_mib", "much"),
        ("cpu_s", -1),
        ("cpu_s", float("nan")),
        ("cpu_s", float("inf")),
        ("cpu_s", True),
        ("read_bytes", 2**60),
        ("written_bytes", 0.5),
        ("session", "phone"),
        ("by", "guess"),
        ("allocation", "'; drop table"),
        ("started_at", datetime(2027, 3, 1, 12)),  # noqa: DTZ001 - without an offset it says no moment
        ("first_busy_at", datetime(2027, 3, 1, 12)),  # noqa: DTZ001
    ],
)
def test_a_value_of_a_process_that_makes_no_sense_is_not_measured(name: str, odd: object) -> None:
    process, dropped = one_process(**{name: odd})
    assert (getattr(process, name), dropped) == (None, 1)


@pytest.mark.parametrize("name", ["user", "name", "command", "container", "started"])
def test_texts_of_a_process_are_short_and_printable(name: str) -> None:
    process, dropped = one_process(**{name: "a\0\u202e\n" + "b" * 999})
    told = getattr(process, name)
    assert told.startswith("ab")
    assert told.isprintable()
    assert (len(told) <= reported.MOST_TEXT, dropped) == (True, 0)


@pytest.mark.parametrize("pid", [0, -7, 2**31])
def test_what_has_no_proper_pid_is_no_process(pid: int) -> None:
    count = Count()
    assert reported.processes((wire.Process(pid=pid), wire.Process(pid=7)), count) == (wire.Process(pid=7),)
    assert count.dropped == 1


def test_processes_that_could_not_be_read_are_not_none_at_all() -> None:
    assert reported.processes(None, Count()) is None
    assert reported.processes((), Count()) == ()


# --- Instances ------------------------------------------------------------------


def test_the_activity_of_an_instance_keeps_its_source() -> None:
    window = wire.Window(min=1, mean=2, max=3, last=3, source="gpm")
    kept, unsure = reported.instances((instance(activity_pct=window),), 8, Count())
    assert kept is not None
    assert (kept[0].activity_pct, unsure) == (Reading(1, 2, 3, 3, "gpm"), False)


@pytest.mark.parametrize(
    ("name", "odd"), [("activity_pct", "high"), ("memory_activity_pct", 7), ("sm", -1), ("allocation", "x")]
)
def test_a_value_of_an_instance_that_makes_no_sense_is_not_measured(name: str, odd: object) -> None:
    count = Count()
    kept, unsure = reported.instances((instance(**{name: odd}),), 8, count)
    assert kept is not None
    assert (getattr(kept[0], name), unsure, count.dropped) == (None, False, 1)


# --- Shares -----------------------------------------------------------------------


def test_a_share_is_taken_once_and_in_a_state_that_is_known() -> None:
    count = Count()
    good = wire.ShareSeen(allocation=A, state="over", memory_used_mib=4096)
    odd = (wire.ShareSeen(allocation="x", state="ok"), wire.ShareSeen(allocation=A, state="odd"), good)
    assert reported.shares((good, *odd), count) == (good,)
    assert count.dropped == 3


def test_the_memory_of_a_share_may_be_nonsense_without_losing_the_share() -> None:
    count = Count()
    (one,) = reported.shares((wire.ShareSeen(allocation=A, state="ok", memory_used_mib=-1),), count)
    assert (one.memory_used_mib, count.dropped) == (None, 1)


# --- Health -------------------------------------------------------------------------


def test_health_holds_only_what_is_known() -> None:
    assert reported.health(report(), Count()) == {}
    known = reported.health(
        report(
            sm_clock_mhz=1980,
            throttle=("sw_power_cap", "idle"),
            ecc_corrected=0,
            remapped=wire.Remapped(correctable=1, uncorrectable=0, pending=True, failure=False),
            fabric_state="completed",
            compute_mode="default",
            reset=3,
        ),
        Count(),
    )
    assert known == {
        "sm_clock_mhz": 1980,
        "throttle": ["idle", "sw_power_cap"],
        "ecc_corrected": 0,
        "remapped": {"correctable": 1, "uncorrectable": 0, "pending": True, "failure": False},
        "fabric_state": "completed",
        "compute_mode": "default",
        "reset": 3,
    }


@pytest.mark.parametrize(
    ("name", "odd"),
    [("sm_clock_mhz", 99_999), ("ecc_corrected", -1), ("ecc_uncorrected", "2"), ("reset", -1)],
)
def test_a_value_of_health_that_makes_no_sense_is_not_known(name: str, odd: object) -> None:
    count = Count()
    assert reported.health(report(**{name: odd}), count) == {}
    assert count.dropped == 1


def test_words_are_words() -> None:
    assert reported.words(["slurmd", "mig-manager", "slurmd", "<b>", "a b", "x" * 33]) == [
        "mig-manager",
        "slurmd",
    ]
    assert reported.words(["mps", "odd"], known=frozenset({"mps", "hami"})) == ["mps"]
    assert (reported.word("READY"), reported.word("<b>"), reported.word(None)) == ("READY", "", "")


@pytest.mark.parametrize(
    "odd", [None, "", "/", "run", "/a b", "/a:/b", "/a/../b", "/$(id)", "/a\n", "/a" * 101]
)
def test_a_folder_that_is_no_plain_path_is_not_taken(odd: str | None) -> None:
    assert reported.folder(odd) == ""


def test_a_folder_is_taken_as_it_is() -> None:
    assert reported.folder("/srv/gpupool.d/run-1") == "/srv/gpupool.d/run-1"


def test_links_have_a_fixed_order_and_a_neighbour_with_a_proper_name() -> None:
    count = Count()
    raw = (
        wire.Link(peer=None, kind="switch", count=18),
        wire.Link(peer="GPU-2", kind="gpu", count=4),
        wire.Link(peer="GPU-1", kind="gpu", count=-4),
        wire.Link(peer="../etc", kind="gpu", count=4),
    )
    assert reported.links(raw, count) == [
        {"peer": "GPU-1", "kind": "gpu", "count": None},
        {"peer": "GPU-2", "kind": "gpu", "count": 4},
        {"peer": None, "kind": "switch", "count": 18},
    ]
    assert count.dropped == 2
    assert reported.links(None, count) is None
    assert reported.links((), count) == []


def test_activities_of_a_gpu_are_windows_like_the_others() -> None:
    window = wire.Window(min=0, mean=50, max=100, last=70, source="dcgm")
    found = reported.readings(report(activity_pct=window, memory_activity_pct="busy"), None, count := Count())
    assert found == {"activity_pct": Reading(0, 50, 100, 70, "dcgm")}
    assert count.dropped == 1
