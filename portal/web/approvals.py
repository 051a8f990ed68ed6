"""What waits for an approver: bookings above a threshold, and requests for quota."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.queries import access, clock, inventory
from pool.queries import quota_requests as queries
from pool.services import approvals as services
from portal.askwords import in_full
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.noticewords import amount
from portal.web.frame import done, page

#: More than these are on the page of requests.
MOST = 100


@page
@require_safe
def approvals(request: PageRequest) -> HttpResponse:
    return _page(request)


def _page(request: PageRequest, refused: Problem | None = None, answer: str = "") -> HttpResponse:
    access.require(request.user, Action.DECIDE)
    bookings = [
        (row, in_full(row.ask), queries.is_own(request.user, (row.owner, row.booked_by)))
        for row in queries.pending(request.user)[:MOST]
    ]
    context = {
        "bookings": bookings,
        "requests": [(row, amount(vars(row))) for row in queries.open_to_decide(request.user)[:MOST]],
        "pools": inventory.pools_visible_to(request.user),
        "problem": refused,
        "answer": answer,
    }
    return render(request, "approvals/list.html", context, status=refused.status if refused else 200)


@page
@require_POST
def approve(request: PageRequest, pk: UUID) -> HttpResponse:
    version = _version(request)
    try:
        services.approve(actor=request.user, reservation_id=pk, version=version, now=clock.now())
    except Refusal as refusal:
        return _refused(request, refusal)
    done(request, _("Approved."))
    return HttpResponseRedirect(reverse("approvals"))


@page
@require_POST
def deny(request: PageRequest, pk: UUID) -> HttpResponse:
    answer = request.POST.get("answer", "").replace("\0", "")
    version = _version(request)
    try:
        services.deny(actor=request.user, reservation_id=pk, answer=answer, version=version, now=clock.now())
    except Refusal as refusal:
        return _refused(request, refusal, answer)
    done(request, _("Denied."))
    return HttpResponseRedirect(reverse("approvals"))


def _version(request: PageRequest) -> int | None:
    given = request.POST.get("version", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None


def _refused(request: PageRequest, refusal: Refusal, answer: str = "") -> HttpResponse:
    if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
        raise refusal
    return _page(request, problem(refusal), answer)
