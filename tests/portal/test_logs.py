"""A line of the log is one JSON object that says in which request, and on whose behalf."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from portal import logs


def line(message: str = "booked %s", *args: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("pool", logging.INFO, "x.py", 1, message, args, more.pop("exc_info", None))
    vars(record).update(more)
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    read: dict[str, Any] = json.loads(text)
    return read


def test_it_has_time_level_logger_and_message() -> None:
    read = line("booked %s", "1g.10gb")
    assert read.pop("time").endswith("+00:00")
    assert read == {"level": "info", "logger": "pool", "message": "booked 1g.10gb"}


def test_it_carries_what_the_caller_adds() -> None:
    assert line("late", node="dgx-01", seconds=3)["node"] == "dgx-01"


def test_a_trace_stays_on_its_line() -> None:
    try:
        raise ValueError("odd\nvalue")
    except ValueError:
        read = line("failed", exc_info=sys.exc_info())
    assert "ValueError: odd\nvalue" in read["trace"]


def test_a_value_that_json_lacks_is_written_as_text() -> None:
    assert line("odd", value={1})["value"] == "{1}"


class Session(dict[str, str]):
    """All that the middleware reads of a session."""


def seen_in(request: HttpRequest) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []

    def respond(_: HttpRequest) -> HttpResponse:
        lines.append(line("inside"))
        return HttpResponse()

    response = logs.RequestId(logs.actor(respond))(request)
    assert response["X-Request-Id"] == lines[0]["request_id"]
    return lines[0]


def test_lines_of_a_request_name_it_and_its_user() -> None:
    request = RequestFactory().get("/", headers={"X-Request-Id": "build-7781"})
    request.session = Session(_auth_user_id="7")  # type: ignore[assignment]
    seen = seen_in(request)
    assert (seen["request_id"], seen["actor"]) == ("build-7781", "user:7")
    assert "request_id" not in line("after")
    assert "actor" not in line("after")


def test_a_request_without_a_user_names_none() -> None:
    request = RequestFactory().get("/")
    request.session = Session()  # type: ignore[assignment]
    assert "actor" not in seen_in(request)
