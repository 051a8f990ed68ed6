"""The agents' door: joining, and reports with the node's commands in the answer.

Plain views without DRF: 1,250 nodes knock every 15 seconds. A node token opens
only this, a user's token never does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.queries import clock
from pool.services import inventory, telemetry, tokens
from portal.api.auth import bearer
from portal.api.door import body_length
from portal.api.problems import DoorRefusal, answer, told
from portal.errors import DoorCode
from portal.logs import acts

log = logging.getLogger(__name__)

#: A node of 8 GPUs with 7 busy slices each sends some 60 KiB.
REPORT_LIMIT = 2 * 1024 * 1024
JOIN_LIMIT = 16 * 1024

#: Wrong codes that one address may send within a window before it has to wait.
TRIES = 10
WINDOW_S = 60

Message = TypeVar("Message", wire.Report, wire.JoinAsk)

_report = msgspec.json.Decoder(wire.Report)
_join = msgspec.json.Decoder(wire.JoinAsk)


class _Wire(msgspec.Struct):
    wire: int


_wire = msgspec.json.Decoder(_Wire)


def _door(view: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """POST only, JSON problems, no CSRF: no browser comes here."""

    def respond(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            raise DoorRefusal(
                DoorCode.METHOD_NOT_ALLOWED, {"Allow": "POST"}, method=request.method, allow="POST"
            )
        return view(request)

    return csrf_exempt(told(respond))


@_door
def report(request: HttpRequest) -> HttpResponse:
    """Take a node's report; the answer carries its open commands.

    401 bad token, 403 another node's report, 409 a wire that is not spoken,
    411, 413, 400 undecodable. Whatever is refused is refused whole.
    """
    node = tokens.authenticate_node(bearer(request) or "")
    if node is None:
        raise Refusal(Code.BAD_TOKEN)
    acts(f"node:{node.name}")
    body_length(request, REPORT_LIMIT)
    message = _decoded(_report, request.body)
    if message.node != node.name:
        raise Refusal(Code.WRONG_NODE)
    return answer(telemetry.record(node=node, report=message, received=clock.real_now()))


@_door
def join(request: HttpRequest) -> HttpResponse:
    """Let a node in by its one-time code, in exchange for a token of its own."""
    body_length(request, JOIN_LIMIT)
    gate = f"join:{request.META.get('REMOTE_ADDR', '')}"
    _refuse_after_many(gate)
    ask = _decoded(_join, request.body)
    try:
        return answer(inventory.enrol(ask=ask, now=clock.real_now()), status=201)
    except Refusal as refusal:
        if refusal.code in (Code.BAD_TOKEN, Code.NOT_FOUND, Code.FORBIDDEN):
            _count(gate)
        raise


def _decoded(decoder: msgspec.json.Decoder[Message], body: bytes) -> Message:
    """The message; one of a newer version that cannot be read is told so, rather than called malformed."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        spoken = _spoken(body)
        if spoken is not None and spoken > max(wire.ACCEPTED):
            refused = Refusal(Code.UNSUPPORTED_WIRE, wire=spoken, accepted=list(wire.ACCEPTED))
            raise refused from None
        raise Refusal(Code.MALFORMED, why=str(error)) from None


def _spoken(body: bytes) -> int | None:
    try:
        return _wire.decode(body).wire
    except (msgspec.DecodeError, RecursionError):
        return None


def _refuse_after_many(gate: str) -> None:
    """Codes are too long to guess, so a Redis that is away leaves the door open."""
    try:
        tries = cache.get(gate, 0)
    except RedisError:
        return
    if tries >= TRIES:
        raise DoorRefusal(DoorCode.THROTTLED, {"Retry-After": str(WINDOW_S)}, wait_s=WINDOW_S)


def _count(gate: str) -> None:
    try:
        if not cache.add(gate, 1, WINDOW_S):
            cache.incr(gate)
    except (RedisError, ValueError):  # ValueError: the window ended between the two
        log.warning("a wrong join code was not counted", extra={"gate": gate})
