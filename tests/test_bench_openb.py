"""The openb benchmark: its files, the published order of arrivals, the policies, and the line it prints."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench import openb
from bench.openb import Trace, measure, run
from bench.openb_rivals import Anywhere, BestFit, Fgd
from bench.openb_trace import arrivals, milli, name_of, nodes_of, tasks_of
from pool.core import selfplay
from pool.core.filling import Filling
from pool.core.mix import Form, Kind, learn
from pool.core.selfplay import Effort
from pool.core.worth import Nodes

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-b,96000,393216,8,G2
node-a,32000,122880,2,T4
node-c,8000,32768,1,T4
"""
TASKS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase
pod-3,4000,1024,1,460,T4|G2|T4,LS,Running
pod-1,8000,2048,1,1000,,LS,Running
pod-2,16000,4096,2,1000,G2,LS,Running
pod-0,2000,512,0,0,,BE,Running
"""
FIVE = """name,cpu_milli,memory_mib,num_gpu,gpu_milli
pod-2,16000,4096,2,1000
pod-1,8000,2048,1,300
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    nodes, tasks = tmp_path / "nodes.csv", tmp_path / "openb_pod_list_toy.csv.gz"
    nodes.write_text(NODES)
    with gzip.open(tasks, "wt") as packed:
        packed.write(TASKS)
    return nodes, tasks


@pytest.fixture
def trace(files: tuple[Path, Path]) -> Trace:
    nodes, models = nodes_of(files[0])
    return Trace("toy", nodes, models, tasks_of(files[1]))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay, "EFFORTS", (Effort(2, (), 0), Effort(2, (1,), 1)))


# --- Files ----------------------------------------------------------------------


def test_nodes_come_by_their_name_and_free(trace: Trace) -> None:
    nodes = trace.nodes
    assert nodes.cpu.tolist() == [32000, 96000, 8000]
    assert (nodes.memory == 1000).sum(1).tolist() == [2, 8, 1]
    assert [(model.name, model.gpus) for model in trace.models] == [("G2", 8), ("T4", 3)]
    assert nodes.model.tolist() == [1, 0, 1]


def test_tasks_come_by_their_name_packed_or_not(trace: Trace, tmp_path: Path) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text(TASKS)
    assert tasks_of(plain) == trace.tasks
    assert trace.tasks == [
        Kind(Form.CPU, 0, 0, cpu_milli=2000, ram_mib=512),
        Kind(Form.WHOLE, 1, cpu_milli=8000, ram_mib=2048),
        Kind(Form.WHOLE, 2, models=("G2",), cpu_milli=16000, ram_mib=4096),
        Kind(Form.SHARE, 1, 460, models=("G2", "T4"), cpu_milli=4000, ram_mib=1024),
    ]


def test_a_file_of_five_columns_binds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "five.csv"
    file.write_text(FIVE)
    assert tasks_of(file) == [
        Kind(Form.SHARE, 1, 300, cpu_milli=8000, ram_mib=2048),
        Kind(Form.WHOLE, 2, cpu_milli=16000, ram_mib=4096),
    ]


@pytest.mark.parametrize(
    ("file", "name"), [("openb_pod_list_default.csv.gz", "default"), ("mine.csv", "mine"), ("a.b.gz", "a.b")]
)
def test_the_trace_is_named_for_its_file(file: str, name: str) -> None:
    assert name_of(Path("somewhere") / file) == name


# --- The order of arrivals -----------------------------------------------------------


def test_every_task_comes_once_and_then_by_chance_until_the_next_would_be_too_much(trace: Trace) -> None:
    stream = arrivals(trace.tasks, 11_000, 42)
    assert Counter(stream[:4]) == Counter(trace.tasks)
    asked = sum(map(milli, stream))
    assert 14_300 - 2000 <= asked <= 14_300


def test_a_seed_always_gives_the_same_order(trace: Trace) -> None:
    assert arrivals(trace.tasks, 11_000, 42) == arrivals(trace.tasks, 11_000, 42)
    assert arrivals(trace.tasks, 11_000, 42) != arrivals(trace.tasks, 11_000, 43)


# --- The policies -----------------------------------------------------------------------


def row(free: list[int], cpu: float = 96_000) -> Nodes:
    return Nodes(np.array([free]), np.array([0]), np.array([cpu]), np.array([np.inf]))


def test_fgd_counts_what_the_mix_could_not_use(trace: Trace) -> None:
    """One GPU with 500 free, asked for 300: 200 are left, too little for either half of the mix."""
    mix = learn([Kind(Form.SHARE, 1, 300), Kind(Form.SHARE, 1, 600)], prior={})
    fgd = Fgd(mix, trace.models)
    # Before, the 600s could not use 500: 250 fragments are expected. After, nobody can use 200.
    expected = np.floor(100 / (1 + np.exp((200 - 250) / 1000)))
    assert fgd.share(row([500]), 300).tolist() == [[-expected]]


def test_fgd_counts_all_gpus_where_cpu_is_lacking(trace: Trace) -> None:
    fgd = Fgd(learn([Kind(Form.SHARE, 1, 300, cpu_milli=4000)], prior={}), trace.models)
    expected = np.floor(100 / (1 + np.exp((1000 - 0) / 1000)))
    assert fgd.whole(row([1000, 0], cpu=5000), 0, cpu=2000).tolist() == [-expected]


def test_best_fit_takes_the_node_that_is_left_with_the_least(trace: Trace) -> None:
    play = Filling(trace.nodes, trace.models, BestFit(trace.models, trace.nodes), 0.0)
    place = play.choose(Kind(Form.SHARE, 1, 300))
    assert place is not None
    assert place.row == 2


def test_chance_takes_only_what_fits(trace: Trace) -> None:
    play = Anywhere(trace.nodes, trace.models, BestFit(trace.models, trace.nodes), 1)
    for _ in range(6):
        kind = Kind(Form.SHARE, 1, 460, models=("T4",))
        place = play.choose(kind)
        assert place is not None
        play.take(kind, place)
    assert play.choose(Kind(Form.SHARE, 1, 460, models=("T4",))) is None
    assert play.nodes.memory.min() >= 0


# --- What is printed ------------------------------------------------------------------


def test_what_is_given_away_is_told_in_percent_of_all_gpus(files: tuple[Path, Path]) -> None:
    """Only 1000s on 11 GPUs: all that is asked is given, until all is given."""
    nodes, models = nodes_of(files[0])
    tasks = [Kind(Form.WHOLE, 1)] * 10
    score = run(Trace("toy", nodes, models, tasks), "gpupool", learn(tasks, {}), 42, looks=(91, 100, 127))
    assert score.alloc == pytest.approx({91: 1000 / 11, 100: 100, 127: 100})
    assert score.decisions == 14


@pytest.mark.parametrize("policy", openb.POLICIES)
@pytest.mark.parametrize("mix", openb.MIXES)
def test_every_policy_plays_with_either_mix(trace: Trace, policy: str, mix: str) -> None:
    tasks = [Kind(Form.SHARE, 1, 100)] * 36 + [Kind(Form.SHARE, 1, 50, models=("T4",))] * 4
    toy = Trace("toy", trace.nodes, trace.models, tasks)
    line = measure(toy, policy, mix, [42, 43])
    assert set(line) == {"trace", "policy", "mix", "seeds", "alloc", "us_per_decision"}
    alloc = line["alloc"]
    assert isinstance(alloc, dict)
    assert list(alloc) == ["90", "100", "130"]
    assert 85 < alloc["90"] <= alloc["100"] <= alloc["130"] <= 100
    assert json.loads(json.dumps(line))["seeds"] == [42, 43]


def test_it_plays_what_the_command_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, tasks = tmp_path / "n.csv", tmp_path / "openb_pod_list_fives.csv"
    nodes.write_text(NODES)
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
    tasks.write_text(head + "".join(f"pod-{n},100,10,1,{50 + n % 2 * 50}\n" for n in range(20)))
    call = [
        "bench.openb",
        "--nodes",
        str(nodes),
        "--tasks",
        str(tasks),
        "--seeds",
        "42,43",
        "--policy",
        "fgd",
    ]
    monkeypatch.setattr("sys.argv", call)
    assert openb.main() == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["trace"], line["policy"], line["mix"], line["seeds"]) == (
        "fives",
        "fgd",
        "whole-file",
        [42, 43],
    )


def test_a_policy_that_learns_looks_back_at_each_doubling(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(openb, "FIRST_LESSON", 16)
    monkeypatch.setattr(openb, "PLAYED_AT", (32,))
    lesson = openb.Player.lesson

    def told(player: openb.Player, come: list[Kind]) -> object:
        seen.append(len(come))
        return lesson(player, come)

    monkeypatch.setattr(openb.Player, "lesson", told)
    tasks = [Kind(Form.SHARE, 1, 100)] * 100
    run(Trace("toy", trace.nodes, trace.models, tasks), "gpupool", None, 42)
    assert seen == [16, 32, 64, 128]
