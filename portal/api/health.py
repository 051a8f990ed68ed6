"""Is it alive, is it ready, how is it: for probes and monitors, without names and without login."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from pool.queries import health as queries
from portal.api.problems import answer, refuse
from portal.errors import DoorCode


@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """The process answers; nothing else is asked."""
    return answer({"status": "ok"})


@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """The database answers and no migration is missing; 503 otherwise."""
    try:
        pending = queries.migrations_pending()
    except Error:
        return refuse(DoorCode.NOT_READY)
    if pending:
        return refuse(DoorCode.NOT_READY, {"pending": pending})
    return answer({"status": "ok"})


@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """ok, degraded (200: people can still work) or down (503: the database is away)."""
    view = queries.health()
    return answer(shown(view), status=200 if view.database.ok else 503)


def shown(view: queries.HealthView) -> dict[str, Any]:
    """Figures only: the text of an error may name what strangers need not know."""
    return {
        "status": view.status,
        "database": {"ok": view.database.ok},
        "broker": {"ok": view.broker.ok},
        "workers": dataclasses.asdict(view.workers) if view.workers else None,
        "lanes": [
            {
                "name": lane.name,
                "ok": lane.ok,
                "age_s": lane.age_s,
                "took_ms": lane.took_ms,
                "failing": bool(lane.error),
            }
            for lane in view.lanes
        ],
        "agents": dataclasses.asdict(view.agents) if view.agents else None,
    }
