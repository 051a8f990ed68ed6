"""The page on which an operator sees what would have to move for an ask, and has it moved.

The ask stands in the address, so that whoever was refused can send it to an operator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from pool.core.errors import Code, Refusal, invalid
from pool.core.period import duration_text, parse_duration, parse_instant
from pool.core.shapes import Ask, Class, ask_json, parse_ask
from pool.queries import clock, inventory
from pool.services import moves as services
from pool.services.moves import For, Found, Step
from portal.askwords import in_full
from portal.errors import problem
from portal.htmx import PageRequest, render
from portal.web import keys
from portal.web.defrag import place
from portal.web.frame import done, page

#: What of an address or a form says for what room is wanted.
FIELDS = ("team", "owner", "class", "start", "duration", "ask")


@dataclass(frozen=True, slots=True)
class Line:
    """One move in words."""

    reservation: object
    start: datetime
    before: tuple[str, ...]
    after: tuple[str, ...]


def address(typed: Mapping[str, Any]) -> str:
    """Where an operator sees what would have to move for a booking form's data."""
    ask: Ask = typed["ask"]
    fields = QueryDict(mutable=True)
    fields["team"], fields["class"] = typed["team"], typed["klass"]
    if typed.get("owner"):
        fields["owner"] = typed["owner"]
    if typed["start"] is not None:
        fields["start"] = typed["start"].isoformat()
    fields["duration"] = duration_text(typed["duration"])
    fields["ask"] = json.dumps(ask_json(ask), separators=(",", ":"))
    return f"{reverse('make-room', args=[typed['pool']])}?{fields.urlencode()}"


@page
@require_http_methods(["GET", "HEAD", "POST"])
def make_room(request: PageRequest, name: str) -> HttpResponse:
    """What would have to move; a POST of its `plan` moves it, as it was shown."""
    said = request.POST if request.method == "POST" else request.GET
    refused, found = None, None
    try:
        wish = _wish(name, said)
        if request.method == "POST":
            return _apply(request, wish)
        found = services.find(actor=request.user, wish=wish, now=clock.now())
    except Refusal as refusal:
        if refusal.code in (Code.NOT_FOUND, Code.FORBIDDEN):
            raise
        refused = problem(refusal)
        if refusal.code == Code.STALE:
            # What would move by now is shown at once.
            found = services.find(actor=request.user, wish=_wish(name, said), now=clock.now())
    context = {
        "name": name,
        "found": found,
        "what": in_full(ask_json(found.wanted.ask)) if found else "",
        "lines": [_line(found, step) for step in found.steps] if found else [],
        "said": [(field, said[field]) for field in FIELDS if field in said],
        "key": keys.new(),
        "problem": refused,
    }
    return render(request, "inventory/make_room.html", context, status=refused.status if refused else 200)


def _apply(request: PageRequest, wish: For) -> HttpResponse:
    claim = keys.claim(request, dict(request.POST.items()))
    key = request.POST.get("plan", "")
    moved = services.apply(actor=request.user, wish=wish, key=key, now=clock.now(), claim=claim)
    done(request, ngettext("%(n)s booking was moved.", "%(n)s bookings were moved.", moved) % {"n": moved})
    again = QueryDict(mutable=True)
    again.update({field: request.POST[field] for field in FIELDS if field in request.POST})
    return HttpResponseRedirect(f"{reverse('make-room', args=[wish.pool])}?{again.urlencode()}")


def _wish(name: str, said: QueryDict) -> For:
    """Refuses with INVALID for what no link of the booking page says."""
    try:
        ask = parse_ask(json.loads(said.get("ask", "")), "/ask", inventory.reported_names())
        klass = Class(said.get("class", Class.INTERACTIVE))
    except (ValueError, RecursionError):
        raise invalid("/ask", "malformed") from None
    start = said.get("start")
    return For(
        team=said.get("team", ""),
        pool=name,
        ask=ask,
        start=parse_instant(start, "/start") if start else None,
        duration=parse_duration(said.get("duration", ""), "/duration"),
        klass=klass,
        owner=said.get("owner") or None,
    )


def _line(found: Found, step: Step) -> Line:
    there = [(pick.gpu_id, pick.start, pick.size) for pick in step.move.picks]
    return Line(
        step.move.reservation,
        step.move.period.start,
        tuple(place(found.card(one[0]), *one[1:]) for one in step.before),
        tuple(place(found.card(one[0]), *one[1:]) for one in there),
    )
