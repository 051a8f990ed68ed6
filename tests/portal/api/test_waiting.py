"""The wait list over REST: joining, standing in it, accepting, leaving; and why a reservation is as it is."""

from __future__ import annotations

import pytest

from pool.queries import clock
from pool.services import lanes
from tests.portal.api.asking import BODY, RESERVATIONS, later, problem, wrong

WAITING = "/api/v1/waiting"
SOUGHT = {name: BODY[name] for name in ("team", "pool", "ask", "duration", "class")}


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


@pytest.fixture
def full(lead):
    return lead.book(BODY | {"ask": {"kind": "mig", "profile": "7g.80gb"}, "title": "secret"}).json()


def joined(client, **over):
    response = client.post(WAITING, SOUGHT | over)
    assert response.status_code == 201, response.content
    return response.json()


def test_it_joins_with_a_window_and_says_where_it_is(lead, full):
    latest = later(hours=9)
    body = joined(lead, latest=latest, partial_ok=True, asks_first=True)
    assert (body["state"], body["allocations"]) == ("waiting", [])
    assert body["wait"] | {"since": "", "earliest": ""} == {
        "since": "",
        "earliest": "",
        "latest": latest.replace("Z", "+00:00") if "+" in body["wait"]["latest"] else latest,
        "partial_ok": True,
        "asks_first": True,
    }
    assert lead.get(f"{RESERVATIONS}/{body['id']}").json()["state"] == "waiting"


def test_the_list_has_the_callers_own_with_place_reason_and_estimate(lead, full, api, sam):
    mine = joined(lead)
    joined(api(sam), team="speech")
    (one,) = lead.get(WAITING).json()["results"]
    assert one["id"] == mine["id"]
    assert (one["place"]["position"], one["place"]["of"], one["place"]["why"]) == (1, 2, "first")
    assert one["place"]["estimate"] is not None
    assert "secret" not in api(sam).get(WAITING).content.decode()


def test_wrong_fields_are_told_together(lead):
    response = lead.post(WAITING, {"team": "vision", "start": later(hours=1), "asks_first": "yes"})
    assert wrong(response) == {
        ("/start", "unknown_field"),
        ("/pool", "required"),
        ("/ask", "required"),
        ("/duration", "required"),
        ("/asks_first", "not_a_boolean"),
    }
    assert wrong(lead.post(WAITING, SOUGHT | {"latest": later(minutes=5)})) == {("/latest", "too_early")}


def test_the_same_key_joins_once(lead, full):
    first = lead.post(WAITING, SOUGHT, Idempotency_Key="k")
    again = lead.post(WAITING, SOUGHT, Idempotency_Key="k")
    assert first.json()["id"] == again.json()["id"]
    assert again["Idempotency-Replayed"] == "true"


def test_who_may_not_book_for_the_team_may_not_wait(api, sam, node):
    problem(api(sam).post(WAITING, SOUGHT), 404, "not_found")


def test_an_offer_is_accepted_and_a_wait_is_left(lead, node):
    offered, left = joined(lead, asks_first=True), joined(lead, asks_first=True)
    lanes.due(now=clock.now())
    accepted = lead.post(f"{RESERVATIONS}/{offered['id']}/confirm").json()
    assert accepted["state"] == "starting"
    assert lead.post(f"{RESERVATIONS}/{left['id']}/release").json()["state"] == "cancelled"


# --- Why --------------------------------------------------------------------------


def why(client, pk):
    response = client.get(f"{RESERVATIONS}/{pk}/explanation")
    assert response.status_code == 200, response.content
    return response.json()


def test_it_says_which_rule_with_which_numbers_and_rows(lead, full):
    body = why(lead, joined(lead)["id"])
    assert (body["rule"], body["state"], body["place"]["position"]) == ("room", "waiting", 1)
    assert (body["numbers"]["asked"], body["numbers"]["free"]) == (2, 0)
    assert [row["id"] for row in body["rows"]] == [full["id"]]
    assert body["not_shown"] == {"reservations": 0, "charge_milli": 0}
    assert body["detail"]


def test_rows_of_others_are_counted_and_never_named(lead, full, api, sam):
    body = why(api(sam), joined(api(sam), team="speech")["id"])
    assert body["rows"] == []
    assert body["not_shown"] == {"reservations": 1, "charge_milli": 1000}
    assert full["id"] not in str(body)


def test_of_what_is_granted_it_says_whether_it_may_be_taken_back(lead, full):
    body = why(lead, full["id"])
    assert (body["rule"], body["numbers"]["borrowed_milli"]) == ("granted", 0)


def test_of_what_is_over_it_says_what_happened(lead, full):
    lead.post(f"{RESERVATIONS}/{full['id']}/release")
    body = why(lead, full["id"])
    assert (body["rule"], body["reason"], body["by"]) == ("event", "released", "lena")


def test_what_has_its_own_earliest_start_waits_for_that(lead, full):
    body = why(lead, joined(lead, earliest=later(hours=1), latest=later(hours=4))["id"])
    assert body["rule"] == "window"
