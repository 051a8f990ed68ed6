"""Logs: one JSON object a line, with the request's id and who acted.

`RequestId` takes the id from the caller or makes one, and sends it back.
Nothing here decides what is worth a line.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse

from pool.services.trace import request_id

#: Who acts, as a short stable name ("user:7", "node:dgx-01"); empty if nobody is known.
actor_name: ContextVar[str] = ContextVar("actor_name", default="")

_PROPER = re.compile(r"^[A-Za-z0-9._-]{8,64}$")
_NATIVE = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "request",
    "server_time",
    "color_message",
}

Respond = Callable[[HttpRequest], HttpResponse]


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; request and actor if known; whatever `extra` brought; the trace."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in (("request_id", request_id.get()), ("actor", actor_name.get())):
            if value:
                line[key] = value
        line |= {key: value for key, value in vars(record).items() if key not in _NATIVE}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def RequestId(get_response: Respond) -> Respond:
    """Give every request an id: the caller's X-Request-Id if it is a proper one, else a new one."""

    def respond(request: HttpRequest) -> HttpResponse:
        asked = request.headers.get("X-Request-Id", "")
        current = asked if _PROPER.match(asked) else uuid.uuid4().hex
        mark = request_id.set(current)
        try:
            response = get_response(request)
        finally:
            request_id.reset(mark)
        response["X-Request-Id"] = current
        return response

    return respond


def actor(get_response: Respond) -> Respond:
    """Name the signed-in user in the logs; token doors call `acts` once they know."""

    def respond(request: HttpRequest) -> HttpResponse:
        key = request.session.get("_auth_user_id")
        mark = actor_name.set(f"user:{key}" if key else "")
        try:
            return get_response(request)
        finally:
            actor_name.reset(mark)

    return respond


def acts(name: str) -> None:
    """Say who acts for the rest of this request."""
    actor_name.set(name)
