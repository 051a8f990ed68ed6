"""The benchmark of slices: its optima against trying everything, its policies on small streams."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import mig as bench_mig
from bench.mig import Score
from bench.mig_offline import optimum
from bench.mig_online import Online, TooLargeError, layouts
from bench.mig_streams import (
    LASTING,
    MIXES,
    Place,
    Request,
    State,
    World,
    best_fit,
    blind,
    first_fit,
    gpupool,
    play,
    result,
)
from pool.core import selfplay_mig
from pool.core.mig import models

ROOT = Path(__file__).resolve().parents[2]
A100 = models()["A100-40GB"]
A30 = models()["A30-24GB"]
RTX = models()["RTX-PRO-6000-96GB"]


@pytest.fixture(autouse=True)
def _short_self_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay_mig, "GENERATIONS", 2)
    monkeypatch.setattr(selfplay_mig, "DECISIONS", 500)


def fits(world: World, requests: list[Request], went: list[Place | None]) -> bool:
    """No memory slice is taken twice at one time."""
    held = []
    for request, place in zip(requests, went, strict=True):
        if place is None:
            continue
        mask = dict(world.places(request.kind))[place[1]]
        held.append((place[0], mask, request))
    return not any(
        a[0] == b[0] and a[1] & b[1] and a[2].start < b[2].end and b[2].start < a[2].end
        for a, b in itertools.combinations(held, 2)
    )


def most(world: World, requests: list[Request]) -> int:
    """The most that can be served, by trying everything."""
    choices = [
        [None, *((gpu, start) for gpu in range(world.gpus) for start, _ in world.places(r.kind))]
        for r in requests
    ]
    return max(
        sum(place is not None for place in went)
        for went in itertools.product(*choices)
        if fits(world, requests, list(went))
    )


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("model", [A100, A30, RTX], ids=lambda model: model.name)
def test_a_stream_asks_for_what_its_mix_says(mix: str, model) -> None:  # type: ignore[no-untyped-def]
    world = World.of(model, mix, 50)
    assert sum(world.weights) == pytest.approx(1.0)
    stream = world.stream(4000, 1.2, 1)
    for kind, weight in enumerate(world.weights):
        assert sum(r.kind == kind for r in stream) / 4000 == pytest.approx(weight, abs=0.03)
    asked = sum(world.profiles[r.kind].size * r.lasts for r in stream) / stream[-1].start
    assert asked / (50 * model.grid) == pytest.approx(1.2, rel=0.1)
    assert sum(r.lasts for r in stream) / 4000 == pytest.approx(LASTING, rel=0.06)


def test_the_same_seed_is_the_same_stream() -> None:
    world = World.of(A100, "uniform", 3)
    assert world.stream(50, 1.2, 7) == world.stream(50, 1.2, 7) != world.stream(50, 1.2, 8)


@pytest.mark.parametrize("name", ["first", "best", "blind", "gpupool"])
def test_no_policy_takes_a_slice_twice_or_refuses_what_fits(name: str) -> None:
    world = World.of(A100, "uniform", 3)
    policy = {"first": first_fit, "best": best_fit, "blind": blind(world), "gpupool": gpupool(world)}[name]
    stream = world.stream(150, 1.2, 3)
    got, went = play(world, stream, policy)
    assert fits(world, stream, went)
    state = State(world)
    for request, place in zip(stream, went, strict=True):
        state.at(request.start)
        options = state.options(request.kind)
        assert (place in options) if options else place is None
        if place is not None:
            state.put(request, place[0], dict(world.places(request.kind))[place[1]])
    assert got.served == sum(place is not None for place in went)


def test_best_fit_takes_the_gpu_with_the_fewest_free_slices() -> None:
    world = World.of(A100, "uniform", 2)
    state = State(world)
    state.put(Request(0, 0, 10), 1, 1)
    assert best_fit(state, Request(0, 1, 2), state.options(0)) == (1, 1)
    assert first_fit(state, Request(0, 1, 2), state.options(0)) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_offline_optimum_is_what_trying_everything_finds(seed: int) -> None:
    world = World.of(A30, "uniform", 1)
    stream = world.stream(8, 3.0, seed)
    went = optimum(world, stream, [None] * 8)
    assert fits(world, stream, went)
    assert result(world, stream, went).served == most(world, stream)


def test_the_offline_optimum_is_beaten_by_nobody() -> None:
    world = World.of(A100, "uniform", 2)
    stream = world.stream(25, 1.2, 0)
    _, mine = play(world, stream, gpupool(world))
    best = optimum(world, stream, mine)
    assert fits(world, stream, best)
    assert result(world, stream, best).served >= result(world, stream, mine).served


def test_a_gpu_of_four_slices_has_so_many_layouts() -> None:
    # Each pair: nothing, one of two, both, or one large: 5; two pairs, or one slice of all.
    assert len(layouts(World.of(A30, "uniform", 1))) == 5 * 5 + 1


def test_an_a100_has_298_layouts() -> None:
    assert len(layouts(World.of(A100, "uniform", 1))) == 298


@pytest.fixture(scope="module")
def online() -> Online:
    return Online(World.of(A30, "uniform", 2), 1.2)


def test_the_online_optimum_serves_what_it_says(online: Online) -> None:
    stream = online.world.stream(20_000, 1.2, 0)
    got, _ = play(online.world, stream, online.policy())
    assert got.served / got.asked == pytest.approx(online.served, abs=0.01)


def test_where_every_slice_is_a_whole_gpu_the_optimum_is_erlangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXES, "whole", (0.0, 0.0, 0.0, 0.0, 1.0))
    # Two GPUs, 2.4 asked for at once: Erlang's loss formula.
    lost = (2.4**2 / 2) / (1 + 2.4 + 2.4**2 / 2)
    assert Online(World.of(A30, "whole", 2), 1.2).served == pytest.approx(1 - lost, abs=1e-3)


def test_the_online_optimum_of_many_gpus_is_refused() -> None:
    with pytest.raises(TooLargeError):
        Online(World.of(A100, "uniform", 3), 1.2)


def test_it_prints_a_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--model", "A30-24GB", "--gpus", "2", "--requests", "12", "--seeds", "2", "--mix", "small"]
    assert bench_mig.main(call) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["policy"] for line in lines] == ["gpupool", "first", "best", "blind", "online", "optimum"]
    assert all(line["seeds"] == 2 and 0 < line["accepted"] <= 100 for line in lines)
    assert lines[-1]["accepted"] >= max(line["accepted"] for line in lines)


def test_nothing_but_results_is_on_standard_output() -> None:
    call = [
        "--model",
        "A30-24GB",
        "--gpus",
        "1",
        "--requests",
        "4",
        "--seeds",
        "1",
        "--mix",
        "small",
        "--policies",
        "best,optimum",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bench.mig", *call], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert [json.loads(line)["policy"] for line in done.stdout.splitlines()] == ["best", "optimum"]


def test_of_several_mixes_it_prints_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_mig.main(["--gpus", "2", "--requests", "10", "--seeds", "2", "--policies", "first"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["mix"] for line in lines] == [*MIXES, "all"]
    assert lines[-1]["accepted"] == pytest.approx(sum(line["accepted"] for line in lines[:4]) / 4, abs=0.01)


def test_a_proof_that_takes_too_long_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--requests", "80", "--seeds", "1", "--mix", "uniform", "--policies", "first,optimum"]
    assert bench_mig.main([*call, "--seconds", "0"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["policy"], last["unproven"], last["accepted"]) == ("optimum", 1, None)


def test_other_seeds_can_be_played_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--gpus", "2", "--requests", "10", "--seeds", "1", "--policies", "first", "--mix", "small"]
    said = []
    for seed in ("0", "7"):
        assert bench_mig.main([*call, "--first-seed", seed]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert [line["first_seed"] for line in said] == [0, 7]
    assert said[0]["accepted"] != said[1]["accepted"] or said[0]["slice_time"] != said[1]["slice_time"]


def test_the_margin_above_best_fit_is_a_goal(capsys: pytest.CaptureFixture[str]) -> None:
    ours, best = Score([60.0], [50.0]), Score([58.5], [50.0])
    scores = {"gpupool": [ours], "best": [best]}
    assert bench_mig.judged(scores, ["small"], 3, 1.5) == 0
    assert bench_mig.judged(scores, ["small"], 3, 1.6) == 1
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["name"], first["value"], first["goal"]) == ("mig.3_gpus.above_best_fit", 1.5, 1.5)
