"""Pages of reservations: the list, one with its live state, extending and releasing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from pool.core.errors import Code, Refusal
from pool.core.roles import Action, allows
from pool.core.states import TERMINAL, State
from pool.queries import access, clock, reclaimable, teams
from pool.queries import reservations as queries
from pool.services import reservations as services
from pool.services import thresholds
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.web import keys, reservation_view, waiting, words
from portal.web.borrowed import spells
from portal.web.forms import ExtendForm, FilterForm, first_error
from portal.web.frame import done, page
from portal.web.tags import written

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet

    from pool.models import Reservation

PER_PAGE = 30

#: Groups of the list -> states; an empty group means all.
GROUPS: dict[str, frozenset[State]] = {
    "open": frozenset(State) - TERMINAL,
    "now": frozenset({State.STARTING, State.ACTIVE, State.PAUSED, State.ENDING}),
    "ahead": frozenset({State.HELD, State.PENDING_APPROVAL, State.WAITING, State.SCHEDULED}),
    "waiting": frozenset({State.WAITING}),
    "over": TERMINAL,
    "all": frozenset(State),
}

EXTENDABLE = frozenset({State.SCHEDULED, State.STARTING, State.ACTIVE})
RELEASABLE = EXTENDABLE | {State.HELD, State.PENDING_APPROVAL, State.WAITING, State.PAUSED}

#: Minutes offered as buttons.
EXTEND_BY = (30, 60, 240, 1440)


@page
@require_safe
def reservations(request: PageRequest) -> HttpResponse:
    """What the viewer may see, newest booking first; `before` is the last id of the page before."""
    form = FilterForm(request.GET)
    form.is_valid()
    wanted = form.cleaned_data | {"group": form.cleaned_data.get("group") or "open"}
    found = list(_filtered(request, wanted)[: PER_PAGE + 1])
    places = waiting.places(found[:PER_PAGE], clock.now())
    kept = {name: wanted[name] for name in ("group", "team") if wanted.get(name)}
    kept |= {"mine": 1} if wanted.get("mine") else {}
    context = {
        "rows": [reservation_view.line(row, places.get(row.pk)) for row in found[:PER_PAGE]],
        "groups": form.fields["group"].choices,  # type: ignore[attr-defined]
        "filters": wanted,
        "filtered": wanted["group"] != "open" or any(wanted.get(name) for name in ("team", "mine", "before")),
        "teams": teams.visible_to(request.user),
        "newest": urlencode(kept) if wanted.get("before") else "",
        "older": urlencode(kept | {"before": found[PER_PAGE - 1].pk}) if len(found) > PER_PAGE else "",
    }
    return render(request, "reservations/list.html", context, part="live")


def _filtered(request: PageRequest, wanted: Mapping[str, Any]) -> QuerySet[Reservation]:
    rows = queries.visible_to(request.user).filter(state__in=GROUPS[wanted["group"]]).order_by("-pk")
    if wanted.get("team"):
        rows = rows.filter(team__name=wanted["team"])
    if wanted.get("mine"):
        rows = rows.filter(owner=request.user.pk)
    if wanted.get("before"):
        rows = rows.filter(pk__lt=wanted["before"])
    return rows


@page
@require_safe
def reservation(request: PageRequest, pk: UUID) -> HttpResponse:
    return _page(request, access.reservation(request.user, pk))


def _page(request: PageRequest, row: Reservation, refused: Problem | None = None) -> HttpResponse:
    now = clock.now()
    view = queries.as_resource(row)
    context: dict[str, Any] = {
        **reservation_view.context(view, queries.events_for(row), now),
        "poll": reservation_view.poll_seconds(view, now),
        "outages": queries.outages(row) if row.started_at else [],
        "place": waiting.places([row], now).get(row.pk),
        "may_extend": may_extend(request, row),
        "may_release": may_release(request, row),
        "may_confirm": may_confirm(request, row),
        **_before(request, row, now),
        "extend_by": EXTEND_BY,
        "units": list(words.UNITS.items()),
        "problem": refused,
        "key": keys.new(),
    }
    part = "" if refused else "live"
    status = refused.status if refused else 200
    return render(request, "reservations/detail.html", context, part=part, status=status)


def _before(request: PageRequest, row: Reservation, now: datetime) -> dict[str, Any]:
    """What is to be known before it is booked for good, or given back."""
    return {
        "loans": spells(reclaimable.of(row, now)),
        "needs_approval": row.state == State.HELD and thresholds.needs(row.pool, row.charge_milli),
        "late_price": services.late_price(row, now),
        "may_waive": may_waive(request, row),
    }


def may_waive(request: PageRequest, row: Reservation) -> bool:
    """Whether the viewer could say that giving it back late costs nothing: a lead for others, an approver."""
    role, roles = teams.reach(request.user).get(row.team_id), teams.global_roles(request.user)
    leads = row.owner_id != request.user.pk and allows(Action.BOOK_FOR_OTHERS, role, roles)
    return leads or allows(Action.SET_QUOTA, role, roles)


def may_confirm(request: PageRequest, row: Reservation) -> bool:
    """Whether it is held for the viewer; what the wait list offers is its owner's, too."""
    own = row.booked_by_id == request.user.pk or (row.from_wait and row.owner_id == request.user.pk)
    return row.state == State.HELD and own


def may_extend(request: PageRequest, row: Reservation) -> bool:
    """Whether a button for it makes sense."""
    return row.state in EXTENDABLE and _may(request, row, Action.EXTEND_OWN, Action.EXTEND_TEAM)


def may_release(request: PageRequest, row: Reservation) -> bool:
    """As `may_extend`."""
    return row.state in RELEASABLE and _may(request, row, Action.RELEASE_OWN, Action.RELEASE_TEAM)


def _may(request: PageRequest, row: Reservation, own: Action, team: Action) -> bool:
    """As the services decide, for a button; they decide again when it is pressed."""
    role, roles = teams.reach(request.user).get(row.team_id), teams.global_roles(request.user)
    is_own = row.owner_id == request.user.pk
    return (is_own and allows(own, role, roles)) or allows(team, role, roles)


@page
@require_POST
def extend(request: PageRequest, pk: UUID) -> HttpResponse:
    """A second click on the same button asks for the same end: it has it already.

    Where the page showed the new end in between, it comes with the same key and the same `by`.
    """
    row = access.reservation(request.user, pk)
    form = ExtendForm(request.POST)
    if not form.is_valid():
        return _page(request, row, first_error(form))
    end = form.cleaned_data["end"]
    if row.period.upper != end:
        claim = keys.claim(request, {"by_s": form.cleaned_data["added"].total_seconds()})
        try:
            row = services.extend(
                actor=request.user, reservation_id=pk, end=end, now=clock.now(), claim=claim
            )
        except Refusal as refusal:
            if refusal.code == Code.IN_PROGRESS:
                done(request, _("It is being extended already."))
                return HttpResponseRedirect(reverse("reservation", args=[pk]))
            return _page(request, access.reservation(request.user, pk), _shown(refusal))
    done(request, _("Extended: it ends %(end)s.") % {"end": written(row.period.upper)})
    return HttpResponseRedirect(reverse("reservation", args=[pk]))


@page
@require_POST
def confirm(request: PageRequest, pk: UUID) -> HttpResponse:
    """Book what is held; a second click finds it booked."""
    row = access.reservation(request.user, pk)
    if row.state not in EXTENDABLE:
        try:
            services.confirm(actor=request.user, reservation_id=pk, now=clock.now())
        except Refusal as refusal:
            return _page(request, access.reservation(request.user, pk), _shown(refusal))
    done(request, _("Booked."))
    return HttpResponseRedirect(reverse("reservation", args=[pk]))


@page
@require_POST
def release(request: PageRequest, pk: UUID) -> HttpResponse:
    row = access.reservation(request.user, pk)
    if row.state in RELEASABLE:
        try:
            waive = bool(request.POST.get("waive"))
            row = services.release(actor=request.user, reservation_id=pk, waive=waive, now=clock.now())
        except Refusal as refusal:
            return _page(request, access.reservation(request.user, pk), _shown(refusal))
    cancelled = row.state == State.CANCELLED
    done(request, _("Cancelled.") if cancelled else _("Released. Its slices are being taken down."))
    return HttpResponseRedirect(reverse("reservation", args=[pk]))


def _shown(refusal: Refusal) -> Problem:
    """A refusal as it stands on the page; what is not permitted has a page of its own."""
    if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
        raise refusal
    told = problem(refusal)
    if refusal.code != Code.KEY_REUSED:
        return told
    return replace(
        told,
        title=_("This form was sent before"),
        detail=_("It was sent before, with another time to add."),
        next_step=_("Look at when it ends now; if that is not enough, send it again."),
    )
