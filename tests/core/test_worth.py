"""What free capacity is worth, and that a loss is exactly the difference that a taking makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.mix import WHOLE, Form, Kind, Mix, Parameters, learn
from pool.core.usual import Model
from pool.core.worth import Nodes, Worth

MODELS = (Model("H100-80GB", 8), Model("A10", 4))
KINDS = (
    Kind(Form.SHARE, 1, 300, 200, cpu_milli=4000),
    Kind(Form.SHARE, 1, 500, 100, models=("A10",), cpu_milli=2000),
    Kind(Form.SHARE, 1, 100, 0),
    Kind(Form.WHOLE, 1, cpu_milli=8000),
    Kind(Form.WHOLE, 2, cpu_milli=16_000, ram_mib=1000),
    Kind(Form.WHOLE, 4, models=("H100-80GB",), cpu_milli=30_000),
    Kind(Form.CPU, 0, 0, cpu_milli=1000),
)


def mix(*kinds: Kind, **parameters: float) -> Mix:
    return learn(kinds, prior={}, parameters=Parameters(**parameters))


def nodes(*free: list[int], cpu: float = np.inf, ram: float = np.inf, model: int = 0) -> Nodes:
    rows = len(free)
    return Nodes(
        np.array(free), np.full(rows, model), np.full(rows, cpu, dtype=float), np.full(rows, ram, dtype=float)
    )


def plain(*kinds: Kind) -> Worth:
    return Worth(mix(*kinds, gamma=0, alpha=0, slack=1, balance=0), MODELS)


def test_a_part_that_is_too_small_is_worth_nothing() -> None:
    assert plain(Kind(Form.SHARE, 1, 300)).of(nodes([299], [300], [1000])).tolist() == [0, 0.3, 1]


def test_two_parts_do_not_make_a_whole() -> None:
    assert plain(Kind(Form.WHOLE, 1)).of(nodes([500, 500], [0, 1000])).tolist() == [0, 1]


def test_several_gpus_are_worth_something_only_together() -> None:
    assert plain(Kind(Form.WHOLE, 2)).of(nodes([1000, 0], [1000, 1000])).tolist() == [0, 2]


def test_gpus_beside_too_little_cpu_are_worth_less() -> None:
    worth = plain(Kind(Form.WHOLE, 1, cpu_milli=8000))
    assert worth.of(nodes([1000, 1000], cpu=8000)).tolist() == [1]


def test_several_gpus_want_all_of_their_cpu() -> None:
    worth = plain(Kind(Form.WHOLE, 2, cpu_milli=16_000, ram_mib=100))
    assert worth.of(nodes([1000, 1000], cpu=15_999)).tolist() == [0]
    assert worth.of(nodes([1000, 1000], cpu=16_000, ram=99)).tolist() == [0]
    assert worth.of(nodes([1000, 1000], cpu=16_000, ram=100)).tolist() == [2]


def test_cpu_that_is_not_known_limits_nothing() -> None:
    worth = Worth(mix(Kind(Form.WHOLE, 1, cpu_milli=8000)), MODELS)
    assert worth.of(nodes([1000, 1000])) == worth.of(nodes([1000, 1000], cpu=1e12))


def test_a_hole_that_nobody_can_use_is_filled_first() -> None:
    worth = plain(Kind(Form.SHARE, 1, 700), Kind(Form.SHARE, 1, 300))
    loss = worth.share(nodes([300, 1000, 600]), 300)[0]
    assert loss.argmin() == 0


def test_memory_and_compute_must_both_be_left() -> None:
    worth = plain(Kind(Form.SHARE, 1, 300, 300))
    rows = replace(nodes([1000, 1000]), compute=np.array([[299, 600]]))
    assert worth.of(rows).tolist() == pytest.approx([0.6])


@pytest.mark.parametrize(
    ("free", "cpu", "ram", "fits"),
    [(299, 9, 9, False), (300, 9, 9, True), (300, 1, 9, False), (300, 9, 1, False)],
)
def test_the_loss_is_infinite_where_the_ask_does_not_fit(free: int, cpu: int, ram: int, fits: bool) -> None:
    loss = plain(*KINDS).share(nodes([free], cpu=cpu, ram=ram), 300, cpu=2, ram=2)
    assert np.isfinite(loss).tolist() == [[fits]]


def test_whole_gpus_do_not_fit_where_too_few_are_free() -> None:
    loss = plain(*KINDS).whole(nodes([1000, 999], [1000, 1000]), 2)
    assert np.isfinite(loss).tolist() == [False, True]


def test_a_gpu_with_compute_given_away_serves_no_kind_that_wants_it_whole() -> None:
    rows = replace(nodes([1000, 1000]), compute=np.array([[1000, 900]]))
    assert plain(Kind(Form.WHOLE, 1)).of(rows).tolist() == [1]


def test_a_gpu_with_compute_given_away_is_not_whole() -> None:
    rows = replace(nodes([1000, 1000]), compute=np.array([[1000, 900]]))
    assert np.isfinite(plain(*KINDS).whole(rows, 2)).tolist() == [False]


def test_a_share_may_be_another_part_of_each_row() -> None:
    loss = plain(*KINDS).share(nodes([400], [400]), np.array([300, 500]))
    assert np.isfinite(loss).tolist() == [[True], [False]]


def test_the_balance_spares_cpu_beside_free_gpus() -> None:
    worth = Worth(mix(Kind(Form.WHOLE, 1, cpu_milli=8000), balance=1.0), MODELS)
    rich, poor = nodes([1000, 0], cpu=90_000), nodes([1000, 1000], cpu=16_000)
    assert worth.whole(rich, 0, cpu=4000) < worth.whole(poor, 0, cpu=4000)


def test_the_pressure_on_a_model_fades_as_the_pool_fills_up() -> None:
    kinds = [Kind(Form.WHOLE, 1, models=("A10",)), Kind(Form.WHOLE, 1)]
    worth = Worth(mix(*kinds, pressure=0.5, fade=0.8), MODELS)
    empty, half, full = (worth.pressure(fullness) for fullness in (0, 0.4, 0.8))
    assert empty[0] == 0
    assert empty[1] == pytest.approx(0.5 * min(1.5, 0.5 * 12 / 4))
    assert half[1] == pytest.approx(empty[1] / 2)
    assert not full.any()


def test_a_mix_of_slices_alone_makes_nodes_worth_no_less_than_nothing() -> None:
    worth = Worth(mix(Kind(Form.MIG, profile="1g.10gb")), MODELS)
    assert np.isfinite(worth.whole(nodes([1000]), 1)).all()


# --- A loss is a difference -----------------------------------------------------

LEVELS = st.sampled_from([0, 100, 250, 300, 500, 700, 999, 1000])


@st.composite
def states(draw: st.DrawFn) -> Nodes:
    rows, gpus = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    grid = st.lists(st.lists(LEVELS, min_size=gpus, max_size=gpus), min_size=rows, max_size=rows)
    cpu = st.lists(st.sampled_from([0.0, 3000.0, 16_000.0, 90_000.0, np.inf]), min_size=rows, max_size=rows)
    model = st.lists(st.integers(0, 1), min_size=rows, max_size=rows)
    compute = np.array(draw(grid)) if draw(st.booleans()) else None
    return Nodes(
        np.array(draw(grid)), np.array(draw(model)), np.array(draw(cpu)), np.array(draw(cpu)), compute
    )


@settings(max_examples=150, deadline=None)
@given(state=states(), milli=LEVELS.filter(bool), compute=LEVELS, cpu=st.sampled_from([0.0, 2000.0]))
def test_the_loss_by_a_share_is_what_the_worth_falls_by(
    state: Nodes, milli: int, compute: int, cpu: float
) -> None:
    worth = Worth(mix(*KINDS), MODELS)
    loss = worth.share(state, milli, compute, cpu)
    before = worth.of(state)
    for row, gpu in np.ndindex(*state.memory.shape):
        fits = state.memory[row, gpu] >= milli and state.cpu[row] >= cpu
        fits &= state.compute is None or state.compute[row, gpu] >= compute
        assert np.isfinite(loss[row, gpu]) == fits
        if fits:
            after = taken(state, row, [gpu], milli, compute, cpu)
            assert loss[row, gpu] == pytest.approx(before[row] - worth.of(after)[row], abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(state=states(), gpus=st.integers(0, 3), cpu=st.sampled_from([0.0, 2000.0]))
def test_the_loss_by_whole_gpus_is_what_the_worth_falls_by(state: Nodes, gpus: int, cpu: float) -> None:
    worth = Worth(mix(*KINDS), MODELS)
    loss = worth.whole(state, gpus, cpu)
    before = worth.of(state)
    free = state.memory == WHOLE
    if state.compute is not None:
        free &= state.compute == WHOLE
    for row in range(len(loss)):
        which = np.flatnonzero(free[row])
        assert np.isfinite(loss[row]) == (len(which) >= gpus and state.cpu[row] >= cpu)
        if np.isfinite(loss[row]):
            after = taken(state, row, list(which[:gpus]), WHOLE, WHOLE, cpu)
            assert loss[row] == pytest.approx(before[row] - worth.of(after)[row], abs=1e-9)


def taken(state: Nodes, row: int, gpus: list[int], milli: int, compute: int, cpu: float) -> Nodes:
    memory, left = state.memory.copy(), state.cpu.copy()
    memory[row, gpus] -= milli
    left[row] -= cpu
    if state.compute is None:
        return replace(state, memory=memory, cpu=left)
    rest = state.compute.copy()
    rest[row, gpus] -= compute
    return replace(state, memory=memory, cpu=left, compute=rest)
