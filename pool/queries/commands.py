"""Which GPUs may be commanded, and the commands that are open or were given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q, QuerySet

from pool.core.health import stale
from pool.models import Command, Gpu
from pool.queries import clock

#: No freeze at any level. What the node froze by itself counts, too.
NOT_FROZEN = Q(frozen=False, node__frozen=False, node__agent_frozen=False, node__pool__frozen=False)
#: Nobody else gives it out, or an operator has taken it from whoever does.
OURS = Q(node__managed_by=[]) | Q(excluded=True)
COMMANDABLE = NOT_FROZEN & OURS & Q(managed=True, retired_at=None)


@dataclass(frozen=True, slots=True)
class Addressee:
    """The node of a GPU, and the version that its agent speaks (0: it has not said).

    Not `heard`: it has missed three reports, or is not back yet.
    """

    node: str
    heard: bool
    wire: int


def commandable(gpu_ids: Iterable[int]) -> dict[int, Addressee]:
    """Of these GPUs, those that may be commanded now, with their nodes."""
    now = clock.real_now()
    rows = Gpu.objects.filter(COMMANDABLE, pk__in=list(gpu_ids))
    return {
        pk: Addressee(name, unknown is None and not stale(received_at, now, settings.REPORT_SECONDS), spoken)
        for pk, name, unknown, received_at, spoken in rows.values_list(
            "pk", "node__name", "node__unknown_since", "node__received_at", "node__wire"
        )
    }


def open_of_node(node_id: int) -> QuerySet[Command]:
    """The node's open commands with their GPUs, at most one a GPU."""
    return Command.objects.filter(node=node_id, state=Command.State.OPEN).select_related("gpu")


def of_gpu(gpu: Gpu, most: int = 20) -> QuerySet[Command]:
    """What the GPU was told, newest first."""
    return Command.objects.filter(gpu=gpu).order_by("-generation")[:most]
