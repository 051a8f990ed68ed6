"""The first page: how much there is, what is mine, which nodes are heard, and the one next action."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import F
from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from pool.core.roles import Action
from pool.core.states import State
from pool.queries import access, clock, inventory, reservations, teams
from pool.queries.fragmentation import Figure, Now
from pool.queries.inventory import CapacityRow
from pool.queries.reservations import ReservationView
from portal.askwords import asked
from portal.htmx import PageRequest, render
from portal.web import inbox, svg
from portal.web.frame import page
from portal.web.inventory import node_card
from portal.web.tags import lasts

if TYPE_CHECKING:
    from pool.models import Pool

#: So many nodes are shown, those that are not heard from first; the rest is on their own page.
NODES = 8
MINE = 6


@dataclass(frozen=True, slots=True)
class Capacity:
    """GPUs of one model and use in thousandths; each is counted under one of the parts."""

    model: str
    use: str
    total_gpus: int
    used_milli: int
    free_milli: int
    unknown_milli: int
    frozen_milli: int
    closed_milli: int
    bar: tuple[svg.Part, ...]


@dataclass(frozen=True, slots=True)
class PoolCard:
    pool: Pool
    rows: list[Capacity]
    fragments: Figure
    blocks: int | None


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do now. `action` "" has no button."""

    title: str
    sentence: str
    action: str = ""
    href: str = ""
    tone: str = "info"


@dataclass(frozen=True, slots=True)
class Mine:
    id: object
    title: str
    what: str
    when: str
    state: str


@page
@require_safe
def overview(request: PageRequest) -> HttpResponse:
    now = clock.now()
    mine = [reservations.as_resource(row) for row in reservations.mine(request.user)[:MINE]]
    fragments = Now(now)
    pools = [
        PoolCard(
            pool,
            [_capacity(row) for row in inventory.capacity(pool)],
            fragments.of_pool(pool),
            fragments.blocks(pool),
        )
        for pool in inventory.pools_visible_to(request.user)
    ]
    unheard_first = F("unknown_since").asc(nulls_last=True)
    nodes = inventory.nodes_visible_to(request.user).prefetch_related("gpus").order_by(unheard_first, "name")
    rows = [row for pool in pools for row in pool.rows]
    context = {
        "pools": pools,
        "mine": [_mine(one, now) for one in mine],
        "nodes": [node_card(row) for row in nodes[:NODES]],
        "may_move": access.can(request.user, Action.MANAGE_POOL),
        "next": _next_step(request, mine, rows, now),
        "told": inbox.newest_unread(request),
    }
    return render(request, "overview/index.html", context, part="live")


def _capacity(row: CapacityRow) -> Capacity:
    unknown, frozen = 1000 * row.unknown, 1000 * row.frozen
    closed = 1000 * (row.lost + row.observed)
    usable = 1000 * row.usable
    used = min(row.usable_held_milli, usable)
    blocked = min(row.usable_blocked_milli, usable - used)
    closed += blocked
    parts = (("used", used), ("unknown-part", unknown + closed), ("frozen-part", frozen))
    return Capacity(
        model=row.model,
        use=row.use,
        total_gpus=row.total_gpus,
        used_milli=used,
        free_milli=usable - used - blocked,
        unknown_milli=unknown,
        frozen_milli=frozen,
        closed_milli=closed,
        bar=svg.bar(1000 * row.total_gpus, parts),
    )


def _mine(one: ReservationView, now: datetime) -> Mine:
    return Mine(one.id, one.title, asked(one.ask), _when(one, now), one.state)


def _when(one: ReservationView, now: datetime) -> str:
    if one.start > now:
        return _("in %(time)s") % {"time": lasts(one.start - now)}
    if one.end is None:
        return _("open-ended")
    return _("%(time)s left") % {"time": lasts(one.end - now)}


def _next_step(
    request: PageRequest, mine: Sequence[ReservationView], rows: Sequence[Capacity], now: datetime
) -> NextStep:
    """The first of these that holds: what runs, what starts, what is missing, what comes; else to book."""
    for one in _in_state(mine, State.ACTIVE):
        sentence = _("%(what)s, %(when)s.") % {"what": asked(one.ask), "when": _when(one, now)}
        return NextStep(_("Yours is running"), sentence, _("Connect"), _page_of(one) + "#connect", "good")
    for one in _in_state(mine, State.STARTING):
        return NextStep(_("Yours is starting"), asked(one.ask) + ".", _("Watch it"), _page_of(one))
    missing = _missing(request, rows)
    if missing is not None:
        return missing
    for one in _in_state(mine, State.SCHEDULED):
        sentence = _("%(what)s, %(when)s.") % {"what": asked(one.ask), "when": _when(one, now)}
        return NextStep(_("Your next one is set"), sentence, _("Look at it"), _page_of(one))
    return NextStep(
        _("You hold nothing"),
        _("Say what you need and for how long; you see the free count before you book."),
        _("Book a slice"),
        reverse("book"),
    )


def _missing(request: PageRequest, rows: Sequence[Capacity]) -> NextStep | None:
    """What stands between this person and a booking."""
    may_manage = access.can(request.user, Action.MANAGE_NODE)
    if not rows:
        sentence = (
            _("Make a join code and let the agent on a node use it.")
            if may_manage
            else _("No node has joined yet. An operator lets nodes join.")
        )
        return NextStep(_("There is nothing to book yet"), sentence, tone="warn")
    if may_manage and any(row.closed_milli for row in rows) and not any(row.free_milli for row in rows):
        sentence = _("GPUs have been reported that are only observed. Let the portal manage them.")
        return NextStep(_("Nothing can be booked yet"), sentence, _("To the nodes"), reverse("nodes"), "warn")
    if teams.to_book_for(request.user).exists():
        return None
    if may_manage:
        sentence = _("Look whether every node is heard, and what stands in the way on its GPUs.")
        return NextStep(_("You look after the inventory"), sentence, _("To the nodes"), reverse("nodes"))
    sentence = _("You are in no team that may book. A lead of a team can add you.")
    return NextStep(_("You can look around"), sentence)


def _in_state(mine: Iterable[ReservationView], state: State) -> list[ReservationView]:
    return [one for one in mine if one.state == state]


def _page_of(one: ReservationView) -> str:
    return reverse("reservation", args=[one.id])
