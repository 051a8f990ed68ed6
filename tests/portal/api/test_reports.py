"""The agents' door: a node lets itself in once, then reports as itself and nobody else."""

from __future__ import annotations

import json

import msgspec
import pytest
from django.core.cache import cache
from django.test import Client

from pool.core import wire
from pool.models import Node, NodeToken
from pool.queries import clock
from pool.services import inventory
from portal.api import reports
from tests.cast import SimGpu, SimNode, enrol_node
from tests.portal.api.asking import BODY, problem

JOIN, REPORTS = "/api/v1/agents/join", "/api/v1/agents/reports"


@pytest.fixture(autouse=True)
def _no_tries_of_other_tests():
    cache.clear()


def post(path, message, token=None, **extra):
    body = message if isinstance(message, bytes) else msgspec.json.encode(message)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Client(enforce_csrf_checks=True).post(path, body, "application/json", headers=headers, **extra)


def code_for(pool, name="node-9"):
    return inventory.make_join_code(actor=None, pool=pool, name=name, now=clock.real_now())


def ask(code, **over):
    return wire.JoinAsk(
        **{"code": code, "node": "node-9", "machine_id": "machine-node-9", "agent": "0.1.0"} | over
    )


@pytest.fixture
def joined(main_pool):
    """A node that came in through the door: its token, and its simulation."""
    response = post(JOIN, ask(code_for(main_pool)))
    assert response.status_code == 201
    answer = msgspec.json.decode(response.content, type=wire.JoinAnswer)
    row = Node.objects.get(name="node-9")
    return answer.token, SimNode(row, [SimGpu("GPU-9-0", 0, "H100-80GB")])


# --- Joining ----------------------------------------------------------------------


def test_a_code_becomes_a_token_once(main_pool):
    code = code_for(main_pool)
    first = post(JOIN, ask(code))
    assert first.status_code == 201
    assert json.loads(first.content)["node"] == "node-9"
    again = problem(post(JOIN, ask(code)), 401, "bad_token")
    assert code not in json.dumps(again)
    assert NodeToken.objects.count() == 1


@pytest.mark.parametrize("name", ["*", "node:1", "Node", "-a", "a" * 64, "", "a b"])
def test_a_name_that_would_widen_the_acl_is_refused(main_pool, name):
    response = post(JOIN, ask(code_for(main_pool), node=name))
    assert response.status_code in (401, 422)
    assert not Node.objects.exists()


def test_a_code_for_another_name_is_refused(main_pool):
    problem(post(JOIN, ask(code_for(main_pool, "node-8"))), 401, "bad_token")


def test_wrong_codes_from_one_address_have_to_wait(main_pool):
    for _ in range(reports.TRIES):
        problem(post(JOIN, ask("gpj_wrong"), REMOTE_ADDR="192.0.2.7"), 401, "bad_token")
    refused = post(JOIN, ask(code_for(main_pool)), REMOTE_ADDR="192.0.2.7")
    problem(refused, 429, "throttled")
    assert int(refused["Retry-After"]) > 0
    assert post(JOIN, ask(code_for(main_pool)), REMOTE_ADDR="192.0.2.8").status_code == 201


def test_right_codes_are_not_counted(main_pool):
    for number in range(reports.TRIES + 1):
        name = f"node-{number}"
        assert post(JOIN, ask(code_for(main_pool, name), node=name)).status_code == 201


def test_joining_works_while_redis_is_away(main_pool, settings):
    settings.CACHES = {
        "default": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1", "OPTIONS": {}},
    }
    problem(post(JOIN, ask("gpj_wrong")), 401, "bad_token")


# --- Reporting ---------------------------------------------------------------------


def test_a_report_is_answered_with_what_the_node_shall_do(joined):
    token, node = joined
    response = post(REPORTS, node.report(), token)
    assert response.status_code == 200
    answer = msgspec.json.decode(response.content, type=wire.Answer)
    assert (answer.accepted_seq, answer.commands, answer.manage) == (1, (), ())
    assert Node.objects.get(name="node-9").received_at is not None


@pytest.mark.parametrize("token", [None, "nonsense", "gpn_000000000000_" + "0" * 48, "gpp_1_2"])
def test_a_report_without_a_right_token_is_refused(joined, token):
    _, node = joined
    problem(post(REPORTS, node.report(), token), 401, "bad_token")
    assert Node.objects.get(name="node-9").received_at is None


def test_another_nodes_report_is_refused_whole(joined, main_pool):
    token, _ = joined
    other = enrol_node(main_pool, "node-2")
    before = Node.objects.get(name="node-2").seq
    problem(post(REPORTS, other.report(), token), 403, "wrong_node")
    assert Node.objects.get(name="node-2").seq == before
    assert Node.objects.get(name="node-9").seq == 0


def test_a_report_of_another_machine_is_refused_whole(joined):
    token, node = joined
    problem(post(REPORTS, node.report(machine_id="machine-node-10"), token), 403, "wrong_node")


def test_a_report_without_its_length_is_refused(joined):
    token, node = joined
    problem(post(REPORTS, node.report(), token, CONTENT_LENGTH=""), 411, "length_required")
    chunked = post(REPORTS, node.report(), token, HTTP_TRANSFER_ENCODING="chunked")
    problem(chunked, 411, "length_required")


def test_a_report_that_is_too_large_is_refused(joined):
    token, node = joined
    body = problem(
        post(REPORTS, node.report(), token, CONTENT_LENGTH=str(reports.REPORT_LIMIT + 1)), 413, "too_large"
    )
    assert body["limit"] == reports.REPORT_LIMIT


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"node": 7}', b"[" * 50_000, b"\xff", b"null"])
def test_a_report_that_cannot_be_read_is_refused(joined, body):
    token, _ = joined
    problem(post(REPORTS, body, token, CONTENT_LENGTH=str(len(body))), 400, "malformed")


def test_a_newer_wire_is_told_so_even_if_it_cannot_be_read(joined):
    token, node = joined
    newer = post(REPORTS, node.report(wire=wire.WIRE + 1), token)
    assert problem(newer, 409, "unsupported_wire")["accepted"] == list(wire.ACCEPTED)
    problem(post(REPORTS, b'{"wire": 99, "shape": []}', token), 409, "unsupported_wire")


def test_a_nonsense_value_does_not_lose_its_report(joined):
    token, node = joined
    report = msgspec.to_builtins(node.report())
    report["gpus"][0]["power_w"] = {"min": -5, "mean": "hot", "max": True, "last": 10**40}
    report["gpus"][0]["temperature_c"] = "hot"
    report["gpus"][0]["memory_total_mib"] = -1
    assert post(REPORTS, json.dumps(report).encode(), token).status_code == 200
    assert Node.objects.get(name="node-9").dropped_values > 0


def test_fields_of_tomorrow_are_ignored(joined):
    token, node = joined
    report = msgspec.to_builtins(node.report()) | {"weather": "fine"}
    assert post(REPORTS, json.dumps(report, default=str).encode(), token).status_code == 200


def test_a_users_token_opens_neither_and_a_nodes_token_nothing_else(joined, api, lena):
    token, node = joined
    user = api(lena)
    problem(post(REPORTS, node.report(), user.token), 401, "bad_token")
    for path in ("/api/v1/pools", "/api/v1/reservations"):
        problem(Client().get(path, headers={"Authorization": f"Bearer {token}"}), 401, "bad_token")
    problem(post("/api/v1/reservations", json.dumps(BODY).encode(), token), 401, "bad_token")


@pytest.mark.parametrize("path", [JOIN, REPORTS])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_the_door_knows_only_post(path, method):
    response = Client().generic(method, path)
    problem(response, 405, "method_not_allowed")
    assert response["Allow"] == "POST"


def test_a_report_costs_few_statements(joined, django_assert_max_num_queries):
    token, node = joined
    post(REPORTS, node.report(), token)
    with django_assert_max_num_queries(16):
        post(REPORTS, node.report(), token)
