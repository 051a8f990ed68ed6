"""What a pool is asked for: counted, remembered, and what is taken for granted before anybody asked."""

from __future__ import annotations

import json

import pytest

from pool.core.mix import PRIOR, Form, Kind, Mix, Parameters, from_json, learn

HALF = Kind(Form.SHARE, 1, 500, cpu_milli=4000)
WHOLE = Kind(Form.WHOLE, 1)
EIGHT = Kind(Form.WHOLE, 8, models=("H100-80GB",))


def weight(mix: Mix, kind: Kind) -> float:
    return dict(zip(mix.kinds, mix.weights, strict=True)).get(kind, 0.0)


def test_it_weighs_kinds_by_how_often_they_came() -> None:
    mix = learn([HALF, WHOLE, HALF, HALF], prior={})
    assert (weight(mix, HALF), weight(mix, WHOLE)) == (0.75, 0.25)


def test_the_order_of_asks_makes_no_difference() -> None:
    assert learn([HALF, EIGHT, WHOLE, HALF], prior={}) == learn([WHOLE, HALF, HALF, EIGHT], prior={})


def test_before_anybody_asked_all_usual_sizes_have_their_weight() -> None:
    mix = learn([])
    assert set(mix.kinds) == set(PRIOR)
    assert sum(mix.weights) == pytest.approx(1)


def test_the_prior_loses_its_say_as_asks_come_in() -> None:
    first = weight(learn([HALF] * 10), HALF)
    later = weight(learn([HALF] * 1000), HALF)
    assert 0 < first < 0.5
    assert later > 0.9


def test_it_keeps_the_frequent_kinds_alone() -> None:
    mix = learn([HALF, HALF, WHOLE, WHOLE, EIGHT], prior={}, most=2)
    assert set(mix.kinds) == {HALF, WHOLE}
    assert sum(mix.weights) == pytest.approx(1)


def test_it_refuses_to_learn_from_nothing() -> None:
    with pytest.raises(ValueError):
        learn([], prior={})


def test_it_is_read_back_as_it_was_stored() -> None:
    mix = learn([HALF, EIGHT, Kind(Form.MIG, profile="2g.20gb")], prior={}, parameters=Parameters(alpha=0.7))
    assert from_json(json.loads(json.dumps(mix.as_json()))) == mix


def test_a_field_that_is_no_longer_known_is_dropped() -> None:
    stored = learn([HALF], prior={}).as_json()
    stored["kinds"][0]["colour"] = "red"
    stored["parameters"]["mood"] = 3
    assert from_json(stored) == learn([HALF], prior={})


@pytest.mark.parametrize(
    ("memory", "milli"), [(80 * 1024, 125), (40 * 1024, 250), (4096, 2500), (None, 1000)]
)
def test_a_share_in_mib_is_another_part_of_each_model(memory: int | None, milli: int) -> None:
    assert Kind(Form.SHARE, memory_mib=10 * 1024).milli_on(memory) == milli


def test_a_part_of_a_gpu_is_rounded_up() -> None:
    assert Kind(Form.SHARE, memory_mib=1000).milli_on(3000) == 334
