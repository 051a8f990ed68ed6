"""A pool's policy: what agents may do at an end, how many shares a GPU takes, when a faulty one comes back.

What each means on a node: core.wire.Policy. A change reaches the agents with
the answers to their next reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pool.core.errors import Code, FieldError, Invalid, Refusal
from pool.core.roles import Action
from pool.models import Allocation, Gpu, Pool, User
from pool.queries import access
from pool.services import commands, events, locks
from pool.services.inventory import NAMED

#: What may be set, and within what: bounds of a number, choices of a word, None for yes or no.
FIELDS: Mapping[str, tuple[int, int] | tuple[str, ...] | None] = MappingProxyType(
    {
        "may_kill": None,
        "grace_seconds": (0, 3600),
        "over_memory": tuple(Pool.OverMemory.values),
        "over_grace_seconds": (0, 86_400),
        "foreign": tuple(Pool.Foreign.values),
        "terminal_lines": None,
        "mps_multi_user": None,
        "most_shares": (1, 100),
        "lost_minutes": (1, 10_080),
        "auto_return": None,
        "good_probes": (1, 1000),
        "defragment": tuple(Pool.Defragment.values),
        "notice_seconds": (0, 3600),
        "min_run_seconds": (0, 86_400),
        "approve_above_milli": (0, 1_000_000_000),
        "late_release_price": None,
        "half_life_hours": (1, 8760),
    }
)
#: Of these None is a value, too: there is no limit.
NO_LIMIT = frozenset({"approve_above_milli"})


@locks.use_case
def set_policy(*, actor: User | None, pool: str, now: datetime, **values: Any) -> Pool:
    """Change the fields that are given, of those in `FIELDS`.

    Several users of one MPS server can only be forbidden again once no booking
    counts on it, now or later. Refuses with FORBIDDEN, NOT_FOUND, INVALID,
    WRONG_STATE.
    """
    access.require(actor, Action.MANAGE_POOL)
    _check(values)
    found = Pool.objects.filter(name=pool).values_list("pk", flat=True).first()
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    row = locks.pool(found)
    before = {name: getattr(row, name) for name in values}
    changed = {name: value for name, value in values.items() if value != before[name]}
    if not changed:
        return row
    if changed.get("mps_multi_user") is False:
        _refuse_shared(row)
    for name, value in changed.items():
        setattr(row, name, value)
    row.version += 1
    row.save(update_fields=[*changed, "version"])
    locks.changed(row)
    events.record(
        "pool.policy_set",
        actor=actor,
        now=now,
        pool_id=row.pk,
        before={name: before[name] for name in changed},
        after={"pool": row.name, **changed},
    )
    if "mps_multi_user" in changed:
        shared = Gpu.objects.filter(node__pool=row, use=Gpu.Use.SHARE, managed=True)
        commands.issue(locks.gpus(shared.values_list("pk", flat=True)), now)
    return row


def _refuse_shared(pool: Pool) -> None:
    """Bookings that were made for a server of several users name no user of their own."""
    shares = Allocation.objects.filter(gpu__node__pool=pool, gpu__sharing=Gpu.Sharing.MPS, holds=True)
    booked = sorted({str(pk) for pk in shares.filter(mps_user=None).values_list("reservation_id", flat=True)})
    if booked:
        raise Refusal(Code.WRONG_STATE, state="booked", count=len(booked), reservations=booked[:NAMED])


def _check(values: Mapping[str, Any]) -> None:
    errors = [error for name, value in values.items() if (error := _odd(name, value)) is not None]
    if errors:
        raise Invalid(errors)


def _odd(name: str, value: Any) -> FieldError | None:
    """What is wrong with one value; None when nothing is."""
    pointer = f"/{name}"
    if name not in FIELDS:
        return FieldError(pointer, "unknown_field", {"known": list(FIELDS)})
    allowed = FIELDS[name]
    if allowed is None:
        return None if isinstance(value, bool) else FieldError(pointer, "not_a_boolean", {})
    if isinstance(allowed[0], str):
        fits = value in allowed
        return None if fits else FieldError(pointer, "not_a_choice", {"choices": list(allowed)})
    if value is None and name in NO_LIMIT:
        return None
    low, high = allowed
    fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return None if fits else FieldError(pointer, "not_an_integer", {"min": low, "max": high})
