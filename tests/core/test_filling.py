"""A pool that fills up: what fits is placed, where it is missed least, and what is remembered is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.filling import Filling, Place
from pool.core.mix import WHOLE, Form, Kind, Parameters, learn
from pool.core.usual import Model
from pool.core.worth import Nodes, Worth

MODELS = (Model("H100-80GB", 16, 80_000), Model("A10", 6, 24_000))
KINDS = (
    Kind(Form.SHARE, 1, 300, cpu_milli=3000, ram_mib=100),
    Kind(Form.SHARE, 1, 700, models=("A10",)),
    Kind(Form.SHARE, 1, memory_mib=20_000, compute_milli=200),
    Kind(Form.WHOLE, 1, cpu_milli=8000),
    Kind(Form.WHOLE, 4, cpu_milli=30_000, ram_mib=5000),
    Kind(Form.CPU, 0, 0, cpu_milli=5000),
)
MIX = learn(KINDS, prior={})


def pool(*, compute: bool = False) -> Nodes:
    """Two nodes of 8 H100 and three of 2 A10, all free."""
    memory = np.zeros((5, 8), dtype=np.int64)
    memory[:2] = WHOLE
    memory[2:, :2] = WHOLE
    cpu, ram = np.array([64_000.0] * 2 + [16_000.0] * 3), np.array([10_000.0] * 5)
    return Nodes(memory, np.array([0, 0, 1, 1, 1]), cpu, ram, memory.copy() if compute else None)


def filling(nodes: Nodes | None = None, **parameters: float) -> Filling:
    mix = replace(MIX, parameters=Parameters(**parameters))
    return Filling(nodes or pool(), MODELS, Worth(mix, MODELS))


def test_it_gives_away_what_is_asked_and_leaves_the_nodes_it_was_given_alone() -> None:
    nodes = pool()
    play = filling(nodes)
    place = play.choose(KINDS[0])
    assert place is not None
    play.take(KINDS[0], place)
    assert play.nodes.memory[place.row, place.gpu] == 700
    assert play.fullness == pytest.approx(300 / 22_000)
    assert (nodes.memory[2:, :2] == WHOLE).all()


def test_a_bound_ask_goes_to_its_model() -> None:
    place = filling().choose(KINDS[1])
    assert place is not None
    assert place.row >= 2


def test_an_ask_bound_to_a_model_that_is_not_there_is_refused() -> None:
    assert filling().choose(Kind(Form.WHOLE, 1, models=("B200",))) is None


def test_a_share_in_mib_takes_its_part_of_the_model() -> None:
    play = filling(pool(compute=True))
    play.take(KINDS[2], Place(0, 0))
    play.take(KINDS[2], Place(2, 1))
    assert play.nodes.memory[[0, 2], [0, 1]].tolist() == [750, 166]
    assert play.nodes.compute is not None
    assert play.nodes.compute[[0, 2], [0, 1]].tolist() == [800, 800]


def test_whole_gpus_are_taken_where_both_memory_and_compute_are_free() -> None:
    play = filling(pool(compute=True))
    play.take(Kind(Form.SHARE, 1, 100, 100), Place(0, 0))
    play.take(KINDS[4], Place(0))
    assert play.nodes.memory[0].tolist() == [900, 0, 0, 0, 0, 1000, 1000, 1000]


def test_unbound_asks_keep_off_the_model_that_bound_ones_need() -> None:
    place = filling(pressure=3.0).choose(KINDS[0])
    assert place is not None
    assert place.row < 2


def test_the_pressure_is_gone_when_the_pool_is_full_enough() -> None:
    play = filling(pressure=3.0, fade=0.5, balance=0.0)
    for row in (0, 1):
        play.take(Kind(Form.WHOLE, 4), Place(row))
        play.take(Kind(Form.WHOLE, 2), Place(row))
    place = play.choose(Kind(Form.SHARE, 1, 300))
    assert place is not None
    assert place.row >= 2


@settings(max_examples=40, deadline=None)
@given(asks=st.lists(st.sampled_from(KINDS), max_size=60), compute=st.booleans())
def test_it_never_gives_away_twice_and_refuses_only_what_fits_nowhere(
    asks: list[Kind], compute: bool
) -> None:
    play = filling(pool(compute=compute))
    for kind in asks:
        place = play.choose(kind)
        assert (place is not None) == fits(play.nodes, kind)
        if place is not None:
            play.take(kind, place)
        nodes = play.nodes
        assert min(nodes.memory.min(), nodes.cpu.min(), nodes.ram.min()) >= 0
        assert nodes.compute is None or nodes.compute.min() >= 0


@settings(max_examples=25, deadline=None)
@given(asks=st.lists(st.sampled_from(KINDS), max_size=40))
def test_what_it_remembers_is_what_it_would_find_anew(asks: list[Kind]) -> None:
    play = filling()
    for kind in asks:
        anew = filling(play.nodes)
        anew.given, anew.total = play.given, play.total
        place = play.choose(kind)
        assert place == anew.choose(kind)
        if place is not None:
            play.take(kind, place)


def fits(nodes: Nodes, kind: Kind) -> bool:
    """By looking at every GPU of every node."""
    for row, model in enumerate(MODELS[number] for number in nodes.model):
        part = kind.milli_on(model.memory_mib)
        if part > WHOLE or (kind.models and model.name not in kind.models):
            continue
        if nodes.cpu[row] < kind.cpu_milli or nodes.ram[row] < kind.ram_mib:
            continue
        free = nodes.memory[row] >= part
        if nodes.compute is not None:
            whole = kind.form is Form.WHOLE
            free &= nodes.compute[row] >= (WHOLE if whole else kind.compute_milli)
        if free.sum() >= kind.gpus:
            return True
    return False
