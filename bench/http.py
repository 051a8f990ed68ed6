"""A small HTTP/1.1 client for load: one kept-alive connection a client, JSON in and out, times measured.

Lean on purpose: it shares two cores with the server that it measures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any
    seconds: float


class Client:
    """One connection; requests on it follow one another."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 80
        self.head = (
            f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nAccept: application/json\r\n"
        )
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """Send one request and read its whole answer; a connection that was closed is opened anew once."""
        content = b"" if body is None else msgspec.json.encode(body)
        request = f"{method} {path} HTTP/1.1\r\n{self.head}Content-Length: {len(content)}\r\n\r\n"
        begun = time.perf_counter()
        fresh = self.writer is None
        try:
            status, answer = await self._exchange(request.encode() + content)
        except (ConnectionError, asyncio.IncompleteReadError):
            if fresh:
                raise
            await self.close()
            status, answer = await self._exchange(request.encode() + content)
        seconds = time.perf_counter() - begun
        return Reply(status, msgspec.json.decode(answer) if answer else None, seconds)

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines[1:] if line)
        }
        answer = await self.reader.readexactly(int(headers.get(b"content-length", b"0")))
        if headers.get(b"connection", b"").lower() == b"close":
            await self.close()
        return int(lines[0].split()[1]), answer
