"""services.idempotency: the same request twice is carried out once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import connection, transaction

from pool.core.errors import Code, Refusal
from pool.models import IdempotencyKey
from pool.services import idempotency
from pool.services.idempotency import KEPT, Claim
from tests.cast import NOW

CLAIM = Claim("token:1", "POST", "/api/v1/reservations", "key-1", idempotency.fingerprint({"a": 1}))
OTHER_BODY = replace(CLAIM, fingerprint=idempotency.fingerprint({"a": 2}))

pytestmark = pytest.mark.django_db


def carry_out(claim: Claim, resource: str = "r-1") -> str | None:
    """None: it was carried out now; else what was made before."""
    with transaction.atomic():
        made = idempotency.claim(claim, now=NOW)
        if made is None:
            idempotency.keep(claim, resource=resource, now=NOW)
        return made


def test_the_second_time_it_names_what_the_first_has_made() -> None:
    assert carry_out(CLAIM) is None
    assert carry_out(CLAIM, "r-2") == "r-1"
    assert idempotency.find(CLAIM, now=NOW) == "r-1"
    assert IdempotencyKey.objects.count() == 1


def test_another_body_under_the_same_key_is_refused() -> None:
    carry_out(CLAIM)
    for asked in (idempotency.find, idempotency.claim):
        with pytest.raises(Refusal) as refused, transaction.atomic():
            asked(OTHER_BODY, now=NOW)
        assert refused.value.code == Code.KEY_REUSED


@pytest.mark.parametrize(
    "other",
    [
        replace(CLAIM, principal="token:2"),
        replace(CLAIM, method="PUT"),
        replace(CLAIM, path="/api/v1/other"),
        replace(CLAIM, key="key-2"),
    ],
)
def test_a_key_is_ones_own_for_one_method_and_path(other: Claim) -> None:
    carry_out(CLAIM)
    assert idempotency.find(other, now=NOW) is None
    assert other.number != CLAIM.number


def test_the_order_of_fields_makes_no_other_body() -> None:
    assert idempotency.fingerprint({"a": 1, "b": [1]}) == idempotency.fingerprint({"b": [1], "a": 1})
    assert idempotency.fingerprint({"a": 1}) != idempotency.fingerprint({"a": "1"})


def test_what_fails_leaves_no_trace() -> None:
    with transaction.atomic():
        idempotency.claim(CLAIM, now=NOW)
        idempotency.keep(CLAIM, resource="r-1", now=NOW)
        transaction.set_rollback(True)
    assert idempotency.find(CLAIM, now=NOW) is None
    assert carry_out(CLAIM, "r-2") is None


def test_a_key_is_forgotten_after_a_day() -> None:
    carry_out(CLAIM)
    almost = NOW + KEPT - timedelta(seconds=1)
    assert idempotency.purge(now=almost) == 0
    assert idempotency.find(CLAIM, now=almost) == "r-1"
    assert idempotency.find(CLAIM, now=NOW + KEPT) is None
    assert idempotency.purge(now=NOW + KEPT) == 1


def test_an_expired_key_that_was_not_purged_may_be_used_again() -> None:
    carry_out(CLAIM)
    later = NOW + KEPT
    with transaction.atomic():
        assert idempotency.claim(OTHER_BODY, now=later) is None
        idempotency.keep(OTHER_BODY, resource="r-2", now=later)
    assert idempotency.find(OTHER_BODY, now=later) == "r-2"


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_is_told_that_the_other_is_at_it() -> None:
    ours, done = Barrier(2), Barrier(2)

    def first() -> None:
        try:
            with transaction.atomic():
                assert idempotency.claim(CLAIM, now=NOW) is None
                ours.wait(10)
                done.wait(10)
                idempotency.keep(CLAIM, resource="r-1", now=NOW)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first)
        ours.wait(10)
        with pytest.raises(Refusal) as refused, transaction.atomic():
            idempotency.claim(CLAIM, now=NOW)
        assert refused.value.code == Code.IN_PROGRESS
        done.wait(10)
        running.result()
    assert carry_out(CLAIM) == "r-1"
