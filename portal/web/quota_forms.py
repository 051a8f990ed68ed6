"""Forms about quota: asking for it, deciding on it, and a line with all that stands on it.

GPUs, GiB and GPU-hours as people type them; what is written keeps thousandths and MiB.
Days are whole ones in the viewer's zone: until the end of the last one. A day that was shown and
is left as it was stands for the instant that it was shown for (`exact`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pool.core.calendar import local_instant
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.services.quota import KINDS, Conditions
from pool.services.quota_requests import TEXT_LIMIT, Amounts
from portal.errors import Problem, problem_for
from portal.web.forms import Choices

if TYPE_CHECKING:
    from pool.models import QuotaLine

#: JSON pointer of the domain -> field of a form here.
FIELD_OF: Mapping[str, str] = {
    "/team": "team",
    "/pool": "pool",
    "/model": "model",
    "/guaranteed_milli": "guaranteed",
    "/cap_milli": "cap",
    "/lend_milli": "lend",
    "/memory_mib": "memory",
    "/budget_milli_hours": "hours",
    "/start": "first",
    "/end": "last",
    "/justification": "justification",
    "/answer": "answer",
    "/unit": "unit",
    "/unit_size": "unit_size",
    "/weight": "weight",
    "/kinds": "kinds",
    "/largest_milli": "largest",
    "/most_gpus": "most_gpus",
    "/longest_minutes": "longest",
    "/ahead_minutes": "ahead",
    "/renews": "renews",
}

#: Field -> the day that is shown in it, and the instant that it stands for.
Exact = Mapping[str, tuple[date, datetime]]

MIB = 1024
UNITS = (
    ("slots", gettext_lazy("any slices")),
    ("gpu", gettext_lazy("whole GPUs")),
    ("node", gettext_lazy("GPUs of one node")),
)
KIND_NAMES = {
    "mig": gettext_lazy("MIG slices"),
    "share": gettext_lazy("shares"),
    "gpu": gettext_lazy("whole GPUs"),
}


def number(
    label: Any, hint: Any = "", *, required: bool = False, step: str = "any", digits: int = 3
) -> forms.DecimalField:
    """An amount that is not negative, with at most so many digits behind the point."""
    attrs = {"class": "form-control", "type": "number", "min": "0", "step": step, "inputmode": "decimal"}
    return forms.DecimalField(
        label=label,
        help_text=hint,
        required=required,
        min_value=0,
        max_digits=12,
        decimal_places=digits if step == "any" else 0,
        widget=forms.TextInput(attrs=attrs),
    )


def text(label: Any, *, required: bool = True, rows: int = 3) -> forms.CharField:
    attrs = {"class": "form-control", "rows": str(rows)}
    return forms.CharField(
        label=label, required=required, max_length=TEXT_LIMIT, widget=forms.Textarea(attrs=attrs)
    )


def day(label: Any) -> forms.DateField:
    return forms.DateField(
        label=label,
        widget=forms.DateInput(attrs={"class": "form-control", "type": "date"}, format="%Y-%m-%d"),
    )


def choice(label: Any, choices: Choices = (), *, required: bool = True) -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label,
        choices=choices,
        required=required,
        widget=forms.Select(attrs={"class": "form-select"}),
    )


class _Form(forms.Form):
    def refuse(self, refused: Problem) -> None:
        """Put each wrong field's sentence beside the field; what has no field stays in the problem."""
        for fault in refused.fields:
            field = FIELD_OF.get(fault["pointer"], "")
            if field in self.fields:
                self.add_error(field, fault["detail"])

    def problem(self, refused: Problem | None = None) -> Problem:
        """What stands above the form: each wrong field with a link to it, or the domain's reason."""
        base = refused or problem_for(Code.INVALID, {})
        fields = [
            {"label": self[name].label, "id": self[name].id_for_label, "detail": detail}
            for name, details in self.errors.items()
            if name in self.fields
            for detail in details
        ]
        known = {pointer for pointer, field in FIELD_OF.items() if field in self.fields}
        elsewhere = [fault for fault in base.fields if fault["pointer"] not in known]
        return Problem(
            base.status, base.code, base.title, base.detail, base.next_step, base.data, [*fields, *elsewhere]
        )


class _AmountsForm(_Form):
    """What is asked or granted, on top of the team's lines, from day to day."""

    cap = number(gettext_lazy("GPUs at once"), gettext_lazy("A slice counts as its part of a GPU."))
    guaranteed = number(
        gettext_lazy("Guaranteed of these"),
        gettext_lazy("What is not guaranteed can only be borrowed, and may be taken back."),
    )
    memory = number(gettext_lazy("GPU memory in GiB"), digits=4)
    hours = number(gettext_lazy("GPU-hours a month"))
    first = day(gettext_lazy("From"))
    last = day(gettext_lazy("Until the end of"))

    def __init__(self, *args: Any, exact: Exact | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.exact: Exact = exact or {}

    def amounts(self) -> Amounts:
        data = self.cleaned_data
        return Amounts(
            milli(data["guaranteed"]),
            milli(data["cap"]),
            round((data["memory"] or 0) * MIB),
            milli(data["hours"]),
        )

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if data.get("first") and data.get("last"):
            try:
                data["valid"] = self._valid(data["first"], data["last"])
            except Refusal:
                self.add_error(
                    "last", _("The last day is before the first, or the clocks skip its midnight.")
                )
        return data

    def _valid(self, first: date, last: date) -> Period:
        """Whole days, but for those that stand for an instant."""
        days, begins, ends = whole_days(first, last), self.exact.get("first"), self.exact.get("last")
        start = begins[1] if begins and begins[0] == first else days.start
        return Period(start, ends[1] if ends and ends[0] == last else days.end)


class RequestForm(_AmountsForm):
    """Asking for quota."""

    team = choice(gettext_lazy("Team"))
    pool = choice(gettext_lazy("Pool"))
    model = choice(gettext_lazy("GPU model"), required=False)
    justification = text(gettext_lazy("What is it for?"), rows=5)
    renews = forms.IntegerField(required=False, widget=forms.HiddenInput)
    field_order = ("team", "pool", "model", "cap", "guaranteed", "memory", "hours", "first", "last")

    def __init__(
        self, *args: Any, teams: Choices, pools: Choices, models: Iterable[str], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.fields["team"].choices = teams  # type: ignore[attr-defined]
        self.fields["pool"].choices = pools  # type: ignore[attr-defined]
        self.fields["model"].choices = [("", _("any")), *((one, one) for one in models)]  # type: ignore[attr-defined]


class DecideForm(_AmountsForm):
    """What an approver grants; it may differ from what was asked."""

    answer = text(gettext_lazy("Your answer"), required=False)
    version = forms.IntegerField(widget=forms.HiddenInput)


class DenyForm(_Form):
    answer = text(gettext_lazy("Why not?"))
    version = forms.IntegerField(widget=forms.HiddenInput)


class CommentForm(_Form):
    text = text(gettext_lazy("Say something"))


class LineForm(_Form):
    """A line with all that stands on it. What is empty is not limited."""

    cap = number(gettext_lazy("Cap in GPUs"), required=True)
    guaranteed = number(gettext_lazy("Guaranteed in GPUs"), required=True)
    unit = choice(gettext_lazy("Guaranteed in"), UNITS)
    unit_size = forms.IntegerField(
        label=gettext_lazy("GPUs of one node together"),
        min_value=1,
        max_value=1024,
        initial=1,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    lend = number(gettext_lazy("Lent of the guaranteed"), gettext_lazy("Empty: all of it."))
    weight = number(gettext_lazy("Weight for the fair share"), required=True, step="1")
    memory = number(gettext_lazy("GPU memory in GiB"), digits=4)
    hours = number(gettext_lazy("GPU-hours a month"))
    kinds = forms.MultipleChoiceField(
        label=gettext_lazy("One booking may be"),
        help_text=gettext_lazy("None: all of them."),
        choices=[(kind, KIND_NAMES[kind]) for kind in KINDS],
        required=False,
        widget=forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"}),
    )
    largest = number(gettext_lazy("Largest piece in GPUs"))
    most_gpus = number(gettext_lazy("GPUs in one booking"), step="1")
    longest = number(gettext_lazy("Longest booking in hours"))
    ahead = number(gettext_lazy("Booked at most so many hours ahead"))
    version = forms.IntegerField(widget=forms.HiddenInput)
    confirmed = forms.BooleanField(required=False, widget=forms.HiddenInput)

    def conditions(self) -> Conditions:
        data = self.cleaned_data
        return Conditions(
            lend_milli=milli_or_none(data["lend"]),
            unit=data["unit"],
            unit_size=data["unit_size"],
            weight=int(data["weight"]),
            memory_mib=None if data["memory"] is None else round(data["memory"] * MIB),
            budget_milli_hours=milli_or_none(data["hours"]),
            kinds=tuple(data["kinds"]),
            largest_milli=milli_or_none(data["largest"]),
            most_gpus=None if data["most_gpus"] is None else int(data["most_gpus"]),
            longest_minutes=None if data["longest"] is None else round(data["longest"] * 60),
            ahead_minutes=None if data["ahead"] is None else round(data["ahead"] * 60),
        )


def line_values(row: QuotaLine) -> dict[str, Any]:
    """What a line's form shows before anything is typed."""
    return {
        "cap": plain(row.cap_milli),
        "guaranteed": plain(row.guaranteed_milli),
        "unit": row.unit,
        "unit_size": row.unit_size,
        "lend": plain(row.lend_milli),
        "weight": row.weight,
        "memory": plain(row.memory_mib, MIB, 4),
        "hours": plain(row.budget_milli_hours),
        "kinds": list(row.kinds),
        "largest": plain(row.largest_milli),
        "most_gpus": row.most_gpus,
        "longest": plain(row.longest_minutes, 60),
        "ahead": plain(row.ahead_minutes, 60),
        "version": row.version,
    }


def amounts_values(row: Any, valid: Any) -> dict[str, Any]:
    """What is asked or granted by `row`, as a form shows it."""
    shown = exact(valid)
    return {
        "cap": plain(row.cap_milli),
        "guaranteed": plain(row.guaranteed_milli),
        "memory": plain(row.memory_mib or None, MIB, 4),
        "hours": plain(row.budget_milli_hours or None),
        "first": shown["first"][0],
        "last": shown["last"][0],
    }


def exact(valid: Any) -> Exact:
    """The first and the last day of it in the viewer's zone, and where in them it begins and ends."""
    last = timezone.localtime(valid.upper - timedelta(microseconds=1)).date()
    return {"first": (timezone.localtime(valid.lower).date(), valid.lower), "last": (last, valid.upper)}


def going_on(valid: Any) -> Exact:
    """From where it ends: the day of that, and that instant."""
    return {"first": (timezone.localtime(valid.upper).date(), valid.upper)}


def milli(value: Decimal | None) -> int:
    return int((value or 0) * 1000)


def milli_or_none(value: Decimal | None) -> int | None:
    return None if value is None else milli(value)


def plain(value: int | None, by: int = 1000, digits: int = 3) -> str | None:
    """A number without needless digits; None stays empty."""
    return None if value is None else f"{value / by:.{digits}f}".rstrip("0").rstrip(".")


def whole_days(first: date, last: date) -> Period:
    """From the first midnight to the one after the last day, in the viewer's zone."""
    zone = timezone.get_current_timezone()
    tz = zone if isinstance(zone, ZoneInfo) else ZoneInfo("UTC")
    return Period(_midnight(first, tz, "/start"), _midnight(last + timedelta(days=1), tz, "/end"))


def _midnight(of: date, tz: ZoneInfo, pointer: str) -> datetime:
    return local_instant(f"{of.isoformat()}T00:00", tz, pointer)
