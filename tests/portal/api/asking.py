"""A client of the REST door, the body of an ordinary booking, and what a refusal must look like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.test import Client

from pool.queries import clock

BODY = {
    "team": "vision",
    "pool": "main",
    "title": "train",
    "ask": {"kind": "mig", "profile": "1g.10gb", "count": 2},
    "start": None,
    "duration": "PT2H",
    "class": "interactive",
}
RESERVATIONS = "/api/v1/reservations"


@dataclass(frozen=True)
class Api:
    """Requests of one token; `token` None sends none."""

    token: str | None

    def get(self, path: str, **headers: str) -> Any:
        return Client().get(path, headers=self._headers(headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps({} if body is None else body)
        return Client().post(path, content, "application/json", headers=self._headers(headers))

    def book(self, body: Any = BODY, **headers: str) -> Any:
        return self.post(RESERVATIONS, body, **headers)

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return named | ({"Authorization": f"Bearer {self.token}"} if self.token else {})


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The problem that was answered; its status and code are those expected."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert (body["status"], body["code"]) == (status, code)
    return body


def wrong(response: Any) -> set[tuple[str, str]]:
    """Pointer and code of each wrong field of a 422."""
    return {(error["pointer"], error["code"]) for error in problem(response, 422, "invalid")["errors"]}


def later(**delta: float) -> str:
    """So much from now, as a time in a body."""
    return (clock.now() + timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def tomorrow(body: dict[str, Any] = BODY, **over: Any) -> dict[str, Any]:
    return body | {"start": later(days=1)} | over


def ask(**over: Any) -> dict[str, Any]:
    """An ordinary booking that asks for something else."""
    return BODY | {"ask": BODY["ask"] | over}
