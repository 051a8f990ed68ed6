"""`python -m bench.mig`: how many asks for MIG slices are served, beside first fit, best fit and optima.

A JSON line for each policy and mix, and one with the means over all mixes that were
played. `optimum` is offline and proven (few GPUs only); `online` is the best without
knowing ends (two GPUs, by value iteration), `blind` the policy of booking without ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.goals import Board
from bench.mig_offline import NotProvenError, optimum
from bench.mig_online import Online, TooLargeError
from bench.mig_streams import (
    MIXES,
    Place,
    Policy,
    Request,
    World,
    best_fit,
    blind,
    first_fit,
    gpupool,
    play,
    result,
)
from pool.core.mig import models

#: GPUs times requests up to which the offline optimum is looked for without being asked for.
PROVABLE = 300


@dataclass(slots=True)
class Score:
    """Percentages of the streams of one policy, and how many of them count."""

    requests: list[float] = field(default_factory=list)
    slice_time: list[float] = field(default_factory=list)
    unproven: int = 0

    def line(self, **about: object) -> dict[str, object]:
        known = len(self.requests)
        line = {
            **about,
            "seeds": known,
            "accepted": round(sum(self.requests) / known, 3) if known else None,
            "slice_time": round(sum(self.slice_time) / known, 3) if known else None,
        }
        return {**line, "unproven": self.unproven} if self.unproven else line


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked of this benchmark."""

    requests: int
    load: float
    seeds: Sequence[int]
    seconds: float
    wanted: tuple[str, ...]

    def scores(self, world: World) -> dict[str, Score]:
        """Every policy on the same streams."""
        policies = dict(self.policies(world))
        scores: dict[str, Score] = defaultdict(Score)
        for seed in self.seeds:
            stream = world.stream(self.requests, self.load, seed)
            best: list[Place | None] = []
            for name, policy in policies.items():
                _, went = play(world, stream, policy)
                self._count(scores[name], world, stream, went)
                best = max(best, went, key=lambda went: sum(place is not None for place in went))
            if "optimum" in self.wanted:
                try:
                    self._count(scores["optimum"], world, stream, optimum(world, stream, best, self.seconds))
                except NotProvenError:
                    scores["optimum"].unproven += 1
        return scores

    def policies(self, world: World) -> Iterator[tuple[str, Policy]]:
        made: dict[str, Callable[[], Policy]] = {
            "gpupool": lambda: gpupool(world),
            "first": lambda: first_fit,
            "best": lambda: best_fit,
            "blind": lambda: blind(world),
            "online": lambda: Online(world, self.load).policy(),
        }
        for name, make in made.items():
            if name in self.wanted:
                yield name, make()

    def _count(
        self, score: Score, world: World, stream: Sequence[Request], went: Sequence[Place | None]
    ) -> None:
        got = result(world, stream, went)
        score.requests.append(100 * got.served / got.asked)
        score.slice_time.append(100 * got.slice_time / got.asked_slice_time)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.mig", description=__doc__)
    parser.add_argument("--gpus", type=int, default=3)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--mix", choices=sorted(MIXES), help="one mix; all four without it")
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--seeds", type=int, default=40, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="for streams on which nothing was tried")
    parser.add_argument("--model", choices=sorted(models()), default="A100-40GB")
    parser.add_argument("--seconds", type=float, default=120, help="for the proof of one stream's optimum")
    parser.add_argument("--policies", help="with commas; by default all that can be had for so many GPUs")
    parser.add_argument(
        "--margin", type=float, help="the goal: points of requests above best fit in the mean"
    )
    return parser


def wanted(gpus: int, requests: int) -> tuple[str, ...]:
    """What is played if nothing is said: the optima only where they can be had."""
    names = ["gpupool", "first", "best"]
    if gpus * requests <= PROVABLE:
        names.append("optimum")
    if gpus <= 2:
        names += ["blind", "online"]
    return tuple(names)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments().parse_args(argv)
    names = tuple(given.policies.split(",")) if given.policies else wanted(given.gpus, given.requests)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    bench = Bench(given.requests, given.load, seeds, given.seconds, names)
    about: dict[str, object] = {
        "gpus": given.gpus,
        "requests": given.requests,
        "load": given.load,
        "model": given.model,
        "first_seed": given.first_seed,
    }
    played = [given.mix] if given.mix else list(MIXES)
    means: dict[str, list[Score]] = defaultdict(list)
    for mix in played:
        try:
            scores = bench.scores(World.of(models()[given.model], mix, given.gpus))
        except TooLargeError as error:
            print(f"no online optimum: {error}", file=sys.stderr)
            return 2
        for name, score in scores.items():
            print(json.dumps(score.line(policy=name, mix=mix, **about)), flush=True)
            means[name].append(score)
    if len(played) > 1:
        for name, each in means.items():
            print(json.dumps(_mean(each).line(policy=name, mix="all", **about)), flush=True)
    return 0 if given.margin is None else judged(means, played, given.gpus, given.margin)


def judged(scores: Mapping[str, Sequence[Score]], mixes: Sequence[str], gpus: int, margin: float) -> int:
    """Say whether it is so far above best fit in the mean, and in no mix below it; 1 if not."""
    board = Board()
    ours, best = _mean(scores["gpupool"]), _mean(scores["best"])
    above = fmean(ours.requests) - fmean(best.requests)
    board.at_least(f"mig.{gpus}_gpus.above_best_fit", above, "points", margin)
    longer = fmean(ours.slice_time) - fmean(best.slice_time)
    board.at_least(f"mig.{gpus}_gpus.slice_time_above_best_fit", longer, "points", 0)
    for mix, one, other in zip(mixes, scores["gpupool"], scores["best"], strict=True):
        above = fmean(one.requests) - fmean(other.requests)
        board.at_least(f"mig.{gpus}_gpus.{mix}.above_best_fit", above, "points", 0)
    return board.exit_code()


def _mean(scores: Sequence[Score]) -> Score:
    """Of several mixes: every stream counts alike."""
    return Score(
        [value for score in scores for value in score.requests],
        [value for score in scores for value in score.slice_time],
        sum(score.unproven for score in scores),
    )


if __name__ == "__main__":
    sys.exit(main())
