"""The web server's door: bodies are read whole and within limits before Django's threads see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from portal import asgi

Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")


@csrf_exempt
def echo(request: HttpRequest) -> HttpResponse:
    """What Django sees of a request."""
    seen = {key: value for key, value in request.META.items() if key.startswith("HTTP_")}
    return HttpResponse(json.dumps({"body": request.body.decode(), "seen": seen}))


urlpatterns = [path("echo", echo), path("api/echo", echo)]


@pytest.fixture(autouse=True)
def _only_echo() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]):
        yield


@pytest.fixture
def application() -> Iterator[asgi.Application]:
    application = asgi.Application(threads=2)
    yield application
    application.wsgi.executor.shutdown()


def run(talking: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: a browser test may have left its event loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, talking).result()


def scope(where: str, headers: Headers, method: str = "POST") -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": where,
        "query_string": b"",
        "headers": headers,
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
    }


async def talk(
    application: asgi.Application, asked: dict[str, Any], messages: list[dict[str, Any]]
) -> tuple[int, dict[str, str], str]:
    """Send the messages, then nothing more; the answer's status, headers and text."""
    sent: list[MutableMapping[str, Any]] = []
    waiting = [*messages]

    async def receive() -> MutableMapping[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await application(asked, receive, send)
    if not sent:
        return 0, {}, ""
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(part["body"] for part in sent[1:]).decode()


def ask(
    application: asgi.Application, where: str, headers: Headers, *parts: bytes, method: str = "POST"
) -> tuple[int, dict[str, str], str]:
    last = len(parts) - 1
    messages = [{"type": "http.request", "body": p, "more_body": i < last} for i, p in enumerate(parts)]
    return run(talk(application, scope(where, headers, method), messages))


def test_it_hands_a_body_in_parts_to_django_as_one(application: asgi.Application) -> None:
    status, _, text = ask(application, "/echo", [(b"content-length", b"6")], b"abc", b"", b"def")
    assert status == 200
    assert json.loads(text)["body"] == "abcdef"


@pytest.mark.parametrize("where", ["/api/echo", "/echo"])
def test_it_refuses_a_body_without_length(where: str, application: asgi.Application) -> None:
    """WSGI would see it as empty."""
    status, headers, text = ask(application, where, [(b"transfer-encoding", b"chunked")], b"abc")
    assert status == 411
    assert headers["connection"] == "close"
    if where.startswith("/api/"):
        assert headers["content-type"] == "application/problem+json"
        assert json.loads(text)["code"] == "length_required"
    else:
        assert headers["content-type"].startswith("text/plain")


@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10)
def test_it_refuses_a_body_over_the_limit_without_reading_it(application: asgi.Application) -> None:
    status, _headers, text = ask(application, "/api/echo", [(b"content-length", b"11")])
    assert status == 413
    said = json.loads(text)
    assert (said["code"], said["bytes"], said["limit"]) == ("too_large", 11, 10)
    assert said["detail"] == "The body has 11 bytes, the limit is 10."
    status, _headers, text = ask(application, "/echo", [(b"content-length", b"9" * 5000)])
    assert status == 413
    assert "the limit is 10" in text
    status, _, _ = ask(application, "/echo", [(b"content-length", b"10")], b"0123456789")
    assert status == 200


def test_a_header_with_an_underscore_does_not_pass_for_a_proxys(application: asgi.Application) -> None:
    headers = [(b"x_forwarded_proto", b"https"), (b"x-other", b"1")]
    _, _, text = ask(application, "/echo", headers, b"", method="GET")
    seen = json.loads(text)["seen"]
    assert "HTTP_X_FORWARDED_PROTO" not in seen
    assert seen["HTTP_X_OTHER"] == "1"


def test_nobody_is_answered_who_left_before_the_body_was_whole(application: asgi.Application) -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"abc", "more_body": True},
        {"type": "http.disconnect"},
    ]
    asked = scope("/echo", [(b"content-length", b"6")])
    assert run(talk(application, asked, messages)) == (0, {}, "")


def test_slow_senders_take_no_thread(application: asgi.Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are threads; somebody with a whole request is answered all the same."""
    monkeypatch.setattr(asgi, "BODY_SECONDS", 60.0)

    async def both() -> int:
        asked = scope("/echo", [(b"content-length", b"6")])
        start: list[dict[str, Any]] = [{"type": "http.request", "body": b"a", "more_body": True}]
        slow = [asyncio.ensure_future(talk(application, asked, start)) for _ in range(8)]
        whole: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]
        async with asyncio.timeout(20):
            status, _, _ = await talk(application, scope("/echo", [], "GET"), whole)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return status

    assert run(both()) == 200


def test_it_is_alive_while_every_thread_waits(
    application: asgi.Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(application, "wsgi", stuck)
        status, _, text = ask(application, "/livez", [], b"", method="GET")
    assert (status, json.loads(text)) == (200, {"status": "ok"})


def test_a_sender_that_never_ends_is_given_up(
    application: asgi.Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.05)
    start: list[dict[str, Any]] = [{"type": "http.request", "body": b"a", "more_body": True}]
    asked = scope("/echo", [(b"content-length", b"6")])
    assert run(talk(application, asked, start))[0] == 0


def test_it_answers_lifespan_and_ends_its_threads(application: asgi.Application) -> None:
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "lifespan"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])

    run(application({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(RuntimeError):
        application.wsgi.executor.submit(print)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("build-7781.4", True), ("short", False), ("x" * 65, False), ("new\tline-here", False), ("", False)],
)
def test_a_proper_request_id_is_kept_and_an_odd_one_replaced(
    given: str, kept: bool, application: asgi.Application
) -> None:
    headers = [(b"x-request-id", given.encode())] if given else []
    _, answered, _ = ask(application, "/echo", headers, b"", method="GET")
    assert (answered["x-request-id"] == given) == kept
    assert len(answered["x-request-id"]) >= 8
