"""The benchmark of the agent runs on a small node: it reaches into the agent, and must keep up with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = {
    "agent.command_came_median",
    "agent.command_applied_median",
    "agent.command_applied_p95",
    "agent.sample_cpu",
    "agent.sample_cpu_without_simulated_driver",
    "agent.share_of_a_core",
    "agent.memory",
    "agent.memory_growth",
}


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "bench.agent", *words]
    return subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)


def test_it_measures_a_small_node_and_says_each_figure_with_its_goal() -> None:
    done = bench("--gpus", "2", "--instances", "3", "--samples", "10", "--commands", "2")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["name"] for line in lines} == FIGURES, done.stderr
    assert all(line["value"] >= 0 or line["name"] == "agent.memory_growth" for line in lines)
    # Whether goals are met is a quiet machine's to say; that the exit status follows them is not.
    assert done.returncode == (0 if all(line["ok"] for line in lines) else 1)


def test_more_slices_than_fit_are_refused_in_words() -> None:
    done = bench("--gpus", "1", "--instances", "8")
    assert done.returncode == 2
    assert "1 GPUs have 1 to 7 slices" in done.stderr
