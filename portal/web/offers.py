"""Offers on the booking page: times for what is typed, each with a button that holds it, without script."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy

from pool.core.errors import Code, Refusal
from pool.core.period import Period, parse_instant
from pool.core.shapes import Class
from pool.queries import clock
from pool.services import offers, reservations
from portal.errors import Problem, problem
from portal.htmx import PageRequest
from portal.web import keys, make_room, words
from portal.web.borrowed import spells
from portal.web.tags import written

if TYPE_CHECKING:
    from pool.core.admission import Loan
    from pool.core.offers import Offer
    from pool.models import Reservation
    from portal.web.forms import BookForm

#: What is said once something is held.
KEPT = gettext_lazy("Held for you. Book it before the time is up.")

#: Between the parts of what a button sends; no instant has it.
_BAR = "|"


@dataclass(frozen=True, slots=True)
class Line:
    """One offer. `value` is what its button sends, `said` its start; `until` None: no end in sight."""

    value: str
    said: str
    start: datetime
    end: datetime | None
    good_for: tuple[str, ...]
    until: datetime | None
    can_go_on: bool
    charge_milli: int
    #: When what of it may be taken back.
    loans: tuple[Loan, ...]
    needs_approval: bool


@dataclass(frozen=True, slots=True)
class Times:
    """`refused` says why there is no line, and what fits instead; `moves`: how many would have to move."""

    lines: tuple[Line, ...]
    refused: Problem | None
    moves: int = 0
    #: Where an operator sees them.
    link: str = ""


def times(request: PageRequest, form: BookForm) -> Times:
    """Offers for what the form says, from its start on."""
    typed = form.cleaned_data
    try:
        found = offers.find(
            actor=request.user,
            team=typed["team"],
            pool=typed["pool"],
            ask=typed["ask"],
            duration=typed["duration"],
            start=typed["start"],
            klass=Class(typed["klass"]),
            owner=typed["owner"] or None,
            terms=typed["terms"],
            now=clock.now(),
        )
    except Refusal as refusal:
        if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
            raise
        return Times((), problem(refusal))
    if found.refusal is None:
        return Times(tuple(_line(one, found.approve_above_milli) for one in found.offers), None)
    return Times(
        lines=(),
        refused=problem(found.refusal),
        moves=len(found.shift.moves) if found.shift else 0,
        link=make_room.address(typed) if found.shift else "",
    )


def _line(one: Offer, above: int | None) -> Line:
    until, milli = one.extendable_until, sum(pick.charge_milli for pick in one.picks)
    return Line(
        value=_value(one),
        said=written(one.period.start, "short"),
        start=one.period.start,
        end=one.period.end,
        good_for=tuple(str(words.GOODS[good]) for good in one.good_for),
        until=until,
        can_go_on=until is None or one.period.end is None or until > one.period.end,
        charge_milli=milli,
        loans=spells(one.borrowed),
        needs_approval=above is not None and milli > above,
    )


def _value(one: Offer) -> str:
    parts = (one.period.start, one.period.end, one.free_until)
    return _BAR.join(part.isoformat() if part else "" for part in parts)


def hold(request: PageRequest, form: BookForm, value: str) -> Reservation:
    """Hold at the time of the button what the form says. Refuses as services.reservations.hold does."""
    typed = form.cleaned_data
    period, free_until = _read(value)
    return reservations.hold(
        actor=request.user,
        team=typed["team"],
        pool=typed["pool"],
        title=typed["title"],
        ask=typed["ask"],
        start=period.start,
        end=period.end,
        klass=Class(typed["klass"]),
        owner=typed["owner"] or None,
        free_until=free_until,
        terms=typed["terms"],
        now=clock.now(),
        claim=keys.claim(request, _body(form, value)),
    )


def _read(value: str) -> tuple[Period, datetime | None]:
    start, end, wished = [*value.split(_BAR), "", "", ""][:3]
    period = Period(parse_instant(start, "/start"), parse_instant(end, "/end"))
    return period, parse_instant(wished, "/free_until") if wished else None


def _body(form: BookForm, value: str) -> dict[str, Any]:
    typed = {k: str(v) for k, v in form.cleaned_data.items()}
    return typed | {"hold": value}
