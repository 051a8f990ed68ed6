"""The one web server's door: reads each request whole, then hands it to Django's WSGI in a pool of threads.

A thread is never taken by a slow sender, because the body is read in the event
loop, within limits of size and time. Lifespan is answered here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# Connections are kept between requests, one a thread; the settings read it, so before they are imported.
os.environ.setdefault("GPUPOOL_DB_POOL", "16")

from a2wsgi import WSGIMiddleware
from django.conf import settings
from django.db import connection
from django.http import HttpResponse

from portal.wsgi import application as wsgi

# After the WSGI application has set Django up.
from portal.api.problems import answer, refuse  # isort: skip
from portal.errors import DoorCode  # isort: skip

#: As many as there are connections.
THREADS = 16
#: Seconds that a sender may take for its body.
BODY_SECONDS = 30.0

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _Refused(Exception):
    """The request is answered here, without Django."""

    def __init__(self, code: DoorCode, status: int, words: str, **data: int) -> None:
        super().__init__(words)
        self.code, self.status, self.words, self.data = code, status, words, data


class _Gone(Exception):
    """The sender has left; there is nobody to answer."""


class Application:
    """ASGI outside, WSGI inside."""

    def __init__(self, threads: int = THREADS) -> None:
        self.wsgi = WSGIMiddleware(wsgi, workers=threads)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/livez" and scope["method"] in ("GET", "HEAD"):
            # Without a thread: while the database is away all of them may be waiting for it.
            await _answer(answer({"status": "ok"}), send)
            return
        # WSGI writes "_" and "-" alike, so an underscore would pass for a header that only a proxy may set.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if b"_" not in name]
        try:
            body = await _whole_body(scope, receive)
        except _Refused as refusal:
            await _answer(_refusal(scope, refusal), send)
        except _Gone:
            return
        else:
            await self.wsgi(scope, _replay(body), send)  # type: ignore[arg-type]

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.wsgi.executor.shutdown(wait=True)
        if connection.settings_dict["OPTIONS"].get("pool"):
            connection.close_pool()  # type: ignore[attr-defined]
        await send({"type": "lifespan.shutdown.complete"})


async def _whole_body(scope: Scope, receive: Receive) -> bytes:
    """The body, if its length was declared and is within the limit."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        raise _Refused(DoorCode.LENGTH_REQUIRED, 411, "Send a Content-Length instead of Transfer-Encoding.")
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    assert limit is not None
    declared = headers.get(b"content-length", b"0")
    size = int(declared[:18]) if declared.isdigit() else 0
    if size > limit:
        words = f"This has {size} bytes, the limit is {limit}."
        raise _Refused(DoorCode.TOO_LARGE, 413, words, bytes=size, limit=limit)
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(BODY_SECONDS):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        raise _Gone from None
    return b"".join(parts)


def _replay(body: bytes) -> Receive:
    """A `receive` that gives the body that was read already."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _refusal(scope: Scope, refusal: _Refused) -> HttpResponse:
    if scope["path"].startswith("/api/"):
        return refuse(refusal.code, refusal.data)
    return HttpResponse(refusal.words + "\n", status=refusal.status, content_type="text/plain; charset=utf-8")


async def _answer(response: HttpResponse, send: Send) -> None:
    """Write an answer and close: what the sender still has in store is not read."""
    headers = [(name.lower().encode(), value.encode()) for name, value in response.items()]
    headers += [
        (b"content-length", str(len(response.content)).encode()),
        (b"connection", b"close"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})


application = Application()
