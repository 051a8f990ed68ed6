"""The caller's messages over REST: the list, and marking them as read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import invalid
from pool.queries import clock
from pool.queries import notices as queries
from pool.services import notices as services
from portal import noticewords
from portal.api import paging, wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.times import instant

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from pool.models import OutboxMessage

NEWEST_FIRST = paging.Order(("created_at", "pk"), descending=True)


class Inbox(Door):
    """What the caller was told, newest first; `unread=true` leaves out what was read.

    `kind` and `data` say what it is about, `subject` and `text` the same in words.
    """

    parameters = paging.PARAMETERS | {"unread"}

    def get(self, request: Request) -> HttpResponse:
        rows = _within(request)
        unread = request.query_params.get("unread")
        if unread is not None:
            if unread not in ("true", "false"):
                raise invalid("?unread", "not_a_boolean")
            rows = rows.filter(read_at=None) if unread == "true" else rows
        return paging.listing(request, rows, NEWEST_FIRST, lambda page: [_message(row) for row in page])


class Read(Door):
    """Mark one message as read; again it changes nothing."""

    def post(self, request: Request, pk: int) -> HttpResponse:
        wishes.nothing(json_object(request))
        user = user_of(request)
        queries.only(_within(request), pk)
        services.read(actor=user, message_id=pk, now=clock.now())
        return answer(_message(queries.one(user, pk)))


def _within(request: Request) -> QuerySet[OutboxMessage]:
    """A token that is bound to a team reads what is about that team's matters."""
    team = bound_team(request)
    rows = queries.visible_to(user_of(request))
    return rows if team is None else queries.about(rows, team)


def _message(row: OutboxMessage) -> dict[str, Any]:
    said = noticewords.said(row)
    return {
        "id": row.pk,
        "kind": row.kind,
        "subject": said.subject,
        "text": said.sentence,
        "data": row.data,
        "reservation": str(row.reservation_id) if row.reservation_id else None,
        "request": row.request_id,
        "created_at": instant(row.created_at),
        "read_at": instant(row.read_at),
    }
