"""Faults of GPUs as doors show them: what is wrong, since when, and whether they may come back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from pool.core.health import Action
from pool.models import Fault, Gpu

#: Closed ones that are shown beside the open.
CLOSED = 10


@dataclass(frozen=True, slots=True)
class FaultView:
    """`good` of `needed` reports in a row were good since it last came.

    `reset`: "" where none is called for; waiting (until the GPU is empty),
    asked, done. `may_return`: seen well often enough, so it can be given back.
    """

    kind: str
    xid: int | None
    action: str
    since: datetime
    last_at: datetime
    count: int
    good: int
    needed: int
    reset: str
    cleared_at: datetime | None
    cleared_by: str

    @property
    def open(self) -> bool:
        return self.cleared_at is None

    @property
    def may_return(self) -> bool:
        return self.open and self.good >= self.needed


def of_gpu(gpu: Gpu) -> list[FaultView]:
    """The open ones, oldest first, then those that were closed last."""
    rows = _rows().filter(gpu=gpu)
    is_open = rows.filter(cleared_at=None).order_by("since", "pk")
    closed = rows.exclude(cleared_at=None).order_by("-cleared_at", "-pk")[:CLOSED]
    return [_view(row) for row in (*is_open, *closed)]


def may_return(faults: Collection[FaultView]) -> bool:
    """Whether a GPU with these faults may be given back: something is open, and all of that is well."""
    still = [fault for fault in faults if fault.open]
    return bool(still) and all(fault.may_return for fault in still)


def _rows() -> QuerySet[Fault]:
    return Fault.objects.select_related("gpu__node__pool", "gpu__state", "cleared_by")


def _view(row: Fault) -> FaultView:
    return FaultView(
        kind=row.kind,
        xid=row.xid,
        action=row.action,
        since=row.since,
        last_at=row.last_at,
        count=row.count,
        good=row.good,
        needed=row.gpu.node.pool.good_probes,
        reset=_reset(row),
        cleared_at=row.cleared_at,
        cleared_by=row.cleared_by.username if row.cleared_by else "",
    )


def _reset(row: Fault) -> str:
    if row.action != Action.RESET:
        return ""
    if row.reset is None:
        return "waiting"
    state = getattr(row.gpu, "state", None)
    done = 0 if state is None else int(state.health.get("reset") or 0)
    return "done" if done >= row.reset else "asked"
