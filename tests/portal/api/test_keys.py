"""Idempotency keys: the same request twice is carried out once, whoever asks with another body is told."""

from __future__ import annotations

import pytest
from django.db import connections

from pool.models import QuotaLine, Reservation
from pool.services.idempotency import Claim
from tests.portal.api.asking import BODY, RESERVATIONS, problem, tomorrow


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


def test_the_same_key_and_body_answer_the_first_result_as_it_is_now(lead, node):
    first = lead.book(Idempotency_Key="build-17")
    assert "Idempotency-Replayed" not in first.headers
    node.follow()
    shuffled = dict(reversed(BODY.items()))
    second = lead.book(shuffled, Idempotency_Key="build-17")
    assert (second.status_code, second["Idempotency-Replayed"]) == (201, "true")
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["state"] == "active"
    assert Reservation.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(lead):
    lead.book(Idempotency_Key="build-17")
    problem(lead.book(BODY | {"title": "other"}, Idempotency_Key="build-17"), 422, "key_reused")
    assert Reservation.objects.count() == 1


def test_a_key_belongs_to_one_token(lead, api, milo):
    lead.book(Idempotency_Key="build-17")
    other = api(milo).book(Idempotency_Key="build-17")
    assert other.status_code == 201
    assert "Idempotency-Replayed" not in other.headers
    assert Reservation.objects.count() == 2


def test_a_refusal_is_not_kept_so_that_a_retry_may_win(lead):
    QuotaLine.objects.filter(team__name="vision").update(guaranteed_milli=0, cap_milli=200)
    problem(lead.book(Idempotency_Key="build-17"), 409, "quota_exceeded")
    QuotaLine.objects.filter(team__name="vision").update(cap_milli=2000)
    assert lead.book(Idempotency_Key="build-17").status_code == 201


@pytest.mark.parametrize("key", ["", "two words", "x" * 256, "tab\tbed", "é"])
def test_it_refuses_a_key_that_is_none(lead, nothing_written, key):
    problem(lead.book(Idempotency_Key=key), 400, "malformed")


def test_it_takes_a_key_of_255_characters(lead):
    assert lead.book(Idempotency_Key="k" * 255).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_a_key_that_another_request_has_is_in_progress(lead):
    """Another connection holds the key's lock, as a request in mid-transaction would."""
    token = lead.token.split("_")[1]
    claim = Claim(f"token:{token}", "POST", RESERVATIONS, "build-17", "")
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [claim.number])
        problem(lead.book(Idempotency_Key="build-17"), 409, "in_progress")
    finally:
        other.close()
    assert lead.book(Idempotency_Key="build-17").status_code == 201


# --- Extending and releasing ---------------------------------------------------------

LONGER = {"duration": "PT1H"}


@pytest.fixture
def made(lead):
    return lead.book(tomorrow()).json()


@pytest.fixture
def extend(made):
    return f"{RESERVATIONS}/{made['id']}/extend"


def test_the_same_key_extends_once_and_answers_what_it_is_now(lead, extend):
    first = lead.post(extend, LONGER, Idempotency_Key="more")
    assert "Idempotency-Replayed" not in first.headers
    since = lead.post(extend, LONGER).json()
    again = lead.post(extend, LONGER, Idempotency_Key="more", If_Match=first["ETag"])
    assert (again.status_code, again["Idempotency-Replayed"]) == (200, "true")
    assert again.json() == since
    assert again["ETag"] == f'"r{since["version"]}"'


def test_the_same_key_with_another_extension_is_refused(lead, extend):
    end = lead.post(extend, LONGER, Idempotency_Key="more").json()["end"]
    problem(lead.post(extend, {"duration": "PT2H"}, Idempotency_Key="more"), 422, "key_reused")
    assert lead.get(extend.removesuffix("/extend")).json()["end"] == end


def test_an_extension_that_was_refused_leaves_its_key_free(lead, extend):
    stale = lead.post(extend, LONGER, Idempotency_Key="more", If_Match='"r999"')
    problem(stale, 412, "stale")
    fresh = lead.post(extend, LONGER, Idempotency_Key="more")
    assert fresh.status_code == 200
    assert "Idempotency-Replayed" not in fresh.headers


def test_a_key_belongs_to_one_reservation_and_one_action(lead, extend):
    other = lead.book(tomorrow()).json()["id"]
    paths = [extend, f"{RESERVATIONS}/{other}/extend", extend.replace("/extend", "/release")]
    answers = [lead.post(path, LONGER if "extend" in path else {}, Idempotency_Key="k") for path in paths]
    assert [a.status_code for a in answers] == [200, 200, 200]
    assert not any("Idempotency-Replayed" in a.headers for a in answers)


def test_who_sends_a_release_again_gets_its_answer(lead, extend):
    path = extend.replace("/extend", "/release")
    assert lead.post(path, {}, Idempotency_Key="done").json()["state"] == "cancelled"
    again = lead.post(path, {}, Idempotency_Key="done")
    assert (again.status_code, again["Idempotency-Replayed"]) == (200, "true")
    assert again.json()["state"] == "cancelled"
    problem(lead.post(path, {}, Idempotency_Key="other"), 409, "wrong_state")


def test_another_token_may_use_the_same_key(lead, api, lena, extend):
    first = lead.post(extend, LONGER, Idempotency_Key="more").json()
    other = api(lena).post(extend, LONGER, Idempotency_Key="more")
    assert "Idempotency-Replayed" not in other.headers
    assert other.json()["end"] > first["end"]


@pytest.mark.parametrize("action", ["extend", "release"])
def test_an_action_refuses_a_key_that_is_none(lead, extend, action):
    body = LONGER if action == "extend" else {}
    answer = lead.post(extend.replace("extend", action), body, Idempotency_Key="two words")
    problem(answer, 400, "malformed")
