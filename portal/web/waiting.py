"""The wait list on pages: joining it from the booking form, where one stands in it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.http import HttpResponse
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from pool.core.errors import Code
from pool.core.shapes import Class
from pool.core.states import State
from pool.queries import access, clock
from pool.services import explanations, lineup, reservations, waitlist
from pool.services.wishes import Asked
from portal import askwords, explainwords
from portal.htmx import PageRequest, render
from portal.web import keys
from portal.web.frame import page

if TYPE_CHECKING:
    from pool.models import Reservation
    from pool.services.lineup import Place
    from portal.errors import Problem
    from portal.web.forms import BookForm

#: What is said once it waits.
JOINED = gettext_lazy("On the wait list. You are told as soon as something comes of it.")
#: Hours of waiting that can be chosen, beside the time for which it is wanted.
HOURS = (4, 12, 24, 72, 168)
_WORDS: Mapping[int, Any] = {
    4: gettext_lazy("4 hours"),
    12: gettext_lazy("12 hours"),
    24: gettext_lazy("1 day"),
    72: gettext_lazy("3 days"),
    168: gettext_lazy("7 days"),
}


class WaitForm(forms.Form):
    """How it is waited for what the booking form says."""

    wait_for = forms.TypedChoiceField(
        label=gettext_lazy("Wait for at most"),
        choices=[(hours, _WORDS[hours]) for hours in HOURS],
        coerce=int,
        empty_value=None,
        required=False,
        initial=HOURS[2],
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    partial_ok = forms.BooleanField(
        label=gettext_lazy("Fewer pieces will do"),
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    asks_first = forms.BooleanField(
        label=gettext_lazy("Ask me first: keep it for 15 minutes until I accept"),
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )


def may_help(refused: Problem | None) -> bool:
    """Whether waiting may bring what was refused now, or a part of it."""
    if refused is None:
        return False
    several = refused.code == Code.NO_CAPACITY and refused.data.get("asked", 1) > 1
    return waitlist.may_help(refused.code, refused.data, partial_ok=several)


def wait_form(request: PageRequest) -> WaitForm:
    """With what was chosen, or at first with a day."""
    return WaitForm(request.POST if request.POST.get("wait_for") else None)


def join(request: PageRequest, form: BookForm) -> Reservation:
    """Wait for what the form says. Refuses as services.reservations.join does."""
    how = WaitForm(request.POST)
    how.is_valid()
    chosen, typed, now = how.cleaned_data, form.cleaned_data, clock.now()
    begin = max(typed["start"] or now, now)
    hours = chosen.get("wait_for") or HOURS[2]
    return reservations.join(
        asked=Asked(
            actor=request.user,
            team=typed["team"],
            pool=typed["pool"],
            title=typed["title"],
            ask=typed["ask"],
            start=typed["start"],
            end=None,
            duration=typed["duration"],
            klass=Class(typed["klass"]),
            owner=typed["owner"] or None,
            visibility="team",
            restartable=None,
            now=now,
            terms=typed["terms"],
        ),
        latest=begin + typed["duration"] + timedelta(hours=hours),
        partial_ok=chosen.get("partial_ok", False),
        asks_first=chosen.get("asks_first", False),
        claim=keys.claim(
            request, {k: str(v) for k, v in typed.items()} | {"wait": str(sorted(chosen.items()))}
        ),
    )


def places(rows: Iterable[Reservation], now: datetime) -> dict[UUID, Place]:
    """Where those of these that wait stand in the lines of their pools."""
    pools = {row.pool_id: row.pool for row in rows if row.state == State.WAITING}
    found: dict[UUID, Place] = {}
    for pool in pools.values():
        found |= lineup.places(pool, now)
    return found


@page
@require_safe
def explanation(request: PageRequest, pk: UUID) -> HttpResponse:
    """Which rule decided it, and the rows behind that; a page of its own without script."""
    row = access.reservation(request.user, pk)
    told = explanations.explain(user=request.user, row=row, now=clock.now())
    context = {
        "id": pk,
        "title": row.title or askwords.asked(row.ask),
        "told": told,
        "sentence": explainwords.sentence(told),
        "rows": [(one, askwords.asked(one.ask)) for one in told.rows.shown],
        "not_shown": explainwords.rows_sentence(told),
    }
    return render(request, "reservations/explanation.html", context, part="why")
