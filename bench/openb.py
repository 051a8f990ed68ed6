"""`python -m bench.openb`: how much of a cluster a policy gives away, on a trace of the openb format.

The protocol of FGD (USENIX ATC'23): arrivals without departures, a task that fits
nowhere is lost, and what is given away is compared when 90, 100 and 130 % of the
GPUs have been asked for. docs/placement.md says what came out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.goals import Board
from bench.openb_rivals import Anywhere, BestFit, Fgd
from bench.openb_trace import arrivals, milli, name_of, nodes_of, tasks_of
from pool.core import selfplay
from pool.core.filling import BEST_FIT, Filling, Rating
from pool.core.mix import Kind, Mix, learn
from pool.core.usual import Model
from pool.core.worth import Nodes, Worth

POLICIES = ("gpupool", "fgd", "bestfit", "random")
#: Those to whom the mix matters.
LEARNERS = ("gpupool", "fgd")
MIXES = ("whole-file", "arrivals")
#: Percent of the GPUs' thousandths asked for, at which is looked.
LOOKS = (90, 100, 130)
#: One decision may take so long, in microseconds.
LONGEST_US = 1000
#: A policy that learns does so when so many tasks have come, and whenever they have doubled since.
FIRST_LESSON = 64
#: It chooses its parameters by self-play at these lessons only.
PLAYED_AT = (1024, 4096)
#: With how much effort, then.
LATER_EFFORT = 0


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What one benchmark plays: a cluster, and the tasks that come."""

    name: str
    nodes: Nodes
    models: tuple[Model, ...]
    tasks: list[Kind]


@dataclass(slots=True)
class Score:
    """One run: percent given away at each look, and what the decisions took."""

    alloc: dict[int, float]
    seconds: float
    decisions: int


class Player:
    """A policy that knows the whole mix beforehand, or (`mix` None) learns it from what has come so far."""

    def __init__(self, trace: Trace, policy: str, mix: Mix | None) -> None:
        self._trace = trace
        self._policy = policy
        self._learns = mix is None and policy in LEARNERS
        self._mix = mix or learn(())
        self._lesson = FIRST_LESSON

    def filling(self, seed: int) -> Filling:
        nodes, models = self._trace.nodes, self._trace.models
        if self._policy == "random":
            return Anywhere(nodes, models, self._rating(), seed)
        return Filling(nodes, models, self._rating(), BEST_FIT if self._policy == "gpupool" else 0.0)

    def learns_at(self, number: int) -> bool:
        return self._learns and number == self._lesson

    def lesson(self, come: Sequence[Kind]) -> Rating:
        """How places are rated from now on, after what has come."""
        self._lesson = len(come) * 2
        if self._policy == "fgd":
            self._mix = learn(come, prior={})
            return self._rating()
        self._mix = learn(come, parameters=self._mix.parameters)
        if len(come) in PLAYED_AT:
            self._mix = selfplay.choose(self._mix, self._trace.nodes, self._trace.models, effort=LATER_EFFORT)
        return self._rating()

    def _rating(self) -> Rating:
        if self._policy == "gpupool":
            return Worth(self._mix, self._trace.models)
        if self._policy == "fgd":
            return Fgd(self._mix, self._trace.models)
        return BestFit(self._trace.models, self._trace.nodes)


def run(trace: Trace, policy: str, mix: Mix | None, seed: int, looks: Sequence[int] = LOOKS) -> Score:
    """All arrivals of one seed, placed one after the other; the time is that of the decisions alone.

    What is given away at a look is the mean over all arrivals at which so much, rounded, has been asked.
    """
    player = Player(trace, policy, mix)
    filling = player.filling(seed)
    stream = arrivals(trace.tasks, filling.total, seed)
    seen: dict[int, list[float]] = defaultdict(list)
    asked, seconds = 0, 0.0
    for number, task in enumerate(stream):
        if player.learns_at(number):
            filling.rate_by(player.lesson(stream[:number]))
        asked += milli(task)
        begun = time.perf_counter()
        place = filling.choose(task)
        seconds += time.perf_counter() - begun
        if place is not None:
            filling.take(task, place)
        seen[round(100 * asked / filling.total)].append(100 * filling.fullness)
    return Score({look: statistics.fmean(seen[look]) for look in looks}, seconds, len(stream))


def known_mix(trace: Trace, policy: str, effort: int) -> Mix:
    """The trace's own mix, with the parameters that the policy chooses for it."""
    mix = learn(trace.tasks, prior={})
    if policy != "gpupool":
        return mix
    begun = time.perf_counter()
    mix = selfplay.choose(mix, trace.nodes, trace.models, effort=effort)
    said = {"self_play_s": round(time.perf_counter() - begun, 1), "parameters": asdict(mix.parameters)}
    print(json.dumps(said), file=sys.stderr, flush=True)
    return mix


def measure(
    trace: Trace, policy: str, mix_name: str, seeds: Sequence[int], effort: int = 1
) -> dict[str, object]:
    """The line that is printed: means over the seeds."""
    mix = known_mix(trace, policy, effort) if mix_name == "whole-file" else None
    scores = [run(trace, policy, mix, seed) for seed in seeds]
    seconds = sum(score.seconds for score in scores)
    decisions = sum(score.decisions for score in scores)
    return {
        "trace": trace.name,
        "policy": policy,
        "mix": mix_name,
        "seeds": list(seeds),
        "alloc": {
            str(look): round(statistics.fmean(score.alloc[look] for score in scores), 3) for look in LOOKS
        },
        "us_per_decision": round(1e6 * seconds / decisions, 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=Path, required=True, help="sn,cpu_milli,memory_mib,gpu,model")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="name,cpu_milli,memory_mib,num_gpu,gpu_milli,…"
    )
    parser.add_argument("--seeds", default="42", help="numbers with commas between them")
    parser.add_argument("--policy", choices=POLICIES, default="gpupool")
    parser.add_argument("--mix", choices=MIXES, default="whole-file")
    parser.add_argument("--effort", type=int, default=1, help="of the self-play; 0 is a short one")
    parser.add_argument(
        "--goals", help="percent to be given away at least, at 90, 100 and 130: 89.9,95.8,95.9"
    )
    given = parser.parse_args(argv)
    nodes, models = nodes_of(given.nodes)
    trace = Trace(name_of(given.tasks), nodes, models, tasks_of(given.tasks))
    seeds = [int(seed) for seed in given.seeds.split(",")]
    told = measure(trace, given.policy, given.mix, seeds, given.effort)
    print(json.dumps(told), flush=True)
    return judged(told, [float(goal) for goal in given.goals.split(",")]) if given.goals else 0


def judged(told: Mapping[str, Any], goals: Sequence[float]) -> int:
    """Say whether the goals were met, and that of the time of one decision; 1 if not all were."""
    board, name = Board(), f"openb.{told['trace']}"
    for look, goal in zip(LOOKS, goals, strict=True):
        board.at_least(f"{name}.alloc_{look}", told["alloc"][str(look)], "%", goal)
    board.at_most(f"{name}.decision", told["us_per_decision"], "us", LONGEST_US)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
