"""What a person was told: the inbox, and how much of it is unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import Q, QuerySet

from pool.core.errors import Code, Refusal
from pool.models import OutboxMessage

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import Team, User

#: More than that nobody counts.
MOST_UNREAD = 99


def visible_to(user: User | AnonymousUser) -> QuerySet[OutboxMessage]:
    """The user's own messages, newest first; nobody sees another's."""
    rows = OutboxMessage.objects.select_related("recipient", "reservation__team", "request__team")
    rows = rows.order_by("-created_at", "-pk")
    return rows.filter(recipient=user.pk) if user.is_active and user.pk is not None else rows.none()


def one(user: User | AnonymousUser, pk: int) -> OutboxMessage:
    """The message, if it is the user's; else NOT_FOUND."""
    return only(visible_to(user), pk)


def only(rows: QuerySet[OutboxMessage], pk: int) -> OutboxMessage:
    """The one of these messages with that id; else NOT_FOUND."""
    row = rows.filter(pk=pk).first()
    if row is None:
        raise Refusal(Code.NOT_FOUND)
    return row


def about(rows: QuerySet[OutboxMessage], team: Team) -> QuerySet[OutboxMessage]:
    """Those of these messages that are about bookings or requests of the team."""
    return rows.filter(Q(reservation__team=team) | Q(request__team=team))


def unread(user: User | AnonymousUser) -> int:
    """How many the user has not read; counted up to 99."""
    if not user.is_active or user.pk is None:
        return 0
    rows = OutboxMessage.objects.filter(recipient=user.pk, read_at=None)
    return rows[:MOST_UNREAD].count()
