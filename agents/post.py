"""The agent's way to the portal: JSON by POST, one connection a message.

Plain http.client: a larger library would be a tenth of the agent's memory.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from agents.place import Fault

JOIN = "/api/v1/agents/join"
REPORTS = "/api/v1/agents/reports"
ANSWER_LIMIT = 4 * 1024 * 1024

Message = TypeVar("Message")


class NoAnswer(Exception):
    """The portal could not be reached, or what answered was not the portal."""


class Refused(Exception):
    """The portal said no. `status` is HTTP's, `detail` the portal's words."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status} {detail}".strip())
        self.status = status
        self.detail = detail


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Portal:
    """The portal at one address. Certificates are checked; SSL_CERT_FILE names a private authority."""

    url: SplitResult
    timeout_s: float = 10.0

    def ask(self, path: str, message: object, answer: type[Message], token: str | None = None) -> Message:
        """POST a message and decode the answer. Raises `NoAnswer` or `Refused`; the token is in neither."""
        headers = {"Content-Type": "application/json", "User-Agent": "gpupool-agent"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        status, body = self._exchange(self.url.path + path, msgspec.json.encode(message), headers)
        if status not in (200, 201):
            raise Refused(status, _detail(body))
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise NoAnswer(f"the answer is not one of a portal: {error}") from error

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_LIMIT)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = self.url.hostname or ""
        if self.url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, self.url.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(host, self.url.port, timeout=self.timeout_s)


def portal(address: str) -> Portal:
    """Raises `Fault` for what is not an address of a portal."""
    try:
        url = urlsplit(address.strip().rstrip("/"))
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or url.query or url.fragment or url.username:
        raise Fault(f"{address!r} is not an address like https://gpupool.example.org")
    return Portal(url)


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return ""
    return problem.detail or problem.title
