"""What quota does not allow, in words: which rule, its numbers, and what may help. Used by `portal.errors`.

Amounts are told in GPUs, GPU-hours, GiB, hours and days; the data of the refusal keeps the exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words


class Said(NamedTuple):
    sentence: Words
    next_step: Words


_ASK = _("Ask for quota, choose another time, or release something.")
_LEND = _("Choose another time, ask the team's lead for quota, or join the wait list.")
_OTHER = _("Ask for something else, or ask an approver to change what one booking may be.")

#: Reason -> what is said; `asked`, `used` and `cap` come in the unit of the reason (_UNITS).
SAID: Mapping[str, Said] = {
    "over_cap": Said(_("%(asked)s GPU asked, %(used)s of %(cap)s in use at the busiest moment."), _ASK),
    "no_line": Said(_("The team has no quota for this in the pool; %(asked)s GPU asked."), _ASK),
    "over_memory": Said(
        _("%(asked)s GiB of GPU memory asked, %(used)s of %(cap)s in use at the busiest moment."), _ASK
    ),
    "firm_over_guaranteed": Said(
        _(
            "What cannot be taken back has to lie within the guaranteed: "
            "%(asked)s GPU asked, %(used)s of %(cap)s in use."
        ),
        _("Let it be taken back when its owner asks, ask for a larger guarantee, or choose another time."),
    ),
    "online_over_guaranteed": Said(
        _("Online work has to lie within the guaranteed: %(asked)s GPU asked, %(used)s of %(cap)s in use."),
        _("Ask for a larger guarantee, choose another time, or book it as another class."),
    ),
    "not_lent": Said(
        _("It would be borrowed, and what is free belongs to teams that do not lend it."), _LEND
    ),
    "borrowing_stopped": Said(
        _("It would be borrowed, and a team waits for what it is guaranteed; nothing is lent meanwhile."),
        _LEND,
    ),
    "over_budget": Said(
        _("%(asked)s GPU-hours asked, %(used)s of %(cap)s are reserved in that month."),
        _("Ask for a larger budget, ask for less, or choose another month."),
    ),
    "kind_not_allowed": Said(_("The team may not book this kind here, only: %(cap)s."), _OTHER),
    "piece_too_large": Said(_("One piece may be %(cap)s GPU at most; %(asked)s asked."), _OTHER),
    "too_many_gpus": Said(_("One booking may have %(cap)s GPUs at most; %(asked)s asked."), _OTHER),
    "too_long": Said(_("One booking may last %(cap)s hours at most; %(asked)s asked."), _OTHER),
    "too_far_ahead": Said(_("It may be booked %(cap)s hours ahead at most; %(asked)s asked."), _OTHER),
}


def _thousandths(value: Any) -> str:
    return f"{value / 1000:g}"


def _gib(value: Any) -> str:
    return f"{value / 1024:.4g}"


def _hours(value: Any) -> str:
    return f"{value / 60:.4g}"


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "over_memory": _gib,
    "kind_not_allowed": _plain,
    "too_many_gpus": _plain,
    "too_long": _hours,
    "too_far_ahead": _hours,
}


def said(data: Mapping[str, Any]) -> Said | None:
    """Sentence and next step for a QUOTA_EXCEEDED, with its numbers; None without a known reason."""
    known = SAID.get(str(data.get("reason")))
    if known is None:
        return None
    unit = _UNITS.get(str(data["reason"]), _thousandths)
    told = {"cap": data.get("budget"), **data} if "budget" in data else data
    numbers = {
        name: _plain("?") if told.get(name) is None else unit(told[name]) for name in ("asked", "used", "cap")
    }
    return Said(known.sentence % numbers, known.next_step)  # type: ignore[arg-type]
