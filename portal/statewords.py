"""The states of a reservation in words, and what a state does not allow: sentence and next step.

Used by `portal.errors` and by the pages; which states allow what is decided in the services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from pool.core.states import TERMINAL, State

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words


NAMES: Mapping[str, Words] = {
    "held": _("Held"),
    "pending_approval": _("Waiting for approval"),
    "waiting": _("On the wait list"),
    "scheduled": _("Scheduled"),
    "starting": _("Starting"),
    "active": _("Active"),
    "paused": _("Between its windows"),
    "ending": _("Ending"),
    "ended": _("Ended"),
    "cancelled": _("Cancelled"),
    "denied": _("Denied"),
    "preempted": _("Preempted"),
    "expired": _("Expired"),
    "failed": _("Failed"),
}


class Said(NamedTuple):
    sentence: Words
    next_step: Words


_UNGRANTED = frozenset({State.HELD, State.PENDING_APPROVAL, State.WAITING})

#: What is refused by the state of something else than a reservation: (doing, state).
_ELSE: Mapping[tuple[str, str | None], Said] = {
    ("give_back", None): Said(
        _("There is no fault of it to be over."),
        _("Nothing needs to be done; look at what else stands against it."),
    ),
    ("extend", "recalled"): Said(
        _("It was borrowed and is being taken back for a team that needs what it is guaranteed."),
        _("The rest of its time waits at the head of the wait list."),
    ),
    ("adopt", "not_managed"): Said(
        _("The GPU is not managed; what runs on it cannot be adopted."),
        _("Manage the GPU first; what is on it stays as it is."),
    ),
}

#: What was asked -> what is said when it is over, is ending, has not been granted.
_WORDS: Mapping[str, tuple[Said, Said, Said]] = {
    "release": (
        Said(
            _("It is over already (%(state)s); nothing is left to release."),
            _("Nothing needs to be done. To use GPUs again, make a new reservation."),
        ),
        Said(
            _("It is ending already; its slices are being taken down."),
            _("Wait until it has ended; its events tell what it waits for."),
        ),
        Said(
            _("It has not been granted (%(state)s); nothing is there to release."),
            _("Wait until it is granted, or read it again to see its state."),
        ),
    ),
    "extend": (
        Said(
            _("It is over already (%(state)s); no time can be added."),
            _("Make a new reservation for more time."),
        ),
        Said(
            _("It is ending already; no time can be added."),
            _("Make a new reservation for more time."),
        ),
        Said(
            _("It has not been granted (%(state)s); no time can be added."),
            _("Wait until it is granted, or make a new reservation."),
        ),
    ),
    "confirm": (
        Said(
            _("It is over already (%(state)s); nothing is left to confirm."),
            _("Look at the offers again and hold another, or book it anew."),
        ),
        Said(
            _("It is ending already; nothing is left to confirm."),
            _("Make a new reservation to use GPUs again."),
        ),
        Said(
            _("Nothing is held for it (%(state)s)."),
            _("Wait until it is granted, or read it again to see its state."),
        ),
    ),
}


def said(data: Mapping[str, Any]) -> Said | None:
    """The words for `doing` in this `state`; None where the table's general ones must do."""
    doing, state = data.get("doing", ""), data.get("state")
    words = _WORDS.get(doing)
    if words is None or (doing, state) in _ELSE:
        return _ELSE.get((doing, state))
    over, ending, ungranted = words
    if state in TERMINAL:
        return over
    if state == State.ENDING:
        return ending
    return ungranted if state in _UNGRANTED else None
