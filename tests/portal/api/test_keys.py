"""Idempotency keys: the same request twice is one booking, whoever asks with another body is told."""

from __future__ import annotations

import pytest
from django.db import connections

from pool.models import QuotaLine, Reservation
from pool.services.idempotency import Claim
from tests.portal.api.asking import BODY, RESERVATIONS, problem


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
