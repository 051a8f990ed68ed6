"""Shares over REST, and whether a booking may be placed anew."""

from __future__ import annotations

import pytest

from tests.portal.api.asking import BODY, wrong
from tests.scene import add_shares

SHARE = {"kind": "share", "memory_mib": 8192, "compute": {"limit": 20}}


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


@pytest.fixture
def shared(cast):
    return add_shares(cast.main)


def test_a_share_is_booked_and_tells_what_it_has_and_what_keeps_it_apart(lead, shared):
    (shown,) = lead.book(BODY | {"ask": SHARE}).json()["allocations"]
    assert (shown["kind"], shown["profile"], shown["mig_uuid"]) == ("share", None, None)
    assert shown["share"] == {
        "memory_mib": 8192,
        "compute": {"guaranteed": 20, "limit": 20},
        "sharing": "mps",
        "isolation": "driver",
    }


def test_a_slice_has_no_share(lead, node):
    assert {one["share"] for one in lead.book().json()["allocations"]} == {None}


def test_the_wrong_fields_of_a_share_are_named(lead, shared):
    refusal = lead.book(BODY | {"ask": SHARE | {"compute": {"guaranteed": 10, "limit": 90}}})
    assert refusal.status_code == 422
    (error,) = refusal.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/ask/compute/limit", "only_batch_above")
    assert "only batch work" in error["detail"].lower()


def test_a_share_that_does_not_fit_is_refused_with_what_is_full(lead, shared):
    whole = {"kind": "share", "memory_pct": 100, "compute": {"limit": 10}}
    assert lead.book(BODY | {"ask": whole}).status_code == 201
    refusal = lead.book(BODY | {"ask": SHARE})
    assert refusal.status_code == 409
    assert refusal.json()["counts"] == {"memory_full": 1, "wrong_use": 1}
    assert "1 with too little memory left" in refusal.json()["detail"]


@pytest.mark.parametrize(("more", "restartable"), [({}, False), ({"restartable": True}, True)])
def test_it_says_whether_it_may_be_placed_anew(lead, node, more, restartable):
    assert lead.book(BODY | more).json()["restartable"] is restartable


def test_batch_work_may_be_placed_anew_unless_it_says_otherwise(lead, node):
    assert lead.book(BODY | {"class": "batch"}).json()["restartable"] is True
    assert lead.book(BODY | {"class": "batch", "restartable": False}).json()["restartable"] is False
    assert wrong(lead.book(BODY | {"restartable": "yes"})) == {("/restartable", "not_a_boolean")}
