"""What a policy keeps of its mix."""

from __future__ import annotations

import numpy as np

from pool.core.fleet import of_views
from pool.core.mix import Form, Kind, Mix
from pool.core.placement import Use
from pool.core.placement_policy import STEP, Policy, Why, models_of, prior
from tests.core.worlds import gpu


def test_what_follows_from_a_mix_is_worked_out_once() -> None:
    policy, models = prior(), models_of(of_views([gpu(0), gpu(1)]))
    assert prior() is policy
    assert policy.worth(Use.WHOLE, models) is policy.worth(Use.WHOLE, models)
    assert policy.worth(Use.WHOLE, models) is not policy.worth(Use.SHARE, models)
    card = gpu()
    assert policy.slices(card.model, 8, card.profiles) is policy.slices(card.model, 8, card.profiles)


def test_only_what_can_come_to_gpus_of_a_use_counts_there() -> None:
    kinds = (Kind(Form.WHOLE, 1), Kind(Form.SHARE, 1, memory_milli=100, models=("H100-80GB",)))
    policy = Policy(Mix(kinds, (0.5, 0.5)))
    models = models_of(of_views([gpu(0)]))
    assert policy.worth(Use.WHOLE, models).pressure(0.0).tolist() == [0.0]
    assert policy.worth(Use.SHARE, models).pressure(0.0)[0] > 0


def test_a_mix_without_anything_for_a_use_is_taken_as_it_is() -> None:
    policy = Policy(Mix((Kind(Form.MIG, profile="1g.10gb"),), (1.0,)))
    models = models_of(of_views([gpu(0)]))
    assert policy.worth(Use.WHOLE, models).models == models


def test_steps_are_the_worth_in_whole_numbers() -> None:
    card = gpu()
    steps = prior().steps(card.model, 8, card.profiles)
    worth = prior().slices(card.model, 8, card.profiles)
    for free in (0, 0xFF, 0b1010):
        assert steps(free) == round(float(worth.of(np.array([free]))[0]) / STEP)


def test_models_are_counted_with_what_they_can_give_away() -> None:
    found = models_of(of_views([gpu(0), gpu(1), gpu(2, "A100-40GB")]))
    assert [(model.name, model.gpus) for model in found] == [("A100-40GB", 1), ("H100-80GB", 2)]
    assert all(model.memory_mib for model in found)


def test_a_cost_is_the_sum_of_its_terms() -> None:
    assert Why(5, 3, -2, 1000).cost == 1006
