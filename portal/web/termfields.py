"""Fields of the booking form for its terms: may it be taken back, with which word before, what for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from pool.core.shapes import Class
from pool.core.terms import (
    HIGHEST,
    JUSTIFICATION_LIMIT,
    LONGEST_GRACE,
    ORDINARY,
    Preempt,
    Terms,
    settle,
)
from pool.core.wire import SIGNALS

#: JSON pointer of the domain -> field of the form.
POINTERS: Mapping[str, str] = {
    "/preemptible": "firm",
    "/priority": "priority",
    "/preempt": "preempt_signal",
    "/preempt/signal": "preempt_signal",
    "/preempt/grace": "preempt_grace",
    "/justification": "justification",
}

_MINUTES = int(LONGEST_GRACE.total_seconds()) // 60


def _number(**more: Any) -> forms.TextInput:
    kind = {"class": "form-control", "type": "number", "inputmode": "numeric", "step": "1"}
    return forms.TextInput(attrs={**kind, **more})


class TermFields(forms.Form):
    """Most people need none of them, so the page keeps them folded up."""

    firm = forms.BooleanField(
        label=gettext_lazy("Never taken back"),
        help_text=gettext_lazy(
            "Then all of it has to lie within what the team is guaranteed. Online work is always so."
        ),
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        help_text=gettext_lazy("0 to 100, ordinarily 50. The lower gives way first; above 50 a lead books."),
        required=False,
        min_value=0,
        max_value=HIGHEST,
        widget=_number(min="0", max=str(HIGHEST), placeholder=str(ORDINARY)),
    )
    preempt_signal = forms.ChoiceField(
        label=gettext_lazy("Signal before it is taken back"),
        choices=[("", gettext_lazy("none")), *((one, one) for one in SIGNALS)],
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    preempt_grace = forms.IntegerField(
        label=gettext_lazy("So many minutes before"),
        help_text=gettext_lazy("Time for its programs to save their work; 5 unless said otherwise."),
        required=False,
        min_value=1,
        max_value=_MINUTES,
        widget=_number(min="1", max=str(_MINUTES)),
    )
    justification = forms.CharField(
        label=gettext_lazy("What it is for"),
        help_text=gettext_lazy("Read by whoever approves it, where it needs that."),
        required=False,
        max_length=JUSTIFICATION_LIMIT,
        widget=forms.Textarea(attrs={"class": "form-control", "rows": "2"}),
    )

    @property
    def terms_said(self) -> bool:
        """Whether something of it was typed, or is wrong: then it is shown unfolded."""
        return any(self[name].value() or name in self.errors for name in set(POINTERS.values()))


#: How long before, where only the signal is said.
_GRACE = timedelta(minutes=5)


def terms(data: Mapping[str, Any]) -> Terms:
    """What was typed of it, settled. Refuses with INVALID what contradicts itself or the class."""
    signal, minutes, priority = (data.get(name) for name in ("preempt_signal", "preempt_grace", "priority"))
    grace = timedelta(minutes=minutes) if minutes else _GRACE
    said = Terms(
        preemptible=False if data.get("firm") else None,
        priority=ORDINARY if priority is None else priority,
        preempt=Preempt(signal, grace) if signal else None,
        justification=data.get("justification") or "",
    )
    return settle(said, Class(data.get("klass", Class.BATCH)))


def typed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as a request carries them."""
    return {name: data.get(name) for name in sorted(set(POINTERS.values()))}
