"""Faults of a GPU over REST: what is wrong with it, and giving it back once it is well.

What a fault calls for, and when it is over, is decided in pool.services.health.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import Code, Refusal
from pool.queries import access, clock
from pool.queries import faults as queries
from pool.queries.faults import FaultView
from pool.services import health
from portal.api import wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.times import instant


class Faults(Door):
    """The open ones, oldest first, then those that were closed last."""

    def get(self, request: Request, uuid: str) -> HttpResponse:
        return _listed(queries.of_gpu(access.gpu(user_of(request), uuid)))


class Return(Door):
    """Put a GPU into use again; a second time is refused, since nothing is open."""

    def post(self, request: Request, uuid: str) -> HttpResponse:
        wishes.nothing(json_object(request))
        team = bound_team(request)
        if team is not None:
            raise Refusal(Code.FORBIDDEN, token_team=team.name)
        gpu = access.gpu(user_of(request), uuid)
        health.give_back(actor=user_of(request), gpu=gpu.uuid, now=clock.now())
        return _listed(queries.of_gpu(gpu))


def _listed(found: list[FaultView]) -> HttpResponse:
    return answer(
        {"results": [_fault(one) for one in found], "next": None, "may_return": queries.may_return(found)}
    )


def _fault(view: FaultView) -> dict[str, Any]:
    """`good` of `needed` good reports in a row; `reset` null: none is called for, or waiting, asked, done."""
    return {
        "kind": view.kind,
        "xid": view.xid,
        "action": view.action,
        "since": instant(view.since),
        "last_at": instant(view.last_at),
        "count": view.count,
        "good": view.good,
        "needed": view.needed,
        "reset": view.reset or None,
        "may_return": view.may_return,
        "cleared_at": instant(view.cleared_at),
        "cleared_by": view.cleared_by or None,
    }
