"""Tells people: a step that writes one message a person and matter. Mail goes out in `services.outbox`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pool.core.errors import Code, Refusal
from pool.core.roles import GlobalRole
from pool.models import OutboxMessage, Team, User
from pool.queries.quota_requests import is_own
from pool.services import locks

if TYPE_CHECKING:
    from pool.models import QuotaRequest, Reservation

#: How long a key may be; what is longer would not be the same matter twice.
LONGEST_KEY = 120


def tell(
    users: Iterable[User],
    kind: str,
    *,
    key: str,
    now: datetime,
    reservation: Reservation | None = None,
    request: QuotaRequest | None = None,
    data: Mapping[str, Any] | None = None,
) -> int:
    """Write a message of `kind` to each of `users` who is an active person; how many are new.

    A step: in the transaction of what it tells, so that nobody hears of what did not happen.
    `key` names the matter ("evicted:<reservation id>"): whoever was told of it is not told
    again, however often this runs. `data` holds JSON values fit for every recipient to see;
    times are ISO 8601 with their offset. Service accounts read no inbox and are left out.
    """
    people = {user.pk: user for user in users if user.is_active and user.kind == User.Kind.PERSON}
    told = OutboxMessage.objects.filter(key=_key(key), recipient__in=people)
    for pk in told.values_list("recipient", flat=True):
        people.pop(pk, None)
    subject = {"kind": kind, "key": key, "reservation": reservation, "request": request}
    drafts = [
        OutboxMessage(recipient=user, data=dict(data or {}), created_at=now, try_at=now, **subject)
        for user in people.values()
    ]
    # Another transaction may have told the same meanwhile: once is enough.
    return len(OutboxMessage.objects.bulk_create(drafts, ignore_conflicts=True, batch_size=500))


def concerned(reservation: Reservation) -> list[User]:
    """Who hears about a reservation: its owner and who booked it; for a service account the leads."""
    people = [reservation.owner, reservation.booked_by]
    if all(user.kind != User.Kind.PERSON or not user.is_active for user in people):
        return leads(reservation.team)
    return people


def leads(team: Team) -> list[User]:
    """Active people who lead the team; without any, those who lead the nearest team above."""
    above: Team | None = team
    while above is not None:
        found = list(
            User.objects.filter(
                is_active=True,
                kind=User.Kind.PERSON,
                memberships__team=above,
                memberships__role="lead",
            ).order_by("pk")
        )
        if found:
            return found
        above = above.parent
    return []


def approvers() -> list[User]:
    """Active people who decide on quota: approvers, and admins only where there is no approver."""
    people = User.objects.filter(is_active=True, kind=User.Kind.PERSON).order_by("pk")
    return list(people.filter(roles__contains=[GlobalRole.APPROVER.value])) or list(
        people.filter(roles__contains=[GlobalRole.ADMIN.value])
    )


def ask_approvers(reservation: Reservation, *, now: datetime) -> int:
    """Tell those who may decide that a booking waits for them: not whose own it is."""
    asked_by = (reservation.owner, reservation.booked_by)
    data = {
        "by": reservation.booked_by.get_username(),
        "approve_by": reservation.approve_by.isoformat() if reservation.approve_by else None,
        "justification": reservation.justification or None,
    }
    people = [user for user in approvers() if not is_own(user, asked_by)]
    key = f"booking_to_approve:{reservation.pk}"
    return tell(people, "booking_to_approve", key=key, now=now, reservation=reservation, data=data)


@locks.use_case
def read(*, actor: User, message_id: int, now: datetime) -> OutboxMessage:
    """Mark one of the actor's own messages as read; reading it again changes nothing. NOT_FOUND."""
    message = OutboxMessage.objects.filter(recipient=actor, pk=message_id).first()
    if message is None:
        raise Refusal(Code.NOT_FOUND)
    if message.read_at is None:
        message.read_at = now
        message.save(update_fields=["read_at"])
    return message


@locks.use_case
def read_all(*, actor: User, now: datetime) -> int:
    """Mark all of the actor's messages as read; how many were not."""
    return OutboxMessage.objects.filter(recipient=actor, read_at=None).update(read_at=now)


def _key(key: str) -> str:
    """As long as the column, or a mistake of whoever calls."""
    if len(key) > LONGEST_KEY:
        raise ValueError("the key of a notice is too long")
    return key
