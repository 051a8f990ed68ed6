"""Pages of nodes and GPUs, and what operators switch on them. What is drawn on a GPU: gpu_view.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from pool.core.errors import Code, Invalid, Refusal
from pool.core.roles import Action
from pool.queries import access, clock, reservations, teams
from pool.queries import inventory as queries
from pool.queries.fragmentation import Now
from pool.services import adoption as adoptions
from pool.services import health
from pool.services import inventory as services
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.web import adoption, gpu_running, gpu_view
from portal.web.frame import done, page

if TYPE_CHECKING:
    from pool.models import Gpu, Node

PER_PAGE = 50
#: A clock that is further off than this has something wrong with it; reports take some seconds at most.
MUCH_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node in a list. `unknown_since` is set as soon as its reports are missing, unless it was retired:
    nobody waits for those."""

    row: Node
    models: str
    gpu_count: int
    managed: int
    unknown_since: datetime | None
    retired: bool
    age: timedelta | None
    frozen: bool
    update_needed: bool

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def skew(self) -> timedelta | None:
        """How far its clock was from ours when its last report came, either way; None: never heard."""
        return None if self.row.skew_ms is None else timedelta(milliseconds=abs(self.row.skew_ms))

    @property
    def skewed(self) -> bool:
        return self.skew is not None and self.skew >= MUCH_SKEW

    @property
    def received_at(self) -> datetime | None:
        return self.row.received_at


def node_card(row: Node) -> NodeCard:
    """The card of a node whose `gpus` are prefetched."""
    known = row.gpus.all()
    gpus = [gpu for gpu in known if gpu.retired_at is None]
    counted = Counter(gpu.model for gpu in gpus)
    unknown = queries.node_unknown(row)
    retired = queries.node_retired(row, list(known))
    return NodeCard(
        row=row,
        models=", ".join(f"{count} × {model}" for model, count in sorted(counted.items())),
        gpu_count=len(gpus),
        managed=sum(gpu.managed for gpu in gpus),
        unknown_since=(row.unknown_since or row.received_at) if unknown and not retired else None,
        retired=retired,
        age=clock.real_now() - row.received_at if row.received_at else None,
        frozen=row.frozen or row.agent_frozen or row.pool.frozen,
        update_needed=queries.update_needed(row),
    )


@page
@require_safe
def nodes(request: PageRequest) -> HttpResponse:
    """Every node, by name; `q` looks in names, `after` is the last name of the page before."""
    return render(request, "inventory/nodes.html", _listed(request), part="live")


@page
@require_safe
def agents(request: PageRequest) -> HttpResponse:
    """The agents of all nodes: their versions, what they can do, and how they are reached. As `nodes`."""
    return render(request, "inventory/agents.html", _listed(request), part="live")


def _listed(request: PageRequest) -> dict[str, Any]:
    wanted, after = request.GET.get("q", "").strip()[:63], request.GET.get("after", "")[:63]
    rows = queries.nodes_visible_to(request.user).prefetch_related("gpus")
    if "\0" not in wanted + after:
        rows = rows.filter(name__icontains=wanted, name__gt=after)
    found = list(rows[: PER_PAGE + 1])
    return {
        "nodes": [node_card(row) for row in found[:PER_PAGE]],
        "more": found[PER_PAGE - 1].name if len(found) > PER_PAGE else "",
        "q": wanted,
        "after": after,
    }


@page
@require_safe
def node(request: PageRequest, name: str) -> HttpResponse:
    return _node_page(request, name)


def _node_page(request: PageRequest, name: str, refused: Problem | None = None) -> HttpResponse:
    row = access.node(request.user, name)
    gpus = list(queries.gpus_visible_to(request.user).filter(node=row))
    grids = queries.gpu_grids(gpus, request.user)
    mine = _mine(request)
    context = {
        "node": row,
        "card": _card_of(row, gpus),
        "fragments": Now().of_node(row),
        "gpus": [gpu_view.card(gpu, grids[gpu.pk], mine) for gpu in gpus],
        "may_manage": access.can(request.user, Action.MANAGE_NODE),
        "ways": sorted({"advisory", row.access, *row.access_offered}),
        "problem": refused,
    }
    part = "" if refused else "live"
    return render(
        request, "inventory/node.html", context, part=part, status=refused.status if refused else 200
    )


def _card_of(row: Node, gpus: list[Gpu]) -> NodeCard:
    row._prefetched_objects_cache = {"gpus": gpus}  # type: ignore[attr-defined]
    return node_card(row)


@page
@require_safe
def gpu(request: PageRequest, uuid: str) -> HttpResponse:
    return _gpu_page(request, uuid)


def _gpu_page(
    request: PageRequest,
    uuid: str,
    refused: Problem | None = None,
    offered: adoption.Offer | None = None,
) -> HttpResponse:
    row = access.gpu(request.user, uuid)
    may_manage = access.can(request.user, Action.MANAGE_NODE)
    told = teams.sees_all(request.user)
    view = gpu_view.whole(row, queries.gpu_grid(row, request.user), _mine(request), told=told)
    seen = gpu_running.of_gpu(row, request.user, heard=queries.is_heard(row))
    context: dict[str, Any] = {
        "gpu": view,
        "fragments": Now().of_gpu(row),
        "seen": seen,
        "faults": seen.faults,
        "may_return": seen.may_return,
        "adoption": offered or adoption.offer(row, request.user),
        "holdings": queries.holdings(row, request.user),
        "may_manage": may_manage,
        "preview": gpu_view.preview(queries.preview_manage(row)) if may_manage and not row.managed else None,
        "problem": refused,
    }
    status = refused.status if refused else 422 if offered else 200
    part = "live" if status == 200 else ""
    return render(request, "inventory/gpu.html", context, part=part, status=status)


def _mine(request: PageRequest) -> frozenset[Any]:
    return frozenset(reservations.mine(request.user).values_list("pk", flat=True))


# --- What operators switch ----------------------------------------------------


@page
@require_POST
def freeze_node(request: PageRequest, name: str) -> HttpResponse:
    access.node(request.user, name)
    frozen = request.POST.get("frozen") == "1"
    try:
        _freeze(request, "node", name, frozen)
    except Refusal as refusal:
        return _node_page(request, name, _shown(refusal))
    done(request, _("The node is frozen.") if frozen else _("The node is thawed."))
    return HttpResponseRedirect(reverse("node", args=[name]))


@page
@require_POST
def freeze_gpu(request: PageRequest, uuid: str) -> HttpResponse:
    access.gpu(request.user, uuid)
    frozen = request.POST.get("frozen") == "1"
    try:
        _freeze(request, "gpu", uuid, frozen)
    except Refusal as refusal:
        return _gpu_page(request, uuid, _shown(refusal))
    done(request, _("The GPU is frozen.") if frozen else _("The GPU is thawed."))
    return HttpResponseRedirect(reverse("gpu", args=[uuid]))


def _freeze(request: PageRequest, target: Literal["gpu", "node"], name: str, frozen: bool) -> None:
    services.freeze(actor=request.user, target=target, id=name, frozen=frozen, now=clock.now())


@page
@require_POST
def manage_gpu(request: PageRequest, uuid: str) -> HttpResponse:
    access.gpu(request.user, uuid)
    managed = request.POST.get("managed") == "1"
    excluded = True if request.POST.get("excluded") == "1" else None
    try:
        services.set_managed(
            actor=request.user, gpus=[uuid], managed=managed, excluded=excluded, now=clock.now()
        )
    except Refusal as refusal:
        return _gpu_page(request, uuid, _shown(refusal))
    done(request, _("The portal manages this GPU.") if managed else _("This GPU is only observed."))
    return HttpResponseRedirect(reverse("gpu", args=[uuid]))


@page
@require_POST
def return_gpu(request: PageRequest, uuid: str) -> HttpResponse:
    access.gpu(request.user, uuid)
    try:
        health.give_back(actor=request.user, gpu=uuid, now=clock.now())
    except Refusal as refusal:
        return _gpu_page(request, uuid, _shown(refusal))
    done(request, _("The GPU is in service again."))
    return HttpResponseRedirect(reverse("gpu", args=[uuid]))


@page
@require_POST
def adopt_gpu(request: PageRequest, uuid: str) -> HttpResponse:
    """Make a booking of what runs there; whatever is wrong is said beside its field."""
    row = access.gpu(request.user, uuid)
    access.require(request.user, Action.MANAGE_NODE)
    offered = adoption.offer(row, request.user, request.POST)
    assert offered is not None
    if not offered.form.is_valid():
        return _gpu_page(request, uuid, offered=offered)
    try:
        made = adoptions.adopt(actor=request.user, gpu=uuid, now=clock.now(), **offered.form.asked())
    except Invalid as refusal:
        offered.form.refuse(refusal)
        return _gpu_page(request, uuid, offered=offered)
    except Refusal as refusal:
        return _gpu_page(request, uuid, _shown(refusal), offered)
    done(request, _("It is a booking now."))
    return HttpResponseRedirect(reverse("reservation", args=[made.pk]))


@page
@require_POST
def set_access(request: PageRequest, name: str) -> HttpResponse:
    access.node(request.user, name)
    chosen = request.POST.get("access", "")[:16]
    try:
        services.set_access(actor=request.user, node=name, access=chosen, now=clock.now())
    except Refusal as refusal:
        return _node_page(request, name, _shown(refusal))
    done(request, _("Holders on this node get their slices so from now on."))
    return HttpResponseRedirect(reverse("node", args=[name]))


def _shown(refusal: Refusal) -> Problem:
    """A refusal as it stands on the page; what is not permitted has a page of its own."""
    if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
        raise refusal
    return problem(refusal)
