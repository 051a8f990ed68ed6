"""Quota over REST: lines, requests, decisions, the inbox, and who is told nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pool.models import OutboxMessage, Pool, QuotaLine, QuotaRequest
from pool.queries import clock
from tests.portal.api.asking import BODY, RESERVATIONS, later, problem, tomorrow, wrong

QUOTA = "/api/v1/quota"
REQUESTS = f"{QUOTA}/requests"
INBOX = "/api/v1/inbox"
LINE = {"team": "vision", "pool": "main", "guaranteed_milli": 1000, "cap_milli": 4000}


def asking(**over: Any) -> dict[str, Any]:
    base = {"team": "vision", "pool": "main", "cap_milli": 2000, "justification": "A paper"}
    return base | {"start": later(hours=-1), "end": later(days=30)} | over


@pytest.fixture
def made(api, lena):
    response = api(lena).post(REQUESTS, asking())
    assert response.status_code == 201, response.content
    return response.json()


# --- Lines --------------------------------------------------------------------


def test_a_line_is_told_with_its_use_to_the_team_alone(api, lena, sam, vision, node):
    api(lena).book()
    (line,) = api(lena).get(QUOTA).json()["results"]
    assert (line["team"], line["cap_milli"], line["used_milli"], line["model"]) == (
        "vision",
        16000,
        250,
        None,
    )
    assert line["effective"] == {"guaranteed_milli": 8000, "cap_milli": 16000}
    assert line["fair_share_milli"] is not None
    assert [one["team"] for one in api(sam).get(QUOTA).json()["results"]] == ["speech"]
    problem(api(sam).get(f"{QUOTA}?team=vision"), 404, "not_found")
    assert len(api(lena, team=vision).get(f"{QUOTA}?team=vision&pool=main").json()["results"]) == 1


def test_an_approver_sets_a_line(api, ada, node):
    body = LINE | {"guaranteed_milli": 0, "kinds": ["mig"], "budget_milli_hours": 5000, "version": 1}
    line = api(ada).post(QUOTA, body).json()
    assert (line["cap_milli"], line["kinds"], line["version"]) == (4000, ["mig"], 2)
    assert line["month"]["budget_milli_hours"] == 5000
    assert line["month"]["spent_milli_hours"] == 0
    assert problem(api(ada).post(QUOTA, body), 412, "stale")["version"] == 2


@pytest.mark.parametrize("who", ["lena", "milo", "sam", "otto"])
def test_nobody_else_sets_one(api, cast, who):
    problem(api(getattr(cast, who)).post(QUOTA, LINE), 403, "forbidden")
    assert QuotaLine.objects.get(team=cast.vision).version == 1


def test_a_token_of_one_team_sets_and_decides_nothing(api, ada, lena, vision, made):
    bound = api(lena, team=vision)
    problem(bound.post(QUOTA, LINE), 403, "forbidden")
    problem(bound.post(f"{REQUESTS}/{made['id']}/approve"), 403, "forbidden")
    assert bound.get(REQUESTS).json()["results"][0]["id"] == made["id"]


def test_what_is_wrong_is_told_by_field(api, ada):
    assert wrong(api(ada).post(QUOTA, {"kinds": "mig", "weight": -1, "extra": 1})) >= {
        ("/team", "required"),
        ("/cap_milli", "required"),
        ("/kinds", "not_a_list"),
        ("/weight", "not_an_integer"),
        ("/extra", "unknown_field"),
    }
    assert wrong(api(ada).post(QUOTA, LINE | {"kinds": ["tpu"]})) == {("/kinds", "not_a_choice")}


def test_lowering_tells_first_what_lies_above(api, ada, lena, node):
    booked = api(lena).book().json()["id"]
    low = LINE | {"guaranteed_milli": 0, "cap_milli": 100}
    told = problem(api(ada).post(QUOTA, low), 409, "promised")
    assert told["promised"][0]["reservations"] == [booked]
    assert api(ada).post(QUOTA, low | {"accept_above": True}).json()["cap_milli"] == 100


def test_promised_against_supply_is_for_approvers(api, ada, lena, otto, node):
    last = api(ada).get("/api/v1/pools/main/promised").json()["results"][-1]
    assert (last["model"], last["guaranteed_milli"], last["caps_milli"]) == (None, 12_000, 24_000)
    assert last["capacity_milli"] >= 1000
    for who in (lena, otto):
        problem(api(who).get("/api/v1/pools/main/promised"), 403, "forbidden")


# --- Requests -----------------------------------------------------------------


def test_a_request_is_asked_once_for_one_key(api, lena):
    body, lead = asking(), api(lena)
    first = lead.post(REQUESTS, body, Idempotency_Key="k").json()
    assert lead.post(REQUESTS, body, Idempotency_Key="k").json()["id"] == first["id"]
    problem(lead.post(REQUESTS, asking(cap_milli=1), Idempotency_Key="k"), 422, "key_reused")
    assert QuotaRequest.objects.count() == 1


def test_a_word_that_is_sent_twice_with_one_key_is_said_once(api, lena, made):
    at, lead = f"{REQUESTS}/{made['id']}/comments", api(lena)
    first = lead.post(at, {"text": "Which?"}, Idempotency_Key="k").json()
    assert lead.post(at, {"text": "Which?"}, Idempotency_Key="k").json() == first
    assert [one["id"] for one in lead.get(at).json()["results"]] == [first["id"]]
    problem(lead.post(at, {"text": "What?"}, Idempotency_Key="k"), 422, "key_reused")


def test_it_is_read_commented_and_granted_otherwise_than_asked(api, lena, ada, made):
    at = f"{REQUESTS}/{made['id']}"
    assert (made["state"], made["granted"], made["requested_by"]) == ("submitted", None, "lena")
    assert api(ada).post(f"{at}/comments", {"text": "Which?"}).status_code == 201
    (said,) = api(lena).get(f"{at}/comments").json()["results"]
    assert (said["author"], said["text"]) == ("ada", "Which?")
    granted = api(ada).post(f"{at}/approve", {"cap_milli": 1500, "version": 1}).json()
    assert (granted["state"], granted["cap_milli"]) == ("active", 2000)
    assert granted["granted"]["cap_milli"] == 1500
    assert granted["granted"]["end"] == made["end"]
    late = problem(api(ada).post(f"{at}/deny", {"answer": "No", "version": 1}), 412, "stale")
    assert late["decided_by"] == "ada"
    (line,) = api(lena).get(QUOTA).json()["results"]
    assert (line["cap_milli"], line["effective"]["cap_milli"]) == (16000, 17500)


def test_it_is_denied_with_a_reason_or_withdrawn(api, lena, ada, made):
    at = f"{REQUESTS}/{made['id']}"
    assert wrong(api(ada).post(f"{at}/deny", {})) == {("/answer", "required")}
    assert api(ada).post(f"{at}/deny", {"answer": "No room"}).json()["answer"] == "No room"
    other = api(lena).post(REQUESTS, asking()).json()["id"]
    assert api(lena).post(f"{REQUESTS}/{other}/withdraw").json()["state"] == "withdrawn"
    problem(api(lena).post(f"{REQUESTS}/{other}/withdraw"), 409, "wrong_state")
    denied = api(lena).get(f"{REQUESTS}?state=denied").json()["results"]
    assert [one["id"] for one in denied] == [made["id"]]
    assert wrong(api(lena).get(f"{REQUESTS}?state=x")) == {("?state", "not_a_choice")}


def test_a_renewal_names_what_it_prolongs(api, lena, ada, made):
    assert wrong(api(lena).post(REQUESTS, asking(renews=made["id"]))) == {("/renews", "not_granted")}
    api(ada).post(f"{REQUESTS}/{made['id']}/approve")
    renewal = asking(renews=made["id"], start=made["end"], end=later(days=60))
    assert api(lena).post(REQUESTS, renewal).json()["renews"] == made["id"]
    problem(api(lena).post(REQUESTS, asking(renews=10**9)), 404, "not_found")


def test_what_cannot_be_asked_is_told_by_field(api, lena, milo):
    assert wrong(api(lena).post(REQUESTS, {"team": "vision", "pool": "main"})) == {
        ("/start", "required"),
        ("/end", "required"),
        ("/justification", "required"),
    }
    assert wrong(api(lena).post(REQUESTS, asking(cap_milli=0))) == {("/cap_milli", "nothing_asked")}
    problem(api(milo).post(REQUESTS, asking()), 403, "forbidden")


def test_to_a_stranger_a_request_is_not_there(api, sam, made):
    stranger = api(sam)
    assert stranger.get(REQUESTS).json()["results"] == []
    for path, body in (
        ("", None),
        ("/comments", None),
        ("/comments", {"text": "x"}),
        ("/withdraw", {}),
        ("/approve", {}),
        ("/deny", {"answer": "x"}),
    ):
        answers = []
        for pk in (made["id"], 10**12):
            at = f"{REQUESTS}/{pk}{path}"
            response = stranger.get(at) if body is None else stranger.post(at, body)
            answers.append(problem(response, 404, "not_found") | {"request_id": ""})
        assert answers[0] == answers[1]


def test_nobody_decides_on_their_own(api, cast):
    cast.lena.roles = ["approver"]
    cast.lena.save()
    pk = api(cast.lena).post(REQUESTS, asking()).json()["id"]
    problem(api(cast.lena).post(f"{REQUESTS}/{pk}/approve"), 403, "own_request")


# --- Bookings that wait -------------------------------------------------------


def test_an_approver_decides_on_bookings(api, ada, lena, sam, otto, node):
    Pool.objects.update(approve_above_milli=100)
    first, second = (api(lena).book(tomorrow(title=title)).json()["id"] for title in ("a", "b"))
    waiting = api(ada).get("/api/v1/approvals").json()["results"]
    assert [one["id"] for one in waiting] == [first, second]
    for who in (lena, otto, sam):
        problem(api(who).get("/api/v1/approvals"), 403, "forbidden")
    problem(api(lena).post(f"{RESERVATIONS}/{first}/approve"), 403, "forbidden")
    problem(api(sam).post(f"{RESERVATIONS}/{first}/approve"), 404, "not_found")
    problem(api(sam).post(f"{RESERVATIONS}/{first}/deny", {"answer": "x"}), 404, "not_found")
    assert api(ada).post(f"{RESERVATIONS}/{first}/approve").json()["state"] == "scheduled"
    assert wrong(api(ada).post(f"{RESERVATIONS}/{second}/deny")) == {("/answer", "required")}
    assert api(ada).post(f"{RESERVATIONS}/{second}/deny", {"answer": "No"}).json()["state"] == "denied"
    assert problem(api(ada).post(f"{RESERVATIONS}/{second}/approve"), 412, "stale")["decided_by"] == "ada"


# --- The inbox ----------------------------------------------------------------


def test_one_reads_ones_own_messages(api, lena, ada, sam, vision, made):
    (message,) = api(ada).get(f"{INBOX}?unread=true").json()["results"]
    assert (message["kind"], message["request"]) == ("request_submitted", made["id"])
    assert "vision" in message["subject"]
    problem(api(sam).post(f"{INBOX}/{message['id']}/read"), 404, "not_found")
    assert api(ada).post(f"{INBOX}/{message['id']}/read").json()["read_at"]
    assert api(ada).get(f"{INBOX}?unread=true").json()["results"] == []
    assert len(api(ada).get(f"{INBOX}?unread=false").json()["results"]) == 1
    assert wrong(api(ada).get(f"{INBOX}?unread=x")) == {("?unread", "not_a_boolean")}
    OutboxMessage.objects.create(recipient=lena, kind="budget", key="k", created_at=clock.now())
    assert len(api(lena).get(INBOX).json()["results"]) == 1
    assert api(lena, team=vision).get(INBOX).json()["results"] == []


def test_a_booking_that_is_ordinary_waits_for_nobody(api, ada, lena, node):
    api(lena).book(BODY)
    assert api(ada).get("/api/v1/approvals").json()["results"] == []
