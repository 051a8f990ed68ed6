"""The booking form, and what it says about room while it is filled in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from pool.core import mig
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota import charge_milli
from pool.core.roles import TeamRole
from pool.core.shapes import Class, Sharing, ask_json
from pool.queries import access, clock, inventory, shares, teams
from pool.services import reservations, wishes
from pool.services.plans import Wanted
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.web import keys, offers, waiting, words
from portal.web import room as rooms
from portal.web.forms import BookForm, Choices, Offered, summary
from portal.web.frame import done, page
from portal.web.tags import count_gpus, gib

if TYPE_CHECKING:
    from datetime import datetime

    from pool.models import Pool, Reservation, Team, User

#: What the form shows before anything is typed.
AT_FIRST = {"count": "1", "begin": "now", "amount": "2", "unit": "hours", "klass": "interactive"}
AT_FIRST_OF_SHARES = {"share_memory": "8", "share_unit": "gib", "share_compute": "10"}


@page
@require_http_methods(["GET", "HEAD", "POST"])
def book(request: PageRequest) -> HttpResponse:
    """A refusal keeps what was typed; a form that is sent twice books once."""
    if request.method != "POST" or request.POST.get("check"):
        typed = request.POST if request.method == "POST" else request.GET
        return _page(request, _form(request, typed, fill=True))
    form = _form(request, request.POST)
    if not form.is_valid():
        return _page(request, form, summary(form))
    if request.POST.get("offers"):
        return _page(request, form, times=offers.times(request, form))
    if _is_unsaid(request, form):
        return _page(request, form, ask=True)
    try:
        made, said = _made(request, form)
    except Refusal as refusal:
        if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
            raise
        refused = problem(refusal)
        form.refuse(refused)
        return _page(request, form, summary(form, refused))
    if not getattr(made, "replayed", False):
        done(request, said)
    return HttpResponseRedirect(reverse("reservation", args=[made.pk]))


def _made(request: PageRequest, form: BookForm) -> tuple[Reservation, str]:
    """What the button that was pressed makes of the form, and what is said then."""
    chosen = request.POST.get("hold", "")
    if chosen:
        return offers.hold(request, form, chosen), str(offers.KEPT)
    if request.POST.get("wait"):
        return waiting.join(request, form), str(waiting.JOINED)
    return _book(request, form), _("Booked.")


def _book(request: PageRequest, form: BookForm) -> Reservation:
    typed = form.cleaned_data
    return reservations.book(
        actor=request.user,
        team=typed["team"],
        pool=typed["pool"],
        title=typed["title"],
        ask=typed["ask"],
        start=typed["start"],
        duration=typed["duration"],
        klass=Class(typed["klass"]),
        owner=typed["owner"] or None,
        terms=typed["terms"],
        now=clock.now(),
        claim=keys.claim(request, _body(form)),
    )


def _body(form: BookForm) -> dict[str, Any]:
    typed = {k: v for k, v in form.cleaned_data.items() if k not in ("ask", "start", "duration", "terms")}
    return typed | {"ask": ask_json(form.cleaned_data["ask"])}


@page
@require_safe
def room(request: PageRequest) -> HttpResponse:
    """The part of the form that says what there is; asked while the form is filled in."""
    form = _form(request, request.GET, fill=True)
    return render(request, "reservations/book.html", _context(request, form), part="room")


def _is_unsaid(request: PageRequest, form: BookForm) -> bool:
    """Whether booking it would come with something that the page has not told: then it is told first.

    That is so without script, and where the pool has changed since.
    """
    if request.POST.get("hold") or request.POST.get("wait"):
        return False
    room = _room(request, form)
    return room is not None and not room.told <= frozenset(request.POST.get("told", "").split())


def _page(
    request: PageRequest,
    form: BookForm,
    refused: Problem | None = None,
    times: offers.Times | None = None,
    *,
    ask: bool = False,
) -> HttpResponse:
    """The form with what was typed, and a new key: sending again what was refused is a new request.

    `ask`: something has to be read before it is sent again.
    """
    context = {**_context(request, form), "problem": refused, "key": keys.new(), "times": times, "ask": ask}
    if waiting.may_help(refused or (times.refused if times else None)):
        context["wait"] = waiting.wait_form(request)
    return render(request, "reservations/book.html", context, status=refused.status if refused else 200)


def _context(request: PageRequest, form: BookForm) -> dict[str, Any]:
    why = ""
    if not form.offered.teams:
        why = _("You are in no team that may book. A lead of a team can add you.")
    elif not form.offered.what:
        why = _("No GPU has been reported to this pool and is managed yet.")
    return {
        "form": form,
        "why_nothing": why,
        "room": None if why else _room(request, form),
        "classes": [(code, name, note) for code, (name, note) in words.CLASSES.items()],
        "zone": form.zone.key,
    }


def _room(request: PageRequest, form: BookForm) -> rooms.Room | None:
    if not form.is_valid():
        return None
    typed, now = form.cleaned_data, clock.now()
    pool = access.pool(request.user, typed["pool"])
    team = access.team_to_book(request.user, typed["team"])
    wanted = _wanted(_owner(request, team, typed["owner"]), team, pool, form, now)
    return rooms.room(pool=pool, team=team, wanted=wanted, starts_now=typed["start"] is None, now=now)


def _wanted(owner: User, team: Team, pool: Pool, form: BookForm, now: datetime) -> Wanted:
    """What a booking of the typed would be placed as."""
    typed = form.cleaned_data
    start = max(typed["start"] or now, now)
    period, klass = Period(start, start + typed["duration"]), Class(typed["klass"])
    return Wanted(
        typed["ask"],
        period,
        wishes.blocked(period, pool),
        klass,
        wishes.account(owner, team),
        owner_id=owner.pk,
        team_id=team.pk,
        firm=typed["terms"].firm,
        created=now,
    )


def _owner(request: PageRequest, team: Team, owner: str) -> User:
    """For whom it would be; one for whom nothing may be booked is refused on sending."""
    try:
        return wishes.owner_of(request.user, team, owner or None)
    except Refusal:
        return request.user


# --- What can be chosen -------------------------------------------------------


def _form(request: PageRequest, typed: QueryDict, *, fill: bool = False) -> BookForm:
    """`fill`: what is missing, or does not fit the chosen pool, becomes what the form shows at first."""
    pools = list(inventory.pools_visible_to(request.user))
    pool = next((one for one in pools if one.name == typed.get("pool")), pools[0] if pools else None)
    bookable = list(teams.to_book_for(request.user))
    what, names = _what(pool) if pool else ([], frozenset[str]())
    offered = Offered(
        teams=[(team.name, team.title or team.name) for team in bookable],
        pools=[(one.name, one.title or one.name) for one in pools],
        what=what,
        owners=_owners(request, bookable),
        names=names,
        shares=any(value.startswith("share:") for _group, ones in what for value, _label in ones),
        led=frozenset(team.name for team in _led(request, bookable)),
    )
    zone = timezone.get_current_timezone()
    assert isinstance(zone, ZoneInfo)
    return BookForm(_filled(typed, offered) if fill else typed, offered=offered, zone=zone)


def _filled(typed: QueryDict, offered: Offered) -> QueryDict:
    data = typed.copy()
    known = [value for _group, choices in offered.what for value, _label in choices]
    if data.get("what") not in known:
        data["what"] = known[0] if known else ""
    for name, choices in (("team", offered.teams), ("pool", offered.pools)):
        if choices:
            data.setdefault(name, choices[0][0])
    for name, value in (AT_FIRST | (AT_FIRST_OF_SHARES if offered.shares else {})).items():
        data.setdefault(name, value)
    return data


def _what(pool: Pool) -> tuple[Choices, frozenset[str]]:
    """What the pool offers, in groups: slices by model or of any, whole GPUs, shares; and names of slices."""
    rows = inventory.profiles(pool)
    groups: list[tuple[str, Any]] = []
    for model, of_model in groupby(rows, key=lambda row: row.model):
        options = [(f"mig:{row.name}@{model}", _slice_words(row)) for row in of_model]
        groups.append((_("MIG slices on %(model)s") % {"model": model}, options))
    shared = sorted({row.name for row in rows if sum(other.name == row.name for other in rows) > 1})
    if shared:
        groups.append((_("MIG slices on any model"), [(f"mig:{name}", name) for name in shared]))
    whole = [
        row.model for row in inventory.capacity(pool) if row.use == "whole" and row.total_gpus > row.observed
    ]
    if whole:
        groups.append((_("Whole GPUs"), [(f"gpu:{model}", _whole_words(model)) for model in whole]))
    shared_gpus = shares.offered(pool)
    if shared_gpus:
        groups.append((_("Shares of a GPU"), _shares(shared_gpus)))
    return groups, frozenset(row.name for row in rows)


def _slice_words(row: inventory.ProfileRow) -> str:
    """`1g.10gb – 1/8 of the memory, 9.8 GiB, 0.125 GPU`."""
    return _("%(name)s – %(size)s/%(grid)s of the memory, %(memory)s, %(charge)s") % {
        "name": row.name,
        "size": row.size,
        "grid": row.grid,
        "memory": gib(row.memory_mib) if row.memory_mib else _("memory not measured"),
        "charge": count_gpus(charge_milli(row.size, row.grid)),
    }


def _whole_words(model: str) -> str:
    known = mig.models().get(model)
    if known is None or known.total_memory_mib is None:
        return model
    return f"{model} – {gib(known.total_memory_mib)}"


def _shares(offered: Sequence[shares.Offer]) -> list[tuple[str, str]]:
    """Each model and kind, and before them each kind that several models have."""
    kinds = [one.sharing for one in offered]
    several = [kind for kind in Sharing if kinds.count(kind) > 1]
    anywhere = [(f"share:{kind}", _kind_words(_("any model"), kind)) for kind in several]
    return anywhere + [
        (f"share:{one.sharing}@{one.model}", _kind_words(_share_words(one), one.sharing)) for one in offered
    ]


def _kind_words(what: str, kind: Sharing) -> str:
    """`H100-80GB, up to 78.6 GiB – MPS: the driver keeps the limits`."""
    name, note = words.SHARINGS[kind]
    return _("%(what)s – %(name)s: %(note)s") % {"what": what, "name": name, "note": note}


def _share_words(one: shares.Offer) -> str:
    if not one.memory_mib:
        return one.model
    return _("%(model)s, up to %(memory)s") % {"model": one.model, "memory": gib(one.memory_mib)}


def _owners(request: PageRequest, bookable: Sequence[Team]) -> Choices:
    """For whom a lead may book: the other members and service accounts of the teams that are led."""
    led = _led(request, bookable)
    people = {one.username: one for team in led for one in teams.members(team) if one.pk != request.user.pk}
    return [(name, _person(one)) for name, one in sorted(people.items())]


def _led(request: PageRequest, bookable: Sequence[Team]) -> list[Team]:
    roles = teams.reach(request.user)
    return [team for team in bookable if roles.get(team.pk) == TeamRole.LEAD]


def _person(one: Any) -> str:
    name = one.get_full_name()
    shown = f"{name} ({one.username})" if name else one.username
    return _("%(name)s, service account") % {"name": shown} if one.kind == "service" else str(shown)
