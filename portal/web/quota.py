"""Pages of quota: the lines with what is used of them, setting one, and what a pool promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.queries import access, clock, inventory, teams
from pool.queries import quota as queries
from pool.queries.quota import Supply, Usage
from pool.services import quota as services
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.web import quota_forms, svg
from portal.web.frame import done, page
from portal.web.quota_forms import LineForm

if TYPE_CHECKING:
    from pool.models import Pool, QuotaLine, Team

#: So many lines are looked up at once.
PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its bar; `fair` is the team's fair share of the pool now, None where it is not known."""

    usage: Usage
    bar: tuple[svg.Part, ...]
    inside_milli: int
    borrowed_milli: int
    free_milli: int
    fair: int | None
    burn_bar: tuple[svg.Part, ...]
    burn_tone: str


@page
@require_safe
def quota(request: PageRequest) -> HttpResponse:
    """The lines of the viewer's teams; all of them for who sets them. `from` is how many are left out."""
    team = request.GET.get("team", "").replace("\0", "")
    rows = queries.visible_to(request.user)
    if team:
        rows = rows.filter(team__name=team)
    start = _number(request.GET.get("from", "0"))
    found = list(rows[start : start + PER_PAGE + 1])
    shown = queries.bars(found[:PER_PAGE], clock.now())
    fair = _fair(shown)
    may_set = access.can(request.user, Action.SET_QUOTA)
    context = {
        "lines": [_line(one, fair.get((one.row.pool_id, one.row.team_id))) for one in shown],
        "next": start + PER_PAGE if len(found) > PER_PAGE else None,
        "first": start > 0,
        "team": team,
        "teams": teams.visible_to(request.user),
        "pools": inventory.pools_visible_to(request.user),
        "may_set": may_set,
        "may_ask": _leads_some(request),
        "models": _models(request) if may_set else [],
    }
    return render(request, "quota/lines.html", context)


def _models(request: PageRequest) -> list[str]:
    """What a line can be for."""
    known = (model for pool in inventory.pools_visible_to(request.user) for model in queries.models_of(pool))
    return sorted({*mig.models(), *known})


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _leads_some(request: PageRequest) -> bool:
    return any(access.can(request.user, Action.REQUEST_QUOTA, team) for team in _own_teams(request))


def _own_teams(request: PageRequest) -> Iterable[Team]:
    return teams.to_book_for(request.user)


def _fair(shown: Sequence[Usage]) -> Mapping[tuple[int, int], int]:
    """(pool, team) -> the fair share now, in milli."""
    pools = {one.row.pool_id: one.row.pool for one in shown}
    return {
        (pk, team): milli
        for pk, pool in pools.items()
        for team, milli in queries.fair_shares(pool, clock.now()).items()
    }


def _line(one: Usage, fair: int | None) -> Line:
    whole = max(one.cap_milli, one.used_milli, one.guaranteed_milli, 1)
    inside = min(one.used_milli, one.guaranteed_milli)
    over = one.used_milli - inside
    parts = (("used", inside), ("held", over))
    burn = one.burn
    spent = (("used" if burn.share < 0.8 else "frozen-part", burn.spent),) if burn else ()
    return Line(
        usage=one,
        bar=svg.bar(whole, parts),
        inside_milli=inside,
        borrowed_milli=over,
        free_milli=max(one.cap_milli - one.used_milli, 0),
        fair=fair,
        burn_bar=svg.bar(max(burn.budget, burn.spent, 1), spent) if burn else (),
        burn_tone="warn" if burn and burn.share >= 0.8 else "quiet",
    )


@page
@require_safe
def find_line(request: PageRequest) -> HttpResponse:
    """To the page of the line that a small form names."""
    access.require(request.user, Action.SET_QUOTA)
    its_pool = access.pool(request.user, request.GET.get("pool", ""))
    its_team = access.team(request.user, request.GET.get("team", ""))
    model = request.GET.get("model", "")[:64]
    where = reverse("quota-line", args=[its_pool.name, its_team.name])
    return HttpResponseRedirect(f"{where}?{urlencode({'model': model})}" if model else where)


# --- Setting a line -----------------------------------------------------------


@page
@require_http_methods(["GET", "HEAD", "POST"])
def line(request: PageRequest, pool: str, team: str) -> HttpResponse:
    """One line with all that stands on it; `model` is in the query, none for any."""
    access.require(request.user, Action.SET_QUOTA)
    its_pool, its_team = access.pool(request.user, pool), access.team(request.user, team)
    model = request.GET.get("model", "")[:64]
    row = queries.line_of(its_team, its_pool, model)
    if request.method != "POST":
        form = LineForm(initial=quota_forms.line_values(row) | {"version": row.version if row.pk else 0})
        return _line_page(request, its_pool, its_team, model, form, row)
    form = LineForm(request.POST)
    if not form.is_valid():
        return _line_page(request, its_pool, its_team, model, form, row, form.problem())
    data = form.cleaned_data
    try:
        services.set_line(
            actor=request.user,
            team=its_team,
            pool=its_pool,
            model=model,
            guaranteed_milli=quota_forms.milli(data["guaranteed"]),
            cap_milli=quota_forms.milli(data["cap"]),
            conditions=form.conditions(),
            version=data["version"],
            show_first=not data["confirmed"],
            now=clock.now(),
        )
    except Refusal as refusal:
        if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
            raise
        refused = problem(refusal)
        form.refuse(refused)
        listed = refusal.data.get("promised") if refusal.code == Code.PROMISED else None
        return _line_page(request, its_pool, its_team, model, form, row, form.problem(refused), listed=listed)
    done(request, _("The line is set."))
    return HttpResponseRedirect(f"{reverse('quota')}?team={its_team.name}")


def _line_page(
    request: PageRequest,
    pool: Pool,
    team: Team,
    model: str,
    form: LineForm,
    row: QuotaLine,
    refused: Problem | None = None,
    listed: Sequence[Mapping[str, Any]] | None = None,
) -> HttpResponse:
    context = {
        "pool": pool,
        "team": team,
        "model": model,
        "form": form,
        "row": row if row.pk else None,
        "models": sorted({*mig.models(), *queries.rules(pool).capacity}),
        "problem": refused,
        "promised": listed,
    }
    return render(request, "quota/line.html", context, status=refused.status if refused else 200)


# --- What a pool promises -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One model (None: all) with what is promised beside what there is."""

    supply: Supply
    bar: tuple[svg.Part, ...]
    over: bool


@page
@require_safe
def promised(request: PageRequest, name: str) -> HttpResponse:
    """For who decides on quota: promised against supply, by model."""
    access.require(request.user, Action.DECIDE)
    pool = access.pool(request.user, name)
    rows = [_supply(one) for one in queries.supply(pool, clock.now())]
    return render(request, "quota/promised.html", {"pool": pool, "rows": rows})


def _supply(one: Supply) -> Row:
    parts = (("used", one.guaranteed), ("unknown-part", 0))
    return Row(one, svg.bar(max(one.capacity, one.guaranteed, 1), parts), one.guaranteed > one.capacity)
