"""Idempotency keys: the same request twice is carried out once.

Only successes are kept, in the transaction that makes them, so whatever rolls
back leaves no trace and may be tried again with the same key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet

from pool.core.errors import Code, Refusal
from pool.models import IdempotencyKey, Reservation

KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Claim:
    """One request as its sender names it: `principal` is "token:<id>" or "user:<id>"."""

    principal: str
    method: str
    path: str
    key: str
    fingerprint: str

    @property
    def number(self) -> int:
        """A lock's number: 64 bits, signed, of all that makes the key unique."""
        text = "\0".join((self.principal, self.method, self.path, self.key))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, signed=True)


def fingerprint(body: Any) -> str:
    """What tells two bodies (JSON values) apart, whatever the order of their fields."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find(claim: Claim, *, now: datetime) -> str | None:
    """The resource that this request made before, else None; takes no lock.

    For a use case that must think first: a replay is answered before anything
    could be refused. Raises KEY_REUSED when the key came with another body.
    """
    row = _rows(claim).filter(created_at__gt=now - KEPT).first()
    if row is None:
        return None
    if row.fingerprint != claim.fingerprint:
        raise Refusal(Code.KEY_REUSED)
    return row.resource


def claim(wanted: Claim, *, now: datetime) -> str | None:
    """The first step of a transaction: take the key, or name what it made before.

    None: the key is ours until this transaction ends; finish with `keep`.
    Raises IN_PROGRESS while another transaction has it, KEY_REUSED for another body.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [wanted.number])
        (ours,) = cursor.fetchone()
    if not ours:
        raise Refusal(Code.IN_PROGRESS)
    return find(wanted, now=now)


def keep(claimed: Claim, *, resource: object, now: datetime, status: int = 201) -> None:
    """The last step: what the request made, for whoever sends it again within 24 h."""
    _rows(claimed).delete()  # one that has expired and was not purged yet
    IdempotencyKey.objects.create(
        principal=claimed.principal,
        method=claimed.method,
        path=claimed.path,
        key=claimed.key,
        fingerprint=claimed.fingerprint,
        status=status,
        resource=str(resource),
        created_at=now,
    )


def first_result(made: str) -> Reservation:
    """The reservation that a request made or changed, as it is now; it says that it is `replayed`."""
    row = Reservation.objects.get(pk=made)
    row.replayed = True
    return row


@transaction.atomic(durable=True)
def purge(*, now: datetime) -> int:
    """Forget keys older than 24 h; the slow lane calls this. Returns how many."""
    gone, _ = IdempotencyKey.objects.filter(created_at__lte=now - KEPT).delete()
    return gone


def _rows(claim: Claim) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(
        principal=claim.principal, method=claim.method, path=claim.path, key=claim.key
    )
