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

from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.queries import access, clock, reservations
from pool.queries import inventory as queries
from pool.services import inventory as services
from portal.errors import Problem, problem
from portal.htmx import PageRequest, render
from portal.web import gpu_view
from portal.web.frame import done, page

if TYPE_CHECKING:
    from pool.models import Gpu, Node

PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node in a list. `unknown_since` is set as soon as its reports are missing."""

    row: Node
    models: str
    gpu_count: int
    managed: int
    unknown_since: datetime | None
    age: timedelta | None
    frozen: bool
    update_needed: bool

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def received_at(self) -> datetime | None:
        return self.row.received_at


def node_card(row: Node) -> NodeCard:
    """The card of a node whose `gpus` are prefetched."""
    gpus = [gpu for gpu in row.gpus.all() if gpu.retired_at is None]
    counted = Counter(gpu.model for gpu in gpus)
    unknown = queries.node_unknown(row)
    return NodeCard(
        row=row,
        models=", ".join(f"{count} × {model}" for model, count in sorted(counted.items())),
        gpu_count=len(gpus),
        managed=sum(gpu.managed for gpu in gpus),
        unknown_since=(row.unknown_since or row.received_at) if unknown else None,
        age=clock.real_now() - row.received_at if row.received_at else None,
        frozen=row.frozen or row.agent_frozen or row.pool.frozen,
        update_needed=queries.update_needed(row),
    )


@page
@require_safe
def nodes(request: PageRequest) -> HttpResponse:
    """Every node, by name; `q` looks in names, `after` is the last name of the page before."""
    wanted, after = request.GET.get("q", "").strip()[:63], request.GET.get("after", "")[:63]
    rows = queries.nodes_visible_to(request.user).prefetch_related("gpus")
    if "\0" not in wanted + after:
        rows = rows.filter(name__icontains=wanted, name__gt=after)
    found = list(rows[: PER_PAGE + 1])
    context = {
        "nodes": [node_card(row) for row in found[:PER_PAGE]],
        "more": found[PER_PAGE - 1].name if len(found) > PER_PAGE else "",
        "q": wanted,
        "after": after,
    }
    return render(request, "inventory/nodes.html", context, part="live")


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
        "gpus": [gpu_view.card(gpu, grids[gpu.pk], mine) for gpu in gpus],
        "may_manage": access.can(request.user, Action.MANAGE_NODE),
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


def _gpu_page(request: PageRequest, uuid: str, refused: Problem | None = None) -> HttpResponse:
    row = access.gpu(request.user, uuid)
    may_manage = access.can(request.user, Action.MANAGE_NODE)
    view = gpu_view.whole(row, queries.gpu_grid(row, request.user), _mine(request))
    context: dict[str, Any] = {
        "gpu": view,
        "holdings": queries.holdings(row, request.user),
        "may_manage": may_manage,
        "preview": gpu_view.preview(queries.preview_manage(row)) if may_manage and not row.managed else None,
        "problem": refused,
    }
    part = "" if refused else "live"
    return render(
        request, "inventory/gpu.html", context, part=part, status=refused.status if refused else 200
    )


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
    try:
        services.set_managed(actor=request.user, gpus=[uuid], managed=managed, now=clock.now())
    except Refusal as refusal:
        return _gpu_page(request, uuid, _shown(refusal))
    done(request, _("The portal manages this GPU.") if managed else _("This GPU is only observed."))
    return HttpResponseRedirect(reverse("gpu", args=[uuid]))


def _shown(refusal: Refusal) -> Problem:
    """A refusal as it stands on the page; what is not permitted has a page of its own."""
    if refusal.code in (Code.FORBIDDEN, Code.NOT_FOUND):
        raise refusal
    return problem(refusal)
