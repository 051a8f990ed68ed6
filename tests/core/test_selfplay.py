"""Self-play: what is drawn, what counts, and that it finds parameters which play better."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from pool.core import selfplay
from pool.core.mix import WHOLE, Form, Kind, Mix, Parameters, learn
from pool.core.selfplay import RANGES, Effort, choose, drawn, play, portfolio, small
from pool.core.usual import Model
from pool.core.worth import Nodes

MODELS = [Model("H100-80GB", 80), Model("A10", 40)]
#: Asks bound to the smaller model, of which there is only enough if the others stay away.
TIGHT = learn(
    [Kind(Form.WHOLE, 1, models=("A10",), cpu_milli=6000)] * 2
    + [Kind(Form.SHARE, 1, 300, cpu_milli=2000)] * 4
    + [Kind(Form.SHARE, 1, 700, cpu_milli=4000)] * 4
    + [Kind(Form.WHOLE, 1, cpu_milli=6000)] * 2,
    prior={},
)
DEAF = Parameters(pressure=0.0, balance=0.0, gamma=0.0)


def pool() -> Nodes:
    memory = np.zeros((30, 8), dtype=np.int64)
    memory[:10] = WHOLE
    memory[10:, :2] = WHOLE
    model = np.array([0] * 10 + [1] * 20)
    cpu = np.where(model == 0, 64_000.0, 16_000.0)
    return Nodes(memory, model, cpu, np.full(30, np.inf))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay, "EFFORTS", (Effort(4, (2,), 0), Effort(6, (3, 2), 6)))


def stream(seed: int = 9) -> list[Kind]:
    return drawn(TIGHT, MODELS, 1.3 * pool().memory.sum(), np.random.default_rng(seed))


def test_it_draws_as_the_mix_weighs_until_enough_is_asked() -> None:
    kinds = drawn(TIGHT, MODELS, 1_000_000, np.random.default_rng(1))
    asked = sum(kind.gpus * kind.memory_milli for kind in kinds)
    assert 999_000 <= asked <= 1_000_000
    assert sum(bool(kind.models) for kind in kinds) / len(kinds) == pytest.approx(1 / 6, abs=0.03)


def test_a_pool_that_serves_all_that_is_asked_is_full_in_the_end() -> None:
    halves = learn([Kind(Form.SHARE, 1, 500)], prior={})
    full = play(halves, pool(), MODELS, [Kind(Form.SHARE, 1, 500)] * 400)
    assert 0.9 < full < 1


def test_nothing_asked_is_nothing_given() -> None:
    assert play(TIGHT, pool(), MODELS, []) == 0


def test_it_finds_parameters_that_play_better_on_arrivals_that_it_has_not_seen() -> None:
    poor = replace(TIGHT, parameters=DEAF)
    found = choose(poor, pool(), MODELS, seed=1)
    assert found.kinds == poor.kinds
    unseen = [stream(seed) for seed in (90, 91, 92)]
    better = [play(found, pool(), MODELS, one) - play(poor, pool(), MODELS, one) for one in unseen]
    assert sum(better) > 0.01


@pytest.mark.parametrize("effort", [0, 1])
def test_the_same_seed_gives_the_same_parameters(effort: int) -> None:
    first = choose(TIGHT, pool(), MODELS, seed=3, effort=effort)
    assert first == choose(TIGHT, pool(), MODELS, seed=3, effort=effort)


def test_all_that_it_tries_lies_in_the_ranges() -> None:
    found = portfolio(Parameters(alpha=2.9), 40)
    assert len(set(found)) == 40
    assert found[0].alpha == 2.9
    assert {f.name for f in fields(Parameters)} >= set(RANGES)
    for one in found:
        for name, (least, most, _) in RANGES.items():
            assert least <= getattr(one, name) <= most


def test_shares_in_mib_are_played_too() -> None:
    models = [Model("H100-80GB", 80, 80_000), Model("A10", 40, 20_000)]
    asks = [Kind(Form.SHARE, 2, 0, memory_mib=mib, compute_milli=100) for mib in (8_000, 16_000, 40_000)]
    mix = learn([*asks, Kind(Form.WHOLE, models=("B200",))], prior={})
    found = choose(mix, pool(), models)
    assert found.parameters != mix.parameters or found == mix


def test_slices_are_not_played_and_keep_their_weight() -> None:
    mixed = learn([Kind(Form.MIG, profile="1g.10gb"), Kind(Form.SHARE, 1, 500)], prior={})
    assert choose(mixed, pool(), MODELS).weights == mixed.weights


@pytest.mark.parametrize("kind", [Kind(Form.MIG, profile="1g.10gb"), Kind(Form.CPU, 0, 0, cpu_milli=1000)])
def test_a_mix_that_asks_for_none_of_these_gpus_stays_as_it_is(kind: Kind) -> None:
    mix = learn([kind], prior={})
    assert choose(mix, pool(), MODELS) is mix


def test_a_pool_without_gpus_leaves_the_mix_as_it_is() -> None:
    empty = pool().rows(slice(0, 0))
    assert choose(TIGHT, empty, MODELS) is TIGHT


def test_the_small_copy_keeps_the_part_of_each_kind_of_node() -> None:
    copy, models = small(pool(), MODELS, rows=15)
    assert np.bincount(copy.model).tolist() == [5, 10]
    assert [model.gpus for model in models] == [40, 20]


def test_a_small_pool_is_its_own_copy() -> None:
    copy, models = small(pool(), MODELS, rows=30)
    assert (copy.memory == pool().memory).all()
    assert models == MODELS


def test_a_mix_keeps_what_it_knows_of_slices() -> None:
    mix = Mix((Kind(Form.MIG, profile="1g.10gb"), Kind()), (0.25, 0.75))
    assert choose(mix, pool(), MODELS).kinds == mix.kinds
