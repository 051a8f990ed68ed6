"""Why a reservation is as it is, in words: rule -> sentence with its numbers. For pages and REST alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from pool.core.errors import Code
from portal.errors import problem_for, shown_as

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

    from pool.services.explanations import Explanation

#: Rule -> the sentences; the first whose numbers are all known is said.
SENTENCES: Mapping[str, tuple[Words, ...]] = {
    "next": (_("It has the next turn: it is given what it asks for within seconds."),),
    "window": (_("Its earliest start has not come: %(earliest)s."),),
    "turn": (_("It would fit, but those before it in the line come first, and it would delay them."),),
    "offer": (_("It is offered. It is held until %(hold_until)s for its owner to accept."),),
    "approval": (
        _("It needs an approver's word by %(approve_by)s; without one it lapses."),
        _("It needs an approver's word."),
    ),
    "recall": (
        _(
            "%(inside_gpu)s GPU of what its team is guaranteed lie where alone another team finds what it is "
            "guaranteed, and that team asked for it. It is taken back at %(recall_at)s; the rest of its time "
            "goes to the head of the wait list, and gets as much in another place."
        ),
        _(
            "It had borrowed capacity, and a team asked for what it is guaranteed. It is taken back at "
            "%(recall_at)s; the rest of its time goes to the head of the wait list."
        ),
        _(
            "It had borrowed capacity, and a team asked for what it is guaranteed. The rest of its time went "
            "to the head of the wait list."
        ),
    ),
    "borrowed": (
        _(
            "%(borrowed_gpu)s of its %(charge_gpu)s GPU is borrowed beyond what its team is guaranteed, and "
            "may be taken back after a notice."
        ),
    ),
    "granted": (_("It lies within what its team is guaranteed: nobody takes that amount from it."),),
    "event": (_("Nothing but what happened to it decided this; its events tell more."),),
}
#: Where borrowing is stopped or nothing is lent.
LENDING: Mapping[str, Words] = {
    "borrowing_stopped": _(
        "It could only borrow, and a team waits for what it is guaranteed: until that team has it, nobody "
        "borrows there."
    ),
    "not_lent": _(
        "It would have to borrow. What is free is kept for teams that are guaranteed it and do not lend it."
    ),
}


def sentence(told: Explanation) -> str:
    """What decided, in the active language; times in the active zone."""
    numbers = dict(told.numbers)
    if told.rule == "room":
        return problem_for(Code.NO_CAPACITY, numbers).detail
    if told.rule == "quota":
        return problem_for(Code.QUOTA_EXCEEDED, numbers).detail
    if told.rule == "lending":
        return str(LENDING.get(str(numbers.get("reason")), LENDING["not_lent"]))
    return _said(SENTENCES[told.rule], _shown(numbers))


def rows_sentence(told: Explanation) -> str:
    """How many of the rows behind it are not shown, and what they count; "" where there are none."""
    rows = told.rows
    if not rows.others:
        return ""
    words = ngettext(
        "and %(n)s reservation that is not yours to see, %(gpus)s GPU",
        "and %(n)s reservations that are not yours to see, %(gpus)s GPU together",
        rows.others,
    )
    return words % {"n": rows.others, "gpus": f"{rows.others_milli / 1000:g}"}


def _said(sentences: tuple[Words, ...], numbers: Mapping[str, Any]) -> str:
    for one in sentences:
        try:
            return str(one) % numbers
        except KeyError:
            continue
    return str(sentences[-1])


def _shown(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Thousandths of a GPU as GPUs, instants as people read them; what is not known is left out."""
    found: dict[str, Any] = {}
    for name, value in numbers.items():
        if name.endswith("_milli") and isinstance(value, int):
            found[name.removesuffix("_milli") + "_gpu"] = f"{value / 1000:g}"
        elif value is not None:
            found[name] = shown_as(name, value)
    return found
