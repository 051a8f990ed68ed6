"""The audit: a step that writes who did what, within the transaction that does it. Never a use case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pool.models import Event
from pool.services.trace import request_id

if TYPE_CHECKING:
    from pool.models import User

#: Who acts when no person does: lanes, agents' reports, commands on the portal's own machine.
SYSTEM = "system"


def record(
    verb: str,
    *,
    actor: User | None,
    now: datetime,
    label: str = "",
    team_id: int | None = None,
    pool_id: int | None = None,
    node_id: int | None = None,
    gpu_id: int | None = None,
    reservation_id: UUID | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Write one line: `verb` is "noun.verb" ("reservation.booked"), before and after are JSON values.

    `label` names an actor who is no user ("node:dgx-01"); a user's name and,
    without either, "system" stand for themselves.
    """
    draft(
        verb,
        actor=actor,
        now=now,
        label=label,
        team_id=team_id,
        pool_id=pool_id,
        node_id=node_id,
        gpu_id=gpu_id,
        reservation_id=reservation_id,
        before=before,
        after=after,
    ).save(force_insert=True)


def draft(
    verb: str,
    *,
    actor: User | None,
    now: datetime,
    label: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    **subject: int | UUID | None,
) -> Event:
    """As `record`, unsaved: for steps that write many in one statement (`write`)."""
    return Event(
        at=now,
        actor=actor,
        actor_label=label or (actor.get_username() if actor else SYSTEM),
        request_id=request_id.get()[:64],
        verb=verb,
        before=before,
        after=after,
        **subject,
    )


def write(drafts: Iterable[Event]) -> None:
    """Insert drafts in the order given, 500 a statement."""
    Event.objects.bulk_create(drafts, batch_size=500)
