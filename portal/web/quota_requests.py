"""Pages of requests for quota: the list, asking, one with what was said, and deciding on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.queries import access, clock, inventory, teams
from pool.queries import quota as quota_queries
from pool.queries import quota_requests as queries
from pool.services import quota_requests as services
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.noticewords import amount
from portal.web import keys, quota_forms, words
from portal.web.frame import done, page
from portal.web.quota_forms import CommentForm, DecideForm, DenyForm, RequestForm

if TYPE_CHECKING:
    from pool.models import QuotaRequest

PER_PAGE = 30
#: What has a page of its own.
_ELSEWHERE = (Code.FORBIDDEN, Code.NOT_FOUND)


@page
@require_safe
def quota_requests(request: PageRequest) -> HttpResponse:
    """What the viewer may see, the newest first; `before` is the last id of the page before."""
    rows = queries.visible_to(request.user).order_by("-pk")
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    state = request.GET.get("state", "")
    if state in words.REQUEST_STATES:
        rows = rows.filter(state=state)
    found = list(rows[: PER_PAGE + 1])
    context = {
        "rows": [(row, amount(vars(row))) for row in found[:PER_PAGE]],
        "older": found[PER_PAGE - 1].pk if len(found) > PER_PAGE else None,
        "newest": bool(before),
        "states": words.REQUEST_STATES,
        "state": state,
        "may_ask": bool(_teams(request)),
    }
    return render(request, "quota/requests.html", context)


@page
@require_http_methods(["GET", "HEAD", "POST"])
def ask(request: PageRequest) -> HttpResponse:
    """Ask for quota; `renews` fills in what was granted and goes on from its end."""
    if request.method != "POST":
        return _ask_page(request, _form(request, initial=_at_first(request)))
    form = _form(request, request.POST, exact=_going_on(request))
    if not form.is_valid() or "valid" not in form.cleaned_data:
        return _ask_page(request, form, form.problem())
    data = form.cleaned_data
    claim = keys.claim(request, {name: str(value) for name, value in sorted(form.data.items())})
    try:
        made = services.submit(
            actor=request.user,
            team=access.team(request.user, data["team"]),
            pool=access.pool(request.user, data["pool"]),
            model=data["model"],
            amounts=form.amounts(),
            valid=data["valid"],
            justification=data["justification"],
            renews=queries.one(request.user, data["renews"]) if data["renews"] else None,
            now=clock.now(),
            claim=claim,
        )
    except Refusal as refusal:
        if refusal.code in _ELSEWHERE:
            raise
        refused = problem(refusal)
        form.refuse(refused)
        return _ask_page(request, form, form.problem(refused))
    done(request, _("Asked. You are told as soon as somebody has decided."))
    return HttpResponseRedirect(reverse("quota-request", args=[made.pk]))


def _teams(request: PageRequest) -> list[Any]:
    """Teams for which the viewer may ask."""
    found = teams.to_book_for(request.user)
    return [team for team in found if access.can(request.user, Action.REQUEST_QUOTA, team)]


def _form(request: PageRequest, *args: Any, **more: Any) -> RequestForm:
    pools = list(inventory.pools_visible_to(request.user))
    known = {model for pool in pools for model in quota_queries.models_of(pool)}
    return RequestForm(
        *args,
        teams=[(team.name, team.title or team.name) for team in _teams(request)],
        pools=[(pool.name, pool.title or pool.name) for pool in pools],
        models=sorted(known | set(mig.models())),
        **more,
    )


def _at_first(request: PageRequest) -> dict[str, Any]:
    given = request.GET.get("renews", "")
    first: dict[str, Any] = {name: request.GET.get(name, "")[:64] for name in ("team", "pool", "model")}
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        return first
    row = queries.one(request.user, int(given))
    span = getattr(row, "grant", row).valid
    values = quota_forms.amounts_values(getattr(row, "grant", row), span)
    days = values["last"] - values["first"]
    begins = quota_forms.going_on(span)["first"][0]
    return {
        **values,
        "team": row.team.name,
        "pool": row.pool.name,
        "model": row.model,
        "first": begins,
        "last": begins + days,
        "justification": row.justification,
        "renews": row.pk,
    }


def _going_on(request: PageRequest) -> quota_forms.Exact | None:
    """Of a renewal: where what it renews ends, so that there is no gap and no overlap."""
    given = request.POST.get("renews", "")
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        return None
    row = queries.one(request.user, int(given))
    return quota_forms.going_on(getattr(row, "grant", row).valid)


def _ask_page(request: PageRequest, form: RequestForm, refused: Problem | None = None) -> HttpResponse:
    renews = form["renews"].value()
    context = {
        "form": form,
        "problem": refused,
        "key": request.POST.get("key") or keys.new(),
        "renews": renews if renews else None,
        "nothing": not form.fields["team"].choices,  # type: ignore[attr-defined]
    }
    return render(request, "quota/ask.html", context, status=refused.status if refused else 200)


# --- One request --------------------------------------------------------------


@page
@require_safe
def quota_request(request: PageRequest, pk: int) -> HttpResponse:
    return _page(request, queries.one(request.user, pk))


def _page(
    request: PageRequest,
    row: QuotaRequest,
    refused: Problem | None = None,
    **forms: Any,
) -> HttpResponse:
    may_decide = queries.decides(request.user) and row.state in queries.OPEN
    own = may_decide and queries.is_own(request.user, (row.requested_by,))
    grant = getattr(row, "grant", None)
    start = quota_forms.amounts_values(row, row.valid) | {"version": row.version}
    context = {
        "row": row,
        "asked": amount(vars(row)),
        "grant": grant,
        "granted": amount(vars(grant)) if grant else "",
        "comments": queries.comments(row),
        "history": [(one, amount(vars(getattr(one, "grant", one)))) for one in queries.history(row)],
        "own": own,
        "may_decide": may_decide and not own,
        "may_withdraw": row.state in queries.OPEN and _may_withdraw(request, row),
        "may_comment": access.can(request.user, Action.COMMENT_REQUEST, row.team),
        "may_renew": row.state in queries.GRANTED
        and access.can(request.user, Action.REQUEST_QUOTA, row.team),
        "approve_form": forms.get("approve") or DecideForm(initial=start),
        "deny_form": forms.get("deny") or DenyForm(initial=start, auto_id="deny_%s"),
        "comment_form": forms.get("comment") or CommentForm(auto_id="say_%s"),
        "key": keys.new(),
        "problem": refused,
    }
    return render(request, "quota/request.html", context, status=refused.status if refused else 200)


def _may_withdraw(request: PageRequest, row: QuotaRequest) -> bool:
    own = row.requested_by_id == request.user.pk
    return own or access.can(request.user, Action.REQUEST_QUOTA, row.team)


@page
@require_POST
def comment(request: PageRequest, pk: int) -> HttpResponse:
    form = CommentForm(request.POST, auto_id="say_%s")
    return _carry_out(
        request,
        pk,
        "comment",
        form,
        lambda data: services.comment(
            actor=request.user,
            request_id=pk,
            text=data["text"],
            now=clock.now(),
            claim=keys.claim(request, {"text": data["text"]}),
        ),
        _("Said."),
    )


@page
@require_POST
def withdraw(request: PageRequest, pk: int) -> HttpResponse:
    try:
        services.withdraw(actor=request.user, request_id=pk, now=clock.now())
    except Refusal as refusal:
        if refusal.code in _ELSEWHERE:
            raise
        return _page(request, queries.one(request.user, pk), problem(refusal))
    done(request, _("Withdrawn."))
    return HttpResponseRedirect(reverse("quota-request", args=[pk]))


@page
@require_POST
def approve(request: PageRequest, pk: int) -> HttpResponse:
    asked = queries.one(request.user, pk)
    form = DecideForm(request.POST, exact=quota_forms.exact(asked.valid))
    return _carry_out(
        request,
        pk,
        "approve",
        form,
        lambda data: services.approve(
            actor=request.user,
            request_id=pk,
            amounts=form.amounts(),
            valid=data["valid"],
            answer=data["answer"],
            version=data["version"],
            now=clock.now(),
        ),
        _("Granted."),
    )


@page
@require_POST
def deny(request: PageRequest, pk: int) -> HttpResponse:
    form = DenyForm(request.POST, auto_id="deny_%s")
    return _carry_out(
        request,
        pk,
        "deny",
        form,
        lambda data: services.deny(
            actor=request.user,
            request_id=pk,
            answer=data["answer"],
            version=data["version"],
            now=clock.now(),
        ),
        _("Denied."),
    )


def _carry_out(
    request: PageRequest,
    pk: int,
    name: str,
    form: Any,
    act: Callable[[dict[str, Any]], object],
    sentence: str,
) -> HttpResponse:
    """Do it, and show the request; what was typed stays where it was refused."""
    row = queries.one(request.user, pk)
    if not form.is_valid():
        return _page(request, row, form.problem(), **{name: form})
    try:
        act(form.cleaned_data)
    except Refusal as refusal:
        if refusal.code in _ELSEWHERE:
            raise
        refused = problem(refusal)
        form.refuse(refused)
        return _page(request, queries.one(request.user, pk), form.problem(refused), **{name: form})
    done(request, sentence)
    return HttpResponseRedirect(reverse("quota-request", args=[pk]))
