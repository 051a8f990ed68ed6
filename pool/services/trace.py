"""The id of the request or task at hand. Doors set it, logs and the audit read it. No Django in here."""

from __future__ import annotations

from contextvars import ContextVar

#: Empty outside of a request.
request_id: ContextVar[str] = ContextVar("request_id", default="")
