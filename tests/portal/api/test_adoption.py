"""Adopting over REST: an operator's, with a key against doing it twice."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.shapes import MigAsk
from pool.models import Blocker, Reservation, Token
from pool.queries import clock
from pool.services import reservations
from tests.portal.api.asking import problem, wrong

BODY = {"team": "vision", "owner": "milo", "first": 2, "duration": "PT2H", "title": "found running"}


@pytest.fixture
def foreign(node):
    """An instance of two slices that somebody made by hand."""
    gpu = node.gpus[0]
    gpu.instances.append(gpu.instance(14, 2, 2, "2g.20gb", owned=False))
    node.send()
    return node


@pytest.fixture
def path(foreign):
    return f"/api/v1/gpus/{foreign.gpus[0].uuid}/adopt"


def test_an_operator_makes_a_booking_of_it(api, otto, path):
    response = api(otto).post(path, BODY)
    assert response.status_code == 201, response.content
    made = response.json()
    assert (made["state"], made["owner"], made["booked_by"], made["title"]) == (
        "starting",
        "milo",
        "otto",
        "found running",
    )
    assert response["Location"].endswith(f"/api/v1/reservations/{made['id']}")


def test_a_key_keeps_it_from_being_done_twice(api, otto, path):
    asking = api(otto)
    first = asking.post(path, BODY, Idempotency_Key="k1")
    again = asking.post(path, BODY, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again["Idempotency-Replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert Reservation.objects.count() == 1


def test_others_may_not(api, lena, ada, path):
    for user in (lena, ada):
        problem(api(user).post(path, BODY), 403, "forbidden")


def test_a_token_of_one_team_adopts_for_that_team_alone(api, otto, speech, path):
    asking = api(otto)
    Token.objects.update(team=speech)
    problem(asking.post(path, BODY), 403, "forbidden")


def test_all_wrong_fields_are_told_at_once(api, otto, path):
    body = {"owner": 7, "first": -1, "when": "now"}
    assert wrong(api(otto).post(path, body)) == {
        ("/team", "required"),
        ("/owner", "not_a_string"),
        ("/first", "not_an_integer"),
        ("/when", "unknown_field"),
        ("/duration", "one_of"),
    }


def test_where_nothing_is_foreign_it_says_so(api, otto, path):
    assert wrong(api(otto).post(path, BODY | {"first": 0})) == {("/first", "nothing_foreign")}


def test_bookings_that_fit_nowhere_else_are_named(api, otto, lena, path):
    Blocker.objects.all().delete()
    row = reservations.book(
        actor=lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="7g.80gb"),
        start=clock.now() + timedelta(hours=1),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    Blocker.objects.create(gpu=row.allocations.get().gpu, span=(2, 4), since=clock.now(), kind="foreign")
    told = problem(api(otto).post(path, BODY), 409, "wrong_state")
    assert told["reservations"] == [str(row.pk)]
    assert "1 booking stands in the way." in told["detail"]


def test_a_gpu_that_is_not_there_is_not_found(api, otto, path):
    problem(api(otto).post("/api/v1/gpus/GPU-none/adopt", BODY), 404, "not_found")
