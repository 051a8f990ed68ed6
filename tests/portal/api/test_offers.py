"""Offers over REST: what is answered, how an offer is held and booked, and every refusal with its reason."""

from __future__ import annotations

import pytest

from pool.models import Reservation
from tests.portal.api.asking import BODY, RESERVATIONS, later, problem, tomorrow, wrong

OFFERS = "/api/v1/offers"
HOLD = f"{RESERVATIONS}/hold"
SOUGHT = {name: BODY[name] for name in ("team", "pool", "ask", "duration", "class")}


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


def offers(client, **over):
    response = client.post(OFFERS, SOUGHT | over)
    assert response.status_code == 200, response.content
    return response.json()


def held(client, offer, **headers):
    return client.post(HOLD, {**SOUGHT, "title": "train", "duration": None, **offer["booking"]}, **headers)


# --- Offers -----------------------------------------------------------------------


def test_an_offer_says_when_what_for_and_at_what_charge(lead):
    body = offers(lead)
    assert set(body) == {"start", "end", "duration", "offers", "refusal", "would_move"}
    assert (body["duration"], body["refusal"]) == ("PT2H", None)
    assert 1 <= len(body["offers"]) <= 5
    first = body["offers"][0]
    assert first["good_for"] == ["soonest", "least_fragmenting", "longest_extendable"]
    assert (first["extendable_until"], first["charge_milli"], first["models"]) == (None, 250, ["H100-80GB"])
    assert first["booking"]["start"] == body["start"]
    assert not Reservation.objects.exists()


def test_the_window_is_where_the_body_says(lead):
    start, end = later(hours=3), later(hours=6)
    body = offers(lead, start=start, end=end)
    assert (body["start"][:19], body["end"][:19]) == (start[:19], end[:19])
    assert all(body["start"] <= one["booking"]["start"] for one in body["offers"])


def test_without_an_offer_the_refusal_says_why(lead):
    body = offers(lead, ask={"kind": "gpu", "count": 900})
    assert body["offers"] == []
    refused = body["refusal"]
    assert (refused["code"], refused["asked"], refused["status"]) == ("no_capacity", 900, 409)
    assert refused["title"]
    assert refused["next_step"]


def test_wrong_fields_are_told_together(lead):
    response = lead.post(
        OFFERS, {"team": "vision", "pool": "", "title": "x", "ask": {"kind": "gpu", "count": 0}}
    )
    assert wrong(response) == {
        ("/pool", "blank"),
        ("/title", "unknown_field"),
        ("/ask/count", "too_small"),
        ("/duration", "required"),
    }
    assert wrong(lead.post(OFFERS, SOUGHT | {"end": later(minutes=5)})) == {("/end", "too_early")}
    assert wrong(lead.post(OFFERS, SOUGHT | {"end": later(days=60)})) == {("/end", "too_late")}


def test_who_may_not_book_for_the_team_gets_none(api, sam, node):
    problem(api(sam).post(OFFERS, SOUGHT), 404, "not_found")


# --- Hold and confirm ---------------------------------------------------------------


def test_an_offer_is_held_and_then_booked(lead):
    offer = offers(lead, start=later(hours=3))["offers"][0]
    response = held(lead, offer)
    assert response.status_code == 201, response.content
    body = response.json()
    assert (body["state"], body["state_reason"], body["title"]) == ("held", "offered", "train")
    assert body["hold_until"].endswith("Z")
    assert body["start"] == offer["booking"]["start"]
    address = response["Location"].removeprefix("http://testserver")
    booked = lead.post(f"{address}/confirm", {}, If_Match=response["ETag"])
    assert booked.status_code == 200, booked.content
    assert (booked.json()["state"], booked.json()["hold_until"]) == ("scheduled", None)
    assert problem(lead.post(f"{address}/confirm"), 409, "wrong_state")["doing"] == "confirm"


def test_a_second_hold_is_refused_with_the_first(lead):
    offer = offers(lead, start=later(hours=3))["offers"][0]
    first = held(lead, offer).json()
    refused = problem(held(lead, offer), 409, "one_hold")
    assert (refused["reservation"], refused["hold_until"]) == (first["id"], first["hold_until"])
    assert lead.post(f"{RESERVATIONS}/{first['id']}/release").status_code == 200
    assert held(lead, offer).status_code == 201


def test_the_same_key_holds_once(lead):
    offer = offers(lead, start=later(hours=3))["offers"][0]
    first, again = (held(lead, offer, Idempotency_Key="k1") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert again["Idempotency-Replayed"] == "true"


def test_only_whom_it_is_held_for_confirms_it(lead, api, milo):
    made = held(lead, offers(lead, start=later(hours=3))["offers"][0]).json()["id"]
    problem(api(milo).post(f"{RESERVATIONS}/{made}/confirm"), 403, "forbidden")


def test_a_booking_may_wish_to_be_extendable(lead):
    response = lead.book(tomorrow(free_until=later(days=3)))
    assert response.status_code == 201, response.content
    assert wrong(lead.book(tomorrow(free_until=7))) == {("/free_until", "not_a_string")}
