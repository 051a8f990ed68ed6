"""The fields of the booking form that say where the pieces have to lie, and what each takes of its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from pool.core.shapes import MAX_COUNT, MAX_CPU_MILLI, MAX_NODE_MIB, Spread

#: JSON pointer of the domain -> field of the form.
POINTERS: Mapping[str, str] = {
    "/ask/same_nvlink_domain": "same_nvlink_domain",
    "/ask/spread": "spread",
    "/ask/segment": "segment",
    "/ask/node_cpu_milli": "node_cpu",
    "/ask/node_memory_mib": "node_memory",
}

_MIB = 1024
_MILLI = 1000


def _number(**more: Any) -> forms.TextInput:
    return forms.TextInput(attrs={"class": "form-control", "type": "number", "step": "any", **more})


def _check() -> forms.CheckboxInput:
    return forms.CheckboxInput(attrs={"class": "form-check-input"})


class PlaceFields(forms.Form):
    """Most people need none of them, so the page keeps them folded up."""

    same_nvlink_domain = forms.BooleanField(
        label=gettext_lazy("All in one NVLink domain"),
        help_text=gettext_lazy("Whole GPUs that reach one another over NVLink, also on several nodes."),
        required=False,
        widget=_check(),
    )
    spread = forms.BooleanField(
        label=gettext_lazy("Each on another node"),
        help_text=gettext_lazy("No two of them fail with one node."),
        required=False,
        widget=_check(),
    )
    segment = forms.IntegerField(
        label=gettext_lazy("Size of a segment"),
        help_text=gettext_lazy("So many whole GPUs together in one block; nodes where each is on another."),
        required=False,
        min_value=1,
        max_value=MAX_COUNT,
        widget=_number(min="1", max=str(MAX_COUNT), inputmode="numeric", step="1"),
    )
    node_cpu = forms.FloatField(
        label=gettext_lazy("CPUs of the node with each"),
        required=False,
        min_value=0,
        max_value=MAX_CPU_MILLI / _MILLI,
        widget=_number(min="0", inputmode="decimal"),
    )
    node_memory = forms.FloatField(
        label=gettext_lazy("Memory of the node with each, in GiB"),
        required=False,
        min_value=0,
        max_value=MAX_NODE_MIB / _MIB,
        widget=_number(min="0", inputmode="decimal"),
    )

    @property
    def place_checks(self) -> list[forms.BoundField]:
        """Those of them that are ticked."""
        return [self["same_nvlink_domain"], self["spread"]]

    @property
    def places_said(self) -> bool:
        """Whether something of it was typed, or is wrong: then it is shown unfolded."""
        return any(self[name].value() or name in self.errors for name in POINTERS.values())


def of_ask(data: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed of it, as fields of an ask; what is empty is left out."""
    cpu, memory = data.get("node_cpu"), data.get("node_memory")
    said = {
        "same_nvlink_domain": data.get("same_nvlink_domain") or None,
        "spread": Spread.NODE.value if data.get("spread") else None,
        "segment": data.get("segment"),
        "node_cpu_milli": round(cpu * _MILLI) if cpu else None,
        "node_memory_mib": round(memory * _MIB) if memory else None,
    }
    return {name: value for name, value in said.items() if value is not None}
