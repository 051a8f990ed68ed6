"""What a pool learns: from every ask that it got, on the nodes and slices that it has."""

from __future__ import annotations

import numpy as np
import pytest

from pool.core import mig, selfplay, selfplay_mig
from pool.core.fleet_cards import Card, NodeCard, inventory
from pool.core.lesson import empty, lesson
from pool.core.mix import Form, Parameters, learn
from pool.core.placement_room import Use
from pool.core.selfplay import Effort
from pool.core.shapes import GpuAsk, MigAsk, ShareAsk

H100, A10 = "H100-80GB", "A10"
BIG, SMALL = NodeCard(1, "a", cpu_milli=64_000, memory_mib=500_000), NodeCard(2, "b")
ASKS = [ShareAsk(memory_mib=8192, guaranteed=10, limit=10)] * 30 + [GpuAsk(models=(A10,))] * 10


def card(number: int, node: NodeCard, model: str, use: Use) -> Card:
    grid, profiles = (8, mig.models()[H100].profiles) if use is Use.MIG else (8, ())
    return Card(number, f"GPU-{number}", node, number, model, 80_000, use, grid, profiles)


CARDS = [
    card(0, BIG, H100, Use.WHOLE),
    card(1, BIG, H100, Use.SHARE),
    card(2, BIG, A10, Use.SHARE),
    card(3, SMALL, A10, Use.SHARE),
    card(4, SMALL, H100, Use.MIG),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay, "EFFORTS", (Effort(3, (2,), 1),))
    monkeypatch.setattr(selfplay_mig, "DECISIONS", 200)


def test_the_pool_when_empty_has_a_row_for_each_model_of_a_node_and_no_gpu_for_slices() -> None:
    known = inventory(CARDS)
    nodes = empty(known)
    models = [known.models[model] for model in nodes.model]
    assert dict(zip(models, (nodes.memory > 0).sum(1).tolist(), strict=True)) == {H100: 2, A10: 1}
    assert len(models) == 3
    assert nodes.cpu.tolist().count(64_000) == 2
    assert nodes.cpu.tolist().count(np.inf) == 1
    assert nodes.compute is not None
    assert (nodes.compute == nodes.memory).all()


def test_a_pool_without_gpus_is_empty_too() -> None:
    assert empty(inventory([])).memory.sum() == 0
    assert lesson(ASKS, inventory([]), None).kinds == lesson(ASKS, inventory(CARDS), None).kinds


def test_it_counts_every_ask_beside_the_prior() -> None:
    mix = lesson(ASKS, inventory(CARDS), None)
    shares = sum(w for k, w in zip(mix.kinds, mix.weights, strict=True) if k.memory_mib == 8192)
    bound = sum(w for k, w in zip(mix.kinds, mix.weights, strict=True) if k.models == (A10,))
    assert shares == pytest.approx(3 * bound)
    assert sum(mix.weights) == pytest.approx(1)


def test_the_search_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay, "EFFORTS", (Effort(1, (), 0),))
    before = learn((), parameters=Parameters(alpha=2.5))
    assert lesson(ASKS, inventory(CARDS), before).parameters == before.parameters


def test_slices_are_weighed_where_there_are_gpus_for_them() -> None:
    asks = [MigAsk(profile="1g.10gb"), MigAsk(profile="3g.40gb")] * 20
    assert lesson(asks, inventory(CARDS), None).slices.weights
    assert not lesson(asks, inventory(CARDS[:4]), None).slices.weights


def test_the_same_asks_teach_the_same() -> None:
    assert lesson(ASKS, inventory(CARDS), None) == lesson(ASKS, inventory(CARDS), None)


def test_what_takes_no_gpu_is_no_kind() -> None:
    assert Form.CPU not in {kind.form for kind in lesson(ASKS, inventory(CARDS), None).kinds}
