"""Every address below /api/: who gets in, what each method answers, and always in JSON."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import get_resolver

from portal import urls
from tests.portal.api.asking import BODY, RESERVATIONS, problem

#: Addresses that a node opens with its own code or token.
AGENTS = {"agents/join", "agents/reports"}
NOBODY = "0190a1b2-0000-7000-8000-000000000000"
#: Ends of addresses that only take a POST.
ACTIONS = (
    *("/extend", "/release", "/confirm", "/hold", "/return$", "/adopt$", "offers"),
    *("/approve", "/deny", "/withdraw", "/read", "/room$"),
)


def addresses():
    """Every pattern of the REST door, from the site map itself."""
    root = next(p for p in get_resolver().url_patterns if str(p.pattern) == "api/v1/")
    return [str(pattern.pattern) for pattern in root.url_patterns if str(pattern.pattern)]


def path(pattern, pk=NOBODY):
    filled = pattern.replace("<uuid:pk>", pk).replace("<int:pk>", "7")
    filled = re.sub(r"\(\?P<name>[^)]*\)", "node-1", filled)
    filled = re.sub(r"\(\?P<uuid>[^)]*\)", "GPU-1", filled)
    return "/api/v1/" + filled.strip("^$")


def is_action(pattern):
    return pattern.endswith(ACTIONS)


USERS = sorted(set(addresses()) - AGENTS)


def test_the_map_is_what_this_walks():
    assert len(addresses()) == 36
    assert {p for p in addresses() if p.startswith("agents/")} == AGENTS


def test_nobody_gets_in_without_a_token(db):
    for pattern in USERS:
        for method in ("GET", "POST"):
            response = Client().generic(method, path(pattern))
            assert response["WWW-Authenticate"].startswith("Bearer")
            problem(response, 401, "unauthenticated")


@pytest.mark.parametrize(
    "header",
    ["Bearer gpp_000000000000_" + "0" * 48, "Bearer x", "bearer", "Bearer gpp_\x80_1", "Bearer a\x00b"],
)
def test_a_wrong_token_is_refused_even_beside_a_session(db, lena, header):
    client = Client()
    client.force_login(lena)
    assert client.get("/api/v1/pools").status_code == 200
    response = client.get("/api/v1/pools", headers={"Authorization": header})
    problem(response, 401, "bad_token")


def test_a_stranger_gets_of_a_reservation_what_nobodys_id_gets(api, lena, sam, node):
    made = api(lena).book().json()["id"]
    stranger = api(sam)
    patterns = [pattern for pattern in USERS if "<uuid:pk>" in pattern]
    assert len(patterns) == 8
    for pattern in patterns:
        answers = []
        for pk in (made, NOBODY):
            address = path(pattern, pk)
            body = {"duration": "PT1H"} if address.endswith("/extend") else {}
            response = stranger.post(address, body) if is_action(pattern) else stranger.get(address)
            answers.append(problem(response, 404, "not_found") | {"request_id": ""})
        assert answers[0] == answers[1]


def test_other_methods_are_named_as_impossible(api, lena):
    headers = {"Authorization": f"Bearer {api(lena).token}"}
    for pattern in USERS:
        for method in ("PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "GET" if is_action(pattern) else "BREW"):
            response = Client().generic(method, path(pattern), headers=headers)
            assert response["Allow"]
            problem(response, 405, "method_not_allowed")


def test_an_unknown_parameter_is_named(api, lena):
    client = api(lena)
    for pattern in USERS:
        ask = client.post if is_action(pattern) else client.get
        refused = problem(ask(path(pattern) + "?colour=red"), 400, "unknown_parameter")
        assert refused["parameter"] == "colour"


# --- Sessions -----------------------------------------------------------------------


def test_a_browser_reads_with_its_session_and_writes_with_its_csrf_token(lena, node):
    client = Client(enforce_csrf_checks=True)
    client.force_login(lena)
    assert client.get(RESERVATIONS).status_code == 200
    problem(client.post(RESERVATIONS, BODY, "application/json"), 403, "csrf")
    client.cookies["csrftoken"] = "a" * 32
    response = client.post(RESERVATIONS, BODY, "application/json", headers={"X-CSRFToken": "a" * 32})
    assert response.status_code == 201


def test_a_token_of_somebody_who_left_is_refused(api, lena):
    token = api(lena)
    assert token.get("/api/v1/pools").status_code == 200
    lena.is_active = False
    lena.save()
    problem(token.get("/api/v1/pools"), 401, "bad_token")


# --- What Django refuses by itself -----------------------------------------------------


def test_a_foreign_host_gets_a_problem_too(db):
    response = Client().get("/api/v1/pools", headers={"Host": "evil.example"})
    problem(response, 400, "malformed")


def test_the_request_id_comes_back_and_is_in_the_problem(db):
    response = Client().get("/api/v1/pools", headers={"X-Request-Id": "build-17-step-4"})
    assert response["X-Request-Id"] == "build-17-step-4"
    assert problem(response, 401, "unauthenticated")["request_id"] == "build-17-step-4"


def test_titles_follow_the_language_and_codes_do_not(db):
    response = Client().get("/api/v1/pools", headers={"Accept-Language": "zh-hans"})
    assert response["Content-Language"] == "zh-hans"
    problem(response, 401, "unauthenticated")


def test_answers_are_not_kept_by_caches(api, lena, node):
    assert Client().get("/api/v1/pools")["Cache-Control"] == "no-store"
    client = api(lena)
    assert client.get("/api/v1/pools")["Cache-Control"] == "no-store"
    assert client.get(client.book()["Location"])["Cache-Control"] == "private, no-cache"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (urls.handler400, 400, "malformed"),
        (urls.handler403, 403, "forbidden"),
        (urls.handler404, 404, "not_found"),
        (urls.handler500, 500, "internal"),
    ],
)
def test_what_django_refuses_is_a_problem_below_api_and_a_page_elsewhere(rf, fault, status, code):
    problem(fault(rf.get("/api/v1/pools"), Exception()), status, code)
    page = fault(rf.get("/nodes/"), *(() if status == 500 else (Exception(),)))
    assert page.status_code == status
    assert page["Content-Type"].startswith("text/html")
