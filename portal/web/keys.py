"""Keys that are made with a form, so that sending it twice carries it out once."""

from __future__ import annotations

import uuid
from typing import Any

from pool.services import idempotency
from pool.services.idempotency import Claim
from portal.htmx import PageRequest


def new() -> str:
    """For the hidden field `key` of a form."""
    return uuid.uuid4().hex


def claim(request: PageRequest, body: Any) -> Claim | None:
    """What the form's key stands for: this person, this address, this `body`; None where none came."""
    key = request.POST.get("key", "")[:255]
    if not key or not key.isascii() or not key.isprintable():
        return None
    return Claim(f"user:{request.user.pk}", "POST", request.path, key, idempotency.fingerprint(body))
