"""What every REST view shares: strict bodies and parameters, JSON only, problems for whatever goes wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from django.db import OperationalError
from django.http import Http404
from django.test import RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from pool.core.errors import Code, Refusal
from portal.api.door import BODY_LIMIT, Door, json_object
from portal.api.problems import answer


class Echo(Door):
    """Answers with the body it was given, or raises what it is told to."""

    authentication_classes = []
    permission_classes = []
    parameters = frozenset({"limit"})
    raises: Exception | None = None

    def get(self, request):
        if self.raises:
            raise self.raises
        return answer({"ok": True})

    def post(self, request):
        return answer(json_object(request))


def told(response):
    assert response["Content-Type"] == "application/problem+json"
    body = json.loads(response.content)
    assert body["status"] == response.status_code
    assert {"type", "title", "detail", "code", "errors", "request_id", "next_step"} <= body.keys()
    return body


def get(query="", raises=None, **headers):
    view = Echo.as_view(raises=raises)
    return view(RequestFactory().get(f"/api/v1/echo{query}", **headers))


def post(body, content_type="application/json", **extra):
    return Echo.as_view()(RequestFactory().generic("POST", "/api/v1/echo", body, content_type, **extra))


def test_it_gives_back_an_object():
    assert json.loads(post(b'{"a": [1, "\xc3\xa9", null]}').content) == {"a": [1, "é", None]}


def test_it_takes_an_empty_body_for_an_action_without_fields():
    assert json.loads(post(b"", CONTENT_LENGTH="0").content) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"a"',
        b"null",
        b"1",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00 "}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 20_000,
        b'{"a":' * 5_000,
        b'{"a":' * 20 + b"1" + b"}" * 20,
        b'{"a": 1} {"b": 2}',
    ],
)
def test_it_refuses_what_is_no_json_object(body):
    response = post(body)
    assert response.status_code == 400
    assert told(response)["code"] == "malformed"


@given(st.binary(max_size=200))
@example(b'{"\\ud83d\\ude00": "\\ud83d"}')
def test_it_never_breaks_on_bytes(body):
    assert post(body).status_code in (200, 400, 422)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"title": "a\0b"}, "/title"), ({"ask": {"models": ["x", "\0"]}}, "/ask/models/1"), ({"a\0": 1}, "/")],
)
def test_it_names_the_field_that_no_text_column_can_hold(body, pointer):
    response = post(json.dumps(body))
    assert response.status_code == 422
    errors = told(response)["errors"]
    assert (errors[0]["pointer"], errors[0]["code"]) == (pointer, "bad_characters")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_it_reads_nothing_but_json(content_type):
    response = post(b"{}", content_type)
    assert response.status_code == 415
    assert told(response)["code"] == "unsupported_media_type"


def test_it_takes_json_with_a_charset():
    assert post(b"{}", "application/json; charset=utf-8").status_code == 200


def test_it_takes_no_body_as_an_empty_one_but_asks_for_the_length_of_one_that_comes_in_chunks():
    assert post(b"", CONTENT_LENGTH="").status_code == 200
    body = told(post(b"{}", CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked"))
    assert (body["status"], body["code"]) == (411, "length_required")


def test_it_refuses_a_body_over_the_limit_before_reading_it():
    body = told(post(b"{}", CONTENT_LENGTH=str(BODY_LIMIT + 1)))
    assert (body["status"], body["limit"]) == (413, BODY_LIMIT)


def test_it_names_a_parameter_that_it_does_not_know():
    body = told(get("?colour=red"))
    assert (body["status"], body["code"], body["parameter"]) == (400, "unknown_parameter", "colour")
    assert body["known"] == ["limit"]
    assert get("?limit=1").status_code == 200


def test_it_names_a_parameter_that_is_given_twice():
    body = told(get("?limit=2&limit=3"))
    assert (body["status"], body["code"], body["parameter"]) == (400, "repeated_parameter", "limit")
    assert body["detail"] == "limit is given 2 times; once is possible."


def test_it_knows_no_parameters_when_something_is_sent():
    view = Echo.as_view()
    response = view(RequestFactory().post("/api/v1/echo?limit=1", b"{}", "application/json"))
    assert told(response)["code"] == "unknown_parameter"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html, application/*;q=0.8", ""])
def test_it_speaks_json_to_whoever_takes_it(accept):
    assert get(HTTP_ACCEPT=accept)["Content-Type"] == "application/json"


def test_it_says_so_when_json_is_not_wanted():
    assert told(get(HTTP_ACCEPT="text/html"))["status"] == 406


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_it_names_the_methods_that_are_possible(method):
    response = Echo.as_view()(RequestFactory().generic(method, "/api/v1/echo"))
    assert told(response)["code"] == "method_not_allowed"
    assert {"GET", "POST"} <= set(response["Allow"].replace(" ", "").split(","))


def test_it_asks_who_is_there_when_nobody_says():
    class Closed(Echo):
        authentication_classes = Door.authentication_classes
        permission_classes = Door.permission_classes

    request = RequestFactory().get("/api/v1/echo")
    request.user = SimpleNamespace(is_active=False)
    response = Closed.as_view()(request)
    assert told(response)["code"] == "unauthenticated"
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Refusal(Code.NO_CAPACITY, asked=2, free=1), 409, "no_capacity"),
        (Http404(), 404, "not_found"),
        (OperationalError(), 503, "not_ready"),
    ],
)
def test_it_turns_what_a_view_raises_into_a_problem(error, status, code):
    body = told(get(raises=error))
    assert (body["status"], body["code"]) == (status, code)
    assert body.get("asked") == error.data["asked"] if isinstance(error, Refusal) else True


def test_it_hides_what_broke_and_logs_it(caplog):
    response = get(raises=ZeroDivisionError("secret detail"))
    assert response.status_code == 500
    assert told(response)["code"] == "internal"
    assert b"secret" not in response.content
    assert "secret detail" in caplog.text
