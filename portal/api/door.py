"""What every REST view shares: who asks, JSON only, problems as answers, parameters and bodies read strictly.

Sizes and nesting are bounded here; what a field means is decided further in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import msgspec
from django.http import HttpRequest, HttpResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from pool.core.errors import Code, FieldError, Invalid, Refusal
from portal.api.auth import BrowserSession, TokenAuthentication
from portal.api.problems import DoorRefusal, refuse_for
from portal.errors import DoorCode

#: No legitimate body of the REST door comes near this; reports have their own limit.
BODY_LIMIT = 64 * 1024
#: Deeper than any ask; beyond it a body is refused as unreadable.
DEPTH_LIMIT = 16

_ACCEPTED = frozenset({"*/*", "application/*", "application/json", "application/problem+json"})


class OnlyJson(BaseContentNegotiation):
    """One format in, one out; an Accept header that excludes it gets 406."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        wanted = {part.split(";")[0].strip().lower() for part in request.headers.get("Accept", "").split(",")}
        if wanted - {""} and not wanted & _ACCEPTED:
            raise DoorRefusal(DoorCode.NOT_ACCEPTABLE)
        return renderers[0], "application/json"


class Door(APIView):
    """A resource. Methods answer with `problems.answer`; whatever they raise becomes a problem."""

    authentication_classes = (TokenAuthentication, BrowserSession)
    permission_classes = (IsAuthenticated,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser,)
    content_negotiation_class = OnlyJson
    http_method_names = ["get", "head", "post"]
    #: Query parameters that this resource knows; any other is refused.
    parameters: ClassVar[frozenset[str]] = frozenset()
    #: Those of them that may be given more than once.
    repeatable: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method in self.allowed_methods:
            refuse_unknown(request, self.parameters if request.method in ("GET", "HEAD") else ())
            refuse_repeated(request, self.repeatable)

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        """As a problem; DRF adds the Allow header to whatever is returned."""
        if isinstance(exc, DoorRefusal) or not hasattr(exc, "status_code") or exc.status_code != 405:
            return refuse_for(exc, self.request)
        return refuse_for(
            DoorRefusal(
                DoorCode.METHOD_NOT_ALLOWED, method=self.request.method, allow=", ".join(self.allowed_methods)
            ),
            self.request,
        )


def refuse_unknown(request: Request, known: Collection[str]) -> None:
    """A parameter that is not looked at would silently mean something else than its sender thinks."""
    for name in request.query_params:
        if name not in known:
            raise DoorRefusal(DoorCode.UNKNOWN_PARAMETER, parameter=name[:64], known=sorted(known))


def refuse_repeated(request: Request, repeatable: Collection[str]) -> None:
    """One of two values would be taken, and nobody could say which was meant."""
    for name, values in request.query_params.lists():
        if len(values) > 1 and name not in repeatable:
            raise DoorRefusal(DoorCode.REPEATED_PARAMETER, parameter=name, times=len(values))


def body_length(request: HttpRequest, limit: int, default: int | None = None) -> int:
    """The declared length of the body: 413 above `limit`, 411 if there is none and no `default`."""
    declared = request.META.get("CONTENT_LENGTH") or ""
    chunked = bool(request.META.get("HTTP_TRANSFER_ENCODING"))
    if not declared and default is not None and not chunked:
        return default
    if not declared.isascii() or not declared.isdigit() or chunked:
        raise DoorRefusal(DoorCode.LENGTH_REQUIRED)
    if int(declared[:12]) > limit:
        raise DoorRefusal(DoorCode.TOO_LARGE, bytes=int(declared[:12]), limit=limit)
    return int(declared)


def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; an empty one as {}, for actions that need no fields.

    400 malformed, 411, 413, 415; 422 for characters that no text column can hold.
    """
    if not body_length(request._request, BODY_LIMIT, default=0):
        return {}
    content_type = request.META.get("CONTENT_TYPE", "").split(";")[0].strip().lower()
    if content_type != "application/json":
        data = {"content_type": content_type[:80]} if content_type else {}
        raise DoorRefusal(DoorCode.UNSUPPORTED_MEDIA_TYPE, **data)
    try:
        body = msgspec.json.decode(request._request.body)
    except RecursionError:
        raise Refusal(Code.MALFORMED, why="it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise Refusal(Code.MALFORMED, why=str(error)) from None
    if not isinstance(body, dict):
        raise Refusal(Code.MALFORMED, why="it is not a JSON object")
    bad = _unstorable(body, "", 0)
    if bad:
        raise Invalid(bad)
    return body


def _unstorable(value: object, pointer: str, depth: int) -> list[FieldError]:
    """Where text holds NUL or a lone surrogate, which PostgreSQL cannot store."""
    if depth > DEPTH_LIMIT:
        raise Refusal(Code.MALFORMED, why="it is nested too deeply")
    if isinstance(value, str):
        return [] if _storable(value) else [FieldError(pointer, "bad_characters", {})]
    if isinstance(value, list):
        return [e for i, v in enumerate(value) for e in _unstorable(v, f"{pointer}/{i}", depth + 1)]
    if isinstance(value, Mapping):
        errors: list[FieldError] = []
        for name, inner in value.items():
            if not _storable(name):
                errors.append(FieldError(pointer or "/", "bad_characters", {}))
            errors += _unstorable(inner, f"{pointer}/{_escaped(name)}", depth + 1)
        return errors
    return []


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def _escaped(name: str) -> str:
    """A name within a JSON pointer (RFC 6901)."""
    return name.encode("utf-8", "replace").decode().replace("~", "~0").replace("/", "~1")[:64]
