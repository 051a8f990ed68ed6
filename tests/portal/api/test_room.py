"""Room made over REST: shown to operators, carried out as shown, once."""

from __future__ import annotations

import pytest

from pool.models import Event
from tests.portal.api.asking import problem
from tests.portal.scattered import nodes_of, scatter

PATH = "/api/v1/pools/main/room"


@pytest.fixture
def scattered(cast):
    return scatter(cast)


@pytest.fixture
def wish(scattered):
    """All of a GPU when a small slice is on each."""
    start = scattered[0].period.lower.isoformat()
    ask = {"kind": "mig", "profile": "7g.80gb"}
    return {"team": "vision", "ask": ask, "start": start, "duration": "PT1H"}


def test_it_shows_the_moves_and_moves_nothing(api, otto, scattered, wish):
    told = api(otto).post(PATH, wish).json()
    (move,) = told["moves"]
    assert (told["pool"], told["fits"], told["charge_milli"]) == ("main", False, 125)
    assert {move["from"][0]["node"], move["to"][0]["node"]} == {"apart-1", "apart-2"}
    assert [nodes_of(one) for one in scattered] == [{"apart-1"}, {"apart-2"}]


def test_it_is_carried_out_once_for_one_key(api, otto, scattered, wish):
    operator = api(otto)
    body = wish | {"plan": operator.post(PATH, wish).json()["plan"]}
    for _ in range(2):
        assert operator.post(PATH, body, Idempotency_Key="a").json() == {"moved": 1}
    assert nodes_of(scattered[0]) == nodes_of(scattered[1])
    assert Event.objects.get(verb="reservation.moved").actor == otto
    told = operator.post(PATH, wish).json()
    assert told == {"pool": "main", "fits": True, "plan": None, "charge_milli": 0, "moves": []}
    problem(operator.post(PATH, body), 412, "stale")


def test_what_cannot_be_read_is_told_field_by_field(api, otto, wish):
    problem(api(otto).post(PATH, {}), 422, "invalid")
    problem(api(otto).post(PATH, wish | {"end": "2027-03-01T12:00:00Z"}), 422, "invalid")
    problem(api(otto).post(PATH, wish | {"plan": "x" * 65}), 422, "invalid")


def test_nobody_else_sees_or_does_it(api, otto, lena, vision, wish):
    for client in (api(lena), api(lena, team=vision)):
        problem(client.post(PATH, wish), 403, "forbidden")
        problem(client.post(PATH, wish | {"plan": "x"}), 403, "forbidden")
    problem(api(otto).post("/api/v1/pools/nothing/room", wish), 404, "not_found")
