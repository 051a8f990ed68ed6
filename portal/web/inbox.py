"""The inbox: what somebody was told, and a page for each message from which it can be acted on.

Links in mails lead to that page. To open it only marks the message as read; whatever it
offers is a form of its own, so that nothing happens by following a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from pool.core.errors import Refusal
from pool.core.roles import Action
from pool.core.states import TERMINAL, State
from pool.queries import access, clock
from pool.queries import notices as queries
from pool.services import notices as services
from portal import noticewords
from portal.htmx import PageRequest, render
from portal.web import keys, reservations
from portal.web.frame import done, page

if TYPE_CHECKING:
    from pool.models import OutboxMessage, Reservation

PER_PAGE = 30
#: So many are shown on the first page of the portal.
ON_HOME = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A message as it stands in a list."""

    id: int
    subject: str
    sentence: str
    tone: str
    at: datetime
    unread: bool


def lines(rows: Any) -> list[Line]:
    """These messages in words."""
    found = []
    for row in rows:
        said = noticewords.said(row)
        found.append(
            Line(row.pk, said.subject, said.sentence, said.tone, row.created_at, row.read_at is None)
        )
    return found


def newest_unread(request: PageRequest) -> list[Line]:
    """What the viewer has not read, for the first page."""
    return lines(queries.visible_to(request.user).filter(read_at=None)[:ON_HOME])


@page
@require_safe
def inbox(request: PageRequest) -> HttpResponse:
    """All messages, newest first; `before` is the id of the last one of the page before."""
    rows = queries.visible_to(request.user).order_by("-pk")
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    found = list(rows[: PER_PAGE + 1])
    context = {
        "lines": lines(found[:PER_PAGE]),
        "unread": queries.unread(request.user),
        "older": found[PER_PAGE - 1].pk if len(found) > PER_PAGE else None,
        "newest": bool(before),
    }
    return render(request, "inbox/list.html", context)


@page
@require_safe
def notice(request: PageRequest, pk: int) -> HttpResponse:
    """One message, with what can be done about it now."""
    row = queries.one(request.user, pk)
    services.read(actor=request.user, message_id=row.pk, now=clock.now())
    said = noticewords.said(row)
    context: dict[str, Any] = {"message": row, "said": said, "key": keys.new()}
    if row.reservation is not None:
        context |= _about_reservation(request, row, said.acts)
    if row.request is not None:
        context["may_renew"] = "renew" in said.acts
    return render(request, "inbox/notice.html", context)


def _about_reservation(request: PageRequest, message: OutboxMessage, acts: tuple[str, ...]) -> dict[str, Any]:
    """What its viewer may do with the reservation as it is now; nothing with one they no longer see."""
    if message.kind == "booking_to_approve":
        decides = access.can(request.user, Action.DECIDE)
        return {"to_approve": message.reservation} if decides else {"gone": True}
    try:
        row = access.reservation(request.user, message.reservation_id or "")
    except Refusal:
        return {"gone": True}
    may = {name: name in acts and _may(request, row, name) for name in ("extend", "release", "accept")}
    return {
        "r": row,
        "may": may,
        "over": row.state in TERMINAL,
        "started": row.started_at is not None,
        "extend_by": reservations.EXTEND_BY,
    }


def _may(request: PageRequest, row: Reservation, name: str) -> bool:
    if name == "extend":
        return reservations.may_extend(request, row)
    if name == "release":
        return reservations.may_release(request, row)
    return row.state == State.HELD and request.user.pk in (row.owner_id, row.booked_by_id)


@page
@require_POST
def read_all(request: PageRequest) -> HttpResponse:
    number = services.read_all(actor=request.user, now=clock.now())
    said = ngettext("%(n)s message is marked as read.", "%(n)s messages are marked as read.", number)
    done(request, said % {"n": number} if number else _("Everything was read already."))
    return HttpResponseRedirect(reverse("inbox"))
