"""Defragmentation over REST: shown to operators, carried out as shown, once."""

from __future__ import annotations

import pytest

from pool.models import Event
from tests.portal.api.asking import problem
from tests.portal.scattered import nodes_of, scatter

PATH = "/api/v1/pools/main/defragmentation"


@pytest.fixture
def scattered(cast):
    return scatter(cast)


def test_it_shows_the_moves_before_and_after(api, otto, scattered):
    told = api(otto).get(PATH).json()
    (move,) = told["moves"]
    assert (move["won_gpu_hours"], told["pool"]) == (2.0, "main")
    assert {move["from"][0]["node"], move["to"][0]["node"]} == {"apart-1", "apart-2"}
    assert told["before"]["unusable_gpu_hours"] - told["after"]["unusable_gpu_hours"] == 2.0
    assert told["before"]["share"] > told["after"]["share"]
    assert [nodes_of(one) for one in scattered] == [{"apart-1"}, {"apart-2"}]


def test_it_is_carried_out_once_for_one_key(api, otto, scattered):
    operator = api(otto)
    body = {"plan": operator.get(PATH).json()["plan"]}
    for _ in range(2):
        assert operator.post(PATH, body, Idempotency_Key="a").json() == {"moved": 1}
    assert nodes_of(scattered[0]) == nodes_of(scattered[1])
    assert Event.objects.get(verb="reservation.moved").actor == otto
    empty = {"plan": None, "before": None, "after": None, "moves": []}
    assert operator.get(PATH).json() == {"pool": "main"} | empty
    problem(operator.post(PATH, body), 412, "stale")
    problem(operator.post(PATH, {"plan": "x"}, Idempotency_Key="a"), 422, "key_reused")


def test_a_plan_has_to_be_named(api, otto, scattered):
    problem(api(otto).post(PATH, {}), 422, "invalid")
    problem(api(otto).post(PATH, {"plan": "x" * 65}), 422, "invalid")
    problem(api(otto).post(PATH, {"plan": "another"}), 412, "stale")


def test_nobody_else_sees_or_does_it(api, otto, lena, vision, scattered):
    for client in (api(lena), api(lena, team=vision)):
        problem(client.get(PATH), 403, "forbidden")
        problem(client.post(PATH, {"plan": "x"}), 403, "forbidden")
    problem(api(otto).get("/api/v1/pools/nothing/defragmentation"), 404, "not_found")
