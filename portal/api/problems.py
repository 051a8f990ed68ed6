"""Refusals as application/problem+json (RFC 9457), and the JSON answers beside them.

Every answer below /api/ comes from here, also those that Django would give as
HTML. Which words and which status: portal/errors.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from rest_framework import exceptions as drf

from pool.core.errors import Code, Refusal
from pool.services.trace import request_id
from portal.errors import DoorCode, Problem, problem_for

log = logging.getLogger(__name__)

_encoder = msgspec.json.Encoder()

#: Members of a problem that numbers of the refusal may not replace.
_OWN = frozenset({"type", "title", "status", "detail", "code", "errors", "request_id", "next_step"})


#: Answers that pipelines get every day; Django would log a warning for each.
ORDINARY = frozenset({404, 409, 412, 422})


class DoorRefusal(Exception):
    """A request is turned away before the domain hears of it."""

    def __init__(self, code: DoorCode, headers: Mapping[str, str] | None = None, **data: Any) -> None:
        super().__init__(code.value)
        self.code = code
        self.headers = headers or {}
        self.data = data


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """`value` as JSON, which no cache keeps unless `headers` say otherwise."""
    named = {"Cache-Control": "no-store", **(headers or {})}
    return HttpResponse(_encoder.encode(value), status=status, headers=named, content_type="application/json")


def as_json(problem: Problem) -> dict[str, Any]:
    """The members of RFC 9457, ours, and the numbers of the refusal."""
    body: dict[str, Any] = {
        "type": f"urn:problem-type:gpupool:{problem.code.replace('_', '-')}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "errors": [{name: _utc(value) for name, value in one.items()} for one in problem.fields],
        "request_id": request_id.get(),
        "next_step": problem.next_step,
    }
    return body | {name: _utc(value) for name, value in problem.data.items() if name not in _OWN}


def _utc(value: Any) -> Any:
    """Instants as REST writes them, with Z."""
    if isinstance(value, str) and value.endswith("+00:00"):
        return value.removesuffix("+00:00") + "Z"
    return value


def refuse(
    code: Code | DoorCode, data: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """The answer to a refused request."""
    problem = problem_for(code, data or {})
    response = HttpResponse(
        _encoder.encode(as_json(problem)), status=problem.status, content_type="application/problem+json"
    )
    response["Cache-Control"] = "no-store"
    if problem.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="gpupool"'
    if code == Code.BUSY:
        response["Retry-After"] = "1"
    for name, value in (headers or {}).items():
        response[name] = value
    if problem.status in ORDINARY:
        response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def refuse_for(error: Exception, request: HttpRequest) -> HttpResponse:
    """What an exception of a view becomes; one that nobody foresaw is logged and told as our fault."""
    match error:
        case Refusal():
            return refuse(error.code, error.data)
        case DoorRefusal():
            return refuse(error.code, error.data, error.headers)
        case Http404() | drf.NotFound():
            return refuse(Code.NOT_FOUND)
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return refuse(DoorCode.UNAUTHENTICATED)
        case drf.MethodNotAllowed():
            return refuse(DoorCode.METHOD_NOT_ALLOWED, {"method": request.method})
        case drf.NotAcceptable():
            return refuse(DoorCode.NOT_ACCEPTABLE)
        case PermissionDenied() | drf.PermissionDenied():
            return refuse(Code.FORBIDDEN)
        case RequestDataTooBig():
            return refuse(DoorCode.TOO_LARGE, {"limit": settings.DATA_UPLOAD_MAX_MEMORY_SIZE})
        case BadRequest() | SuspiciousOperation() | UnreadablePostError() | drf.ParseError():
            return refuse(Code.MALFORMED)
        case OperationalError() | InterfaceError():
            log.warning("the database does not answer", exc_info=error)
            return refuse(DoorCode.NOT_READY, headers={"Retry-After": "5"})
    log.error("a request failed", exc_info=error, extra={"path": request.path, "method": request.method})
    got_request_exception.send(sender=None, request=request)
    return refuse(DoorCode.INTERNAL)


def told(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A plain view whose exceptions become problems."""

    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except Exception as error:
            return refuse_for(error, request)

    return respond


def nowhere(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    """Any address below /api/ that is none."""
    return refuse(Code.NOT_FOUND)
