"""Secrets that the portal hands out once: how they are made, taken apart, hashed and compared."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from django.conf import settings

#: Of people and service accounts; of nodes; one-time codes with which a node joins.
USER, NODE, JOIN = "gpp", "gpn", "gpj"

_SHAPE = re.compile(r"(gpp|gpn)_([0-9a-f]{12})_([0-9a-f]{48})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parts:
    """`<kind>_<public_id>_<secret>`; the public id finds the row, the secret proves the right."""

    kind: str
    public_id: str
    secret: str

    def __str__(self) -> str:
        return f"{self.kind}_{self.public_id}_{self.secret}"


def make(kind: str) -> Parts:
    """A new token with 192 random bits."""
    return Parts(kind, secrets.token_hex(6), secrets.token_hex(24))


def make_code() -> str:
    """A new one-time join code."""
    return f"{JOIN}_{secrets.token_hex(20)}"


def make_secret() -> str:
    """A secret that needs no encoding in a URL."""
    return secrets.token_hex(24)


def parse(raw: str, kind: str) -> Parts | None:
    """The parts of a token of that kind; None for anything else."""
    found = _SHAPE.fullmatch(raw)
    return Parts(*found.groups()) if found and found[1] == kind else None


def peppered(secret: str) -> str:
    """The hash of a user's secret: HMAC-SHA256 under the pepper that is not in the database."""
    return hmac.new(settings.TOKEN_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()


def plain(secret: str) -> str:
    """The hash of a machine's secret: it is random enough for SHA-256 alone."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two hashes in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
