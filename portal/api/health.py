"""Is it alive, is it ready, how is it: for probes and monitors, without names and without login."""

from __future__ import annotations

import dataclasses

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
    body = dataclasses.asdict(view)
    return answer(body, status=200 if view.database.ok else 503)
