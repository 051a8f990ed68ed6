"""Adopting foreign use from a GPU's page: the form beside what runs there without a booking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pool.core.errors import Invalid
from pool.core.roles import Action
from pool.queries import access, teams
from portal.errors import problem
from portal.web.tags import slices

if TYPE_CHECKING:
    from django.http import QueryDict

    from pool.models import Gpu, User

#: JSON pointer of the domain -> field of the form.
FIELD_OF: Mapping[str, str] = {
    "/first": "first",
    "/team": "team",
    "/owner": "owner",
    "/title": "title",
    "/duration": "hours",
    "/end": "hours",
}
#: A year, as for any booking.
MOST_HOURS = 24 * 366


def _select() -> forms.Select:
    return forms.Select(attrs={"class": "form-select"})


def _text(kind: str = "text", **more: str) -> forms.TextInput:
    return forms.TextInput(attrs={"class": "form-control", "type": kind, "autocomplete": "off", **more})


class AdoptForm(forms.Form):
    """What is adopted, for whom and for how long."""

    first = forms.TypedChoiceField(label=gettext_lazy("What"), coerce=int, widget=_select())
    team = forms.ChoiceField(label=gettext_lazy("Team"), widget=_select())
    owner = forms.CharField(
        label=gettext_lazy("Whose"),
        help_text=gettext_lazy("The login of a member of the team."),
        max_length=150,
        widget=_text(maxlength="150"),
    )
    hours = forms.IntegerField(
        label=gettext_lazy("For how many hours"),
        initial=24,
        min_value=1,
        max_value=MOST_HOURS,
        widget=_text("number", min="1", max=str(MOST_HOURS), inputmode="numeric"),
    )
    title = forms.CharField(
        label=gettext_lazy("Title"), required=False, max_length=200, widget=_text(maxlength="200")
    )

    def __init__(self, data: QueryDict | None, *, places: list[tuple[int, str]], names: list[str]) -> None:
        super().__init__(data)
        for name, choices in (("first", places), ("team", [(one, one) for one in names])):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def asked(self) -> dict[str, Any]:
        """What `services.adoption.adopt` takes of it; only when valid."""
        data = self.cleaned_data
        return {
            "first": data["first"],
            "team": data["team"],
            "owner": data["owner"].strip(),
            "title": data["title"].strip(),
            "duration": timedelta(hours=data["hours"]),
        }

    def refuse(self, refusal: Invalid) -> None:
        """What the domain says against single fields, beside them."""
        for error in problem(refusal).fields:
            self.add_error(FIELD_OF.get(error["pointer"]), error["detail"])


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU with foreign use, and the form that adopts it."""

    uuid: str
    form: AdoptForm


def offer(gpu: Gpu, viewer: User, data: QueryDict | None = None) -> Offer | None:
    """None where `viewer` may not adopt, or where nothing is foreign and nothing was sent. Takes a GPU with
    its blockers."""
    foreign = [one for one in gpu.blockers.all() if one.kind == "foreign"]
    if not access.can(viewer, Action.MANAGE_NODE) or not (foreign or data is not None):
        return None
    places = [(one.span.lower, _place(one)) for one in foreign]
    names = list(teams.visible_to(viewer).order_by("name").values_list("name", flat=True))
    return Offer(gpu.uuid, AdoptForm(data, places=places, names=names))


def _place(one: Any) -> str:
    span = slices((one.span.lower, one.span.upper - one.span.lower))
    return _("%(what)s (%(span)s)") % {"what": one.detail or _("a process"), "span": span}
