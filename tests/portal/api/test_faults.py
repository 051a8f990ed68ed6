"""Faults over REST: everybody reads them, an operator gives a GPU back once it is well."""

from __future__ import annotations

import pytest

from pool.models import Blocker, Fault, Membership
from tests.cast import NOW
from tests.portal.api.asking import problem


@pytest.fixture
def faulty(node):
    """Xid 48 on the node's GPU, reset, and five good reports since. Its UUID."""
    (gpu,) = node.rows()
    told = {"kind": "xid", "since": NOW, "last_at": NOW}
    Fault.objects.create(gpu=gpu, xid=48, action="reset", reset=0, good=5, count=2, **told)
    Blocker.objects.create(gpu=gpu, span=(0, 8), since=NOW, kind="health", detail="Xid 48")
    return gpu.uuid


def test_everybody_reads_what_is_wrong_with_a_gpu(api, sam, faulty):
    body = api(sam).get(f"/api/v1/gpus/{faulty}/faults").json()
    assert body["may_return"] is True
    (one,) = body["results"]
    assert (one["kind"], one["xid"], one["action"], one["count"]) == ("xid", 48, "reset", 2)
    assert (one["good"], one["needed"], one["reset"], one["may_return"]) == (5, 5, "done", True)
    assert (one["since"], one["cleared_at"], one["cleared_by"]) == ("2027-03-01T10:00:00Z", None, None)


def test_an_operator_gives_it_back_once(api, otto, faulty):
    client = api(otto)
    answered = client.post(f"/api/v1/gpus/{faulty}/return")
    assert answered.status_code == 200
    body = answered.json()
    assert body["may_return"] is False
    assert [(one["cleared_by"], one["may_return"]) for one in body["results"]] == [("otto", False)]
    assert not Blocker.objects.exists()
    refused = problem(client.post(f"/api/v1/gpus/{faulty}/return"), 409, "wrong_state")
    assert "no fault" in refused["detail"]


def test_before_it_is_well_it_says_how_well_it_is(api, otto, faulty):
    Fault.objects.update(good=3)
    refused = problem(api(otto).post(f"/api/v1/gpus/{faulty}/return"), 409, "not_healthy")
    assert "3 good reports in a row" in refused["detail"]
    assert (refused["good"], refused["needed"]) == (3, 5)
    assert Blocker.objects.exists()


def test_nobody_else_gives_it_back_and_no_token_of_a_team(api, lena, otto, vision, faulty):
    Membership.objects.create(user=otto, team=vision, role="lead")
    for client in (api(lena), api(otto, team=vision)):
        problem(client.post(f"/api/v1/gpus/{faulty}/return"), 403, "forbidden")
    assert Blocker.objects.exists()


def test_a_body_with_fields_is_refused(api, otto, faulty):
    problem(api(otto).post(f"/api/v1/gpus/{faulty}/return", {"why": "x"}), 422, "invalid")
    assert Blocker.objects.exists()
