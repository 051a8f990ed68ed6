"""Forms of the pages: what was typed, as the domain takes it. Plain Forms; who may do what is the domain's.

A form keeps what was typed, also when the domain refuses it later (`refuse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pool.core.calendar import local_instant
from pool.core.errors import Code, Invalid, Refusal
from pool.core.period import parse_instant
from pool.core.shapes import MAX_COUNT, Ask, Class, check_class, parse_ask
from pool.core.terms import ORDINARY
from portal.errors import Problem, problem, problem_for
from portal.web import placefields, termfields, words
from portal.web.placefields import PlaceFields
from portal.web.tags import offset
from portal.web.termfields import TermFields

#: A group of choices as `<optgroup>` takes it, or a plain choice.
Choices = Sequence[tuple[str, Any]]

#: JSON pointer of the domain -> field of the form.
FIELD_OF: Mapping[str, str] = {
    "/team": "team",
    "/pool": "pool",
    "/ask": "what",
    "/ask/profile": "what",
    "/ask/models": "what",
    "/ask/count": "count",
    "/ask/same_node": "same_node",
    "/ask/sharing": "what",
    "/ask/memory_mib": "share_memory",
    "/ask/memory_pct": "share_memory",
    "/ask/compute": "share_compute",
    "/ask/compute/guaranteed": "share_compute",
    "/ask/compute/limit": "share_limit",
    "/ask/accept_not_enforced": "accept_not_enforced",
    "/start": "start_date",
    "/duration": "amount",
    "/end": "amount",
    "/class": "klass",
    "/title": "title",
    "/owner": "owner",
    **placefields.POINTERS,
    **termfields.POINTERS,
}


@dataclass(frozen=True, slots=True)
class Offered:
    """What one person's form can choose from."""

    teams: Choices
    pools: Choices
    what: Choices
    owners: Choices
    #: What may be asked for by a name that only a driver printed.
    names: frozenset[str] = frozenset()
    #: Whether shares of a GPU are among it.
    shares: bool = False
    #: Teams that the person leads.
    led: frozenset[str] = frozenset()


#: What is typed only of a share.
_OF_SHARES = ("share_memory", "share_unit", "share_compute", "share_limit")


def _select(**more: Any) -> forms.Select:
    return forms.Select(attrs={"class": "form-select", **more})


def _text(kind: str, **more: Any) -> forms.TextInput:
    return forms.TextInput(attrs={"class": "form-control", "type": kind, **more})


class BookForm(PlaceFields, TermFields):
    """A booking as it is typed: team, what, when, for how long."""

    team = forms.ChoiceField(label=gettext_lazy("Team"), widget=_select())
    pool = forms.ChoiceField(label=gettext_lazy("Pool"), widget=_select())
    what = forms.ChoiceField(label=gettext_lazy("Slice, share or GPU"), widget=_select())
    count = forms.IntegerField(
        label=gettext_lazy("How many"),
        initial=1,
        widget=_text("number", min="1", max=str(MAX_COUNT), inputmode="numeric"),
    )
    share_memory = forms.FloatField(
        label=gettext_lazy("Memory of the share"),
        required=False,
        widget=_text("number", min="0.25", step="any", inputmode="decimal"),
    )
    share_unit = forms.ChoiceField(
        label=gettext_lazy("Unit of memory"),
        choices=list(words.MEMORY_UNITS.items()),
        required=False,
        widget=_select(),
    )
    share_compute = forms.IntegerField(
        label=gettext_lazy("Compute in percent"),
        help_text=gettext_lazy("Guaranteed wherever limits are kept."),
        required=False,
        widget=_text("number", min="0", max="100", inputmode="numeric"),
    )
    share_limit = forms.IntegerField(
        label=gettext_lazy("Compute at most, in percent"),
        help_text=gettext_lazy("Only batch work may take more than is guaranteed; it yields to the others."),
        required=False,
        widget=_text("number", min="1", max="100", inputmode="numeric"),
    )
    accept_not_enforced = forms.BooleanField(
        label=gettext_lazy("I accept that time slicing keeps neither limit"),
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    same_node = forms.BooleanField(
        label=gettext_lazy("All on one node"),
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    begin = forms.ChoiceField(
        label=gettext_lazy("Start"),
        choices=[("now", gettext_lazy("Now")), ("at", gettext_lazy("At a set time"))],
        initial="now",
    )
    start_date = forms.CharField(label=gettext_lazy("Date"), required=False, widget=_text("date"))
    start_time = forms.CharField(label=gettext_lazy("Time"), required=False, widget=_text("time"))
    start_choice = forms.CharField(required=False)
    amount = forms.IntegerField(
        label=gettext_lazy("For how long"),
        initial=2,
        min_value=1,
        max_value=9999,
        widget=_text("number", min="1", max="9999", inputmode="numeric"),
    )
    unit = forms.ChoiceField(
        label=gettext_lazy("Unit"), choices=list(words.UNITS.items()), initial="hours", widget=_select()
    )
    klass = forms.ChoiceField(
        label=gettext_lazy("Class of work"),
        choices=[(code, name) for code, (name, _note) in words.CLASSES.items()],
        initial="interactive",
    )
    title = forms.CharField(
        label=gettext_lazy("Title"),
        required=False,
        max_length=200,
        widget=_text("text", maxlength="200", autocomplete="off"),
    )
    owner = forms.ChoiceField(label=gettext_lazy("For whom"), required=False, widget=_select())

    def __init__(self, *args: Any, offered: Offered, zone: ZoneInfo, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offered = offered
        self.zone = zone
        #: The two instants that the typed time can mean, as (ISO, words), when it is asked which.
        self.questions: list[tuple[str, str]] = []
        self._choices("team", offered.teams)
        self._choices("pool", offered.pools)
        self._choices("what", offered.what)
        self._choices("owner", [("", gettext_lazy("Myself")), *offered.owners])

    def _choices(self, name: str, choices: Choices) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(choices)

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if "amount" in data and "unit" in data:
            data["duration"] = timedelta(**{data["unit"]: data["amount"]})
        try:
            data["ask"] = self._ask(data)
        except Invalid as refusal:
            self.refuse(problem(refusal))
        data["start"] = self._start(data)
        self._settle(data)
        return data

    def _settle(self, data: dict[str, Any]) -> None:
        if (data.get("priority") or 0) > ORDINARY and data.get("team") not in self.offered.led:
            self.add_error("priority", _("Only a lead of the team may say more than 50."))
            return
        try:
            data["terms"] = termfields.terms(data)
        except Invalid as refusal:
            self.refuse(problem(refusal))

    def _ask(self, data: Mapping[str, Any]) -> Ask | None:
        """`mig:1g.10gb`, `mig:1g.10gb@H100-80GB`, `gpu:H100-80GB` or `share:mps@H100-80GB`, as an ask."""
        if "what" not in data or "count" not in data:
            return None
        kind, _colon, rest = data["what"].partition(":")
        if kind != "share":
            for name in _OF_SHARES:  # these fields are not seen then
                self.errors.pop(name, None)
        elif not data.keys() >= set(_OF_SHARES):
            return None
        name, _at, model = rest.partition("@")
        raw: dict[str, Any] = {"kind": kind, "count": data["count"], "same_node": data["same_node"]}
        raw |= placefields.of_ask(data)
        if kind == "mig":
            raw |= {"profile": name, "model": model or None}
        elif kind == "share":
            raw |= {"sharing": name, "model": model or None, **_share(data)}
        else:
            raw |= {"model": name}
        ask = parse_ask(raw, reported_names=self.offered.names)
        check_class(ask, Class(data.get("klass", Class.BATCH)))
        return ask

    def _start(self, data: Mapping[str, Any]) -> datetime | None:
        """None means now, or that an error or a question stands beside the field."""
        if data.get("begin") != "at":
            return None
        day, clock = data.get("start_date"), data.get("start_time")
        if not (day and clock):
            self.add_error("start_date", _("A start at a set time needs a date and a time."))
            return None
        try:
            return local_instant(f"{day}T{clock}", self.zone, "/start")
        except Invalid as refusal:
            return self._which(refusal, data.get("start_choice", ""))
        except Refusal:
            self.add_error("start_date", _("This is no date and time."))
            return None

    def _which(self, refusal: Invalid, chosen: str) -> datetime | None:
        """The instant that was chosen among those that the typed time can mean; else the question."""
        error = refusal.errors[0]
        choices = error.data.get("choices", ())
        if chosen in choices:
            return datetime.fromisoformat(chosen)
        readings = [datetime.fromisoformat(text).astimezone(self.zone) for text in choices]
        self.questions = [
            (text, f"{at:%H:%M} ({offset(at)})") for text, at in zip(choices, readings, strict=True)
        ]
        if error.code == "ambiguous_time":
            sentence = _("The clocks go back then: this time comes twice. Which one is meant?")
            self.add_error("start_date", sentence)
        elif error.code == "no_such_time":
            sentence = _("The clocks go forward then: this time does not exist. Which one is meant?")
            self.add_error("start_date", sentence)
        else:
            self.refuse(problem(refusal))
        return None

    def refuse(self, refused: Problem) -> None:
        """Put each wrong field's sentence beside the field; what has no field stays in the problem."""
        for fault in refused.fields:
            field = FIELD_OF.get(fault["pointer"])
            if field and fault["detail"] not in self.errors.get(field, []):
                self.add_error(field, fault["detail"])


def _share(data: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed of a share, as an ask; what stays empty is told as missing by the domain."""
    memory = data.get("share_memory")
    in_percent = data.get("share_unit") == "percent"
    size = None if memory is None else round(memory if in_percent else memory * 1024)
    return {
        "memory_pct" if in_percent else "memory_mib": size,
        "compute": {"guaranteed": data.get("share_compute"), "limit": data.get("share_limit")},
        "accept_not_enforced": data.get("accept_not_enforced", False),
    }


class ExtendForm(forms.Form):
    """By how much a reservation is extended, counted from the end that its page showed.

    Two clicks on the same page thus ask for the same end, never for twice as much.
    """

    known_end = forms.CharField()
    by = forms.IntegerField(required=False, min_value=1)
    amount = forms.IntegerField(required=False, min_value=1, max_value=999)
    unit = forms.ChoiceField(required=False, choices=list(words.UNITS.items()))

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        amount, unit = data.get("amount"), data.get("unit") or "hours"
        if data.get("by"):
            by = timedelta(minutes=data["by"])
        elif amount:
            by = timedelta(**{unit: amount})
        else:
            raise forms.ValidationError(_("Say by how much it is to be extended."))
        try:
            data["end"] = parse_instant(data.get("known_end", ""), "/end") + by
            data["added"] = by
        except Refusal:
            raise forms.ValidationError(
                _("Load the page again: it does not say when the reservation ends.")
            ) from None
        return data


class FilterForm(forms.Form):
    """Filters of the list of reservations; what makes no sense is left out."""

    group = forms.ChoiceField(
        required=False,
        choices=[
            ("open", gettext_lazy("Now and ahead")),
            ("now", gettext_lazy("Now")),
            ("ahead", gettext_lazy("Ahead")),
            ("waiting", gettext_lazy("On the wait list")),
            ("over", gettext_lazy("Over")),
            ("all", gettext_lazy("All of them")),
        ],
    )
    team = forms.CharField(required=False, max_length=63)
    mine = forms.BooleanField(required=False)
    before = forms.UUIDField(required=False)


def summary(form: forms.Form, refused: Problem | None = None) -> Problem:
    """What stands above a refused form: each wrong field with a link to it, or the domain's reason."""
    base = refused or problem_for(Code.INVALID, {})
    fields = [
        {"label": form[name].label, "id": form[name].id_for_label, "detail": detail}
        for name, details in form.errors.items()
        if name in form.fields
        for detail in details
    ]
    elsewhere = [fault for fault in base.fields if fault["pointer"] not in FIELD_OF]
    return replace(base, fields=[*fields, *elsewhere])


def first_error(form: forms.Form) -> Problem:
    """As `summary`, for a small form without room for sentences beside its fields."""
    detail = next((str(errors[0]) for errors in form.errors.values()), "")
    return replace(problem_for(Code.INVALID, {}), detail=detail)
