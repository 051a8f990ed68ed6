"""The agent's way to the portal: JSON by POST, one connection a message.

Plain http.client: a larger library would be a tenth of the agent's memory.
"""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from dataclasses import dataclass, field
from gettext import gettext as _
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from agents.place import Fault

JOIN = "/api/v1/agents/join"
REPORTS = "/api/v1/agents/reports"
LIVE = "/livez"
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


class Trust:
    """The authorities whose certificates count: those of `ca_file` alone, or the system's.

    They are read once, since that takes many milliseconds, and again after a
    certificate was refused: authorities are renewed while an agent runs.
    """

    def __init__(self, ca_file: str | None = None) -> None:
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Raises OSError when the file cannot be read or has no certificate."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._ca_file)
        return self._context

    def forget(self) -> None:
        self._context = None


@dataclass(frozen=True, slots=True)
class Portal:
    """The portal at one address. Its certificate and its name in it are always checked."""

    url: SplitResult
    timeout_s: float = 10.0
    trust: Trust = field(default_factory=Trust)

    def ask(self, path: str, message: object, answer: type[Message], token: str | None = None) -> Message:
        """POST a message and decode the answer. Raises `NoAnswer` or `Refused`; the token is in neither."""
        headers = {"Content-Type": "application/json", "User-Agent": "gpupool-agent"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        response, body = self._exchange("POST", self.url.path + path, msgspec.json.encode(message), headers)
        if response.status not in (200, 201):
            raise Refused(response.status, _detail(body))
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise NoAnswer(f"the answer is not one of a portal: {error}") from error

    def knock(self) -> tuple[int, str | None]:
        """Status and date of the portal's sign of life; no token is sent. Raises `NoAnswer`."""
        response, _ = self._exchange("GET", self.url.path + LIVE, None, {"User-Agent": "gpupool-agent"})
        return response.status, response.getheader("Date")

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            with closing(self._connection()) as connection:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                return response, response.read(ANSWER_LIMIT)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLError):
                self.trust.forget()
            raise NoAnswer(str(error) or type(error).__name__) from error

    def _connection(self) -> http.client.HTTPConnection:
        host = self.url.hostname or ""
        if self.url.scheme == "https":
            context = self.trust.context()
            return http.client.HTTPSConnection(host, self.url.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(host, self.url.port, timeout=self.timeout_s)


def portal(address: str, ca_file: str | None = None) -> Portal:
    """Raises `Fault` for what is not an address of a portal, and for a file without certificates."""
    try:
        url = urlsplit(address.strip().rstrip("/"))
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or url.query or url.fragment or url.username:
        raise Fault(
            _("{address!r} is not an address like https://gpupool.example.org").format(address=address)
        )
    trust = Trust(ca_file)
    if ca_file is not None:
        try:
            trust.context()
        except OSError as error:
            raise Fault(
                _("{path} is no file of certificates: {why}").format(
                    path=ca_file, why=error.strerror or error
                )
            ) from error
    return Portal(url, trust=trust)


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return ""
    return problem.detail or problem.title
