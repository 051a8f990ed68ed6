"""The kinds of a mix as columns: what is one column, how it weighs, and what is bound to a model."""

from __future__ import annotations

import pytest

from pool.core.mix import Form, Kind, Mix, Parameters, learn
from pool.core.usual import Model, Usual, bound_demand, gpus_per_cpu

BIG, SMALL = Model("H100-80GB", 6, 80_000), Model("A10", 2, 20_000)
PLAIN = Parameters(gamma=0, alpha=0)


def mix(*kinds: Kind, parameters: Parameters = PLAIN) -> Mix:
    return learn(kinds, prior={}, parameters=parameters)


def share(milli: int, *, cpu: int = 0, models: tuple[str, ...] = ()) -> Kind:
    return Kind(Form.SHARE, 1, milli, cpu_milli=cpu, models=models)


def test_shares_that_differ_in_cpu_alone_are_one_column_with_the_mean() -> None:
    usual = Usual.of(mix(share(500, cpu=2000), share(500, cpu=4000)), [BIG])
    assert usual.memory.tolist() == [500]
    assert usual.cpu.tolist() == [3000]
    assert usual.weights.tolist() == [[1.0]]


def test_several_shares_are_as_many_asks_for_one() -> None:
    several = Usual.of(mix(Kind(Form.SHARE, 3, 500, cpu_milli=6000), Kind(Form.WHOLE)), [BIG])
    assert (several.gpus.tolist(), several.memory.tolist()) == ([1, 1], [500, 1000])
    assert several.weights.tolist() == [pytest.approx([0.75, 0.25])]
    assert several.cpu.tolist() == [2000, 0]


def test_several_gpus_that_differ_in_cpu_are_columns_of_their_own() -> None:
    kinds = [Kind(Form.WHOLE, 8, cpu_milli=cpu, ram_mib=cpu) for cpu in (64_000, 88_000)]
    usual = Usual.of(mix(*kinds), [BIG])
    assert usual.cpu.tolist() == [64_000, 88_000]
    assert usual.ram.tolist() == [64_000, 88_000]


def test_a_bound_kind_weighs_on_its_models_alone() -> None:
    usual = Usual.of(mix(share(500), share(500, models=("A10",))), [BIG, SMALL])
    assert usual.weights.tolist() == [[0.5], [1.0]]


def test_a_share_in_mib_is_a_column_of_each_model_that_is_large_enough() -> None:
    usual = Usual.of(
        mix(Kind(Form.SHARE, memory_mib=20_000), Kind(Form.SHARE, memory_mib=40_000)), [BIG, SMALL]
    )
    assert usual.memory.tolist() == [250, 500, 1000]
    assert (usual.weights > 0).tolist() == [[True, True, False], [False, False, True]]


def test_slices_and_what_takes_no_gpu_are_left_out() -> None:
    usual = Usual.of(mix(Kind(Form.MIG, profile="1g.10gb"), Kind(Form.CPU, 0, 0), share(100)), [BIG])
    assert usual.memory.tolist() == [100]


def test_gamma_and_alpha_raise_the_small_and_the_many() -> None:
    both = mix(share(500), Kind(Form.WHOLE, 4), parameters=Parameters(gamma=-1, alpha=2))
    usual = Usual.of(both, [BIG])
    small, many = usual.weights[0]
    assert many / small == pytest.approx(16 / 2)
    assert small + many == pytest.approx(1)


def test_a_mix_without_anything_for_these_gpus_gives_no_column() -> None:
    assert not Usual.of(mix(Kind(Form.MIG, profile="1g.10gb")), [BIG]).weights.size


def test_what_bound_asks_want_is_measured_by_what_there_is() -> None:
    half_bound = mix(share(1000), share(1000, models=("A10",)))
    assert bound_demand(half_bound, [BIG, SMALL]).tolist() == pytest.approx([0, 0.5 * 8 / 2])


def test_an_ask_bound_to_two_models_counts_on_each_by_its_size() -> None:
    names = (BIG.name, SMALL.name)
    assert bound_demand(mix(share(1000, models=names)), [BIG, SMALL]).tolist() == pytest.approx([1, 1])


def test_the_proportion_counts_cpu_of_asks_without_gpus_too() -> None:
    asks = mix(share(500, cpu=3000), Kind(Form.CPU, 0, 0, cpu_milli=1000))
    assert gpus_per_cpu(asks, [BIG]) == pytest.approx(0.5 / 4000)


def test_a_mix_that_asks_for_no_cpu_has_no_proportion() -> None:
    assert gpus_per_cpu(mix(share(500)), [BIG]) is None
