"""`make bench`: which benchmarks it runs, and that it says what it leaves out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import __main__ as every
from bench.openb import judged


def test_every_benchmark_that_it_names_is_there() -> None:
    assert all(find_spec(call.split()[0]) for call in every.ALL)


@pytest.mark.parametrize("folder", [None, "/nonexistent"])
def test_without_the_traces_it_says_that_they_are_left_out(
    folder: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(every.openb(folder)) == []
    assert json.loads(capsys.readouterr().out)["name"] == "openb"


def test_every_trace_in_the_folder_is_played_and_judged_if_it_has_goals(tmp_path: Path) -> None:
    for name in ("node_list_gpu_node", "pod_list_default", "pod_list_mine"):
        (tmp_path / f"openb_{name}.csv.gz").touch()
    ours, mine = every.openb(str(tmp_path))
    assert ours[-2:] == ("--goals", every.GOALS["default"])
    assert "--goals" not in mine
    assert mine[mine.index("--seeds") + 1].startswith("42,43,")


def test_a_trace_is_judged_by_what_was_given_away_and_by_the_time_of_a_decision(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"trace": "default", "alloc": {"90": 89.9, "100": 95.8, "130": 96.0}, "us_per_decision": 800.0}
    assert judged(told, [89.9, 95.8, 95.9]) == 0
    assert judged(told, [89.9, 95.9, 95.9]) == 1
    assert judged({**told, "us_per_decision": 1001.0}, [89.9, 95.8, 95.9]) == 1
    assert '"openb.default.alloc_100"' in capsys.readouterr().out
