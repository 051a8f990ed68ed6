"""The page on which an operator sees what would be moved in a pool, before and after, and has it moved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from pool.core.defrag import Step
from pool.core.errors import Code, Refusal
from pool.core.fleet import Card
from pool.queries import clock
from pool.services import defrag as services
from pool.services.defrag import Found
from portal.errors import problem
from portal.htmx import PageRequest, render
from portal.web.frame import done, page
from portal.web.tags import slices


@dataclass(frozen=True, slots=True)
class Line:
    """One move in words; `won_milli` in thousandths of GPU-hours."""

    reservation: object
    start: datetime
    before: tuple[str, ...]
    after: tuple[str, ...]
    won_milli: float


@page
@require_http_methods(["GET", "HEAD", "POST"])
def defragmentation(request: PageRequest, name: str) -> HttpResponse:
    """What would be moved; a POST of its `plan` moves it, as it was shown."""
    refused = None
    if request.method == "POST":
        key = request.POST.get("plan", "")
        try:
            moved = services.apply(actor=request.user, pool=name, key=key, now=clock.now())
        except Refusal as refusal:
            if refusal.code in (Code.NOT_FOUND, Code.FORBIDDEN):
                raise
            refused = problem(refusal)
        else:
            said = ngettext("%(n)s booking was moved.", "%(n)s bookings were moved.", moved) % {"n": moved}
            done(request, said)
            return HttpResponseRedirect(reverse("defragmentation", args=[name]))
    found = services.find(actor=request.user, pool=name, now=clock.now())
    context = {
        "pool": found.pool,
        "plan": found.plan,
        "key": found.key,
        "lines": [_line(found, step) for step in found.plan.steps],
        "problem": refused,
    }
    return render(
        request, "inventory/defragmentation.html", context, status=refused.status if refused else 200
    )


def _line(found: Found, step: Step) -> Line:
    there = [(pick.gpu_id, pick.start, pick.size) for pick in step.move.picks]
    return Line(
        step.move.reservation,
        step.move.period.start,
        tuple(place(found.card(one[0]), *one[1:]) for one in step.before),
        tuple(place(found.card(one[0]), *one[1:]) for one in there),
        step.won,
    )


def place(card: Card, start: int, size: int) -> str:
    """`dgx-01 GPU 3, slices 0-3`: where something is, without its slices where it has all."""
    where = _("%(node)s GPU %(index)s") % {"node": card.node.name, "index": card.index}
    return where if size == card.grid else f"{where}, {slices((start, size))}"
