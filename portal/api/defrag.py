"""Defragmentation of a pool over REST: what would be moved, and moving it. For operators.

GET shows a plan under its name; POST with that name carries it out, as it was
shown or not at all. What moves, and what never does: pool/core/defrag.py.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.defrag import Step
from pool.core.errors import Code, Refusal
from pool.core.fleet import Card
from pool.core.fragmentation import Figure
from pool.queries import clock
from pool.services import defrag as services
from pool.services.defrag import Found
from portal.api import wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.reservations import claim_of
from portal.api.times import instant


class Defragmentation(Door):
    """`plan` null: nothing is worth moving. POST takes an Idempotency-Key; it tells how many were `moved`."""

    def get(self, request: Request, name: str) -> HttpResponse:
        unbound(request)
        return answer(_found(services.find(actor=user_of(request), pool=name, now=clock.now())))

    def post(self, request: Request, name: str) -> HttpResponse:
        unbound(request)
        body = json_object(request)
        moved = services.apply(
            actor=user_of(request),
            pool=name,
            key=wishes.plan(body),
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return answer({"moved": moved})


def unbound(request: Request) -> None:
    """A token of one team moves no bookings of others."""
    team = bound_team(request)
    if team is not None:
        raise Refusal(Code.FORBIDDEN, token_team=team.name)


def _found(found: Found) -> dict[str, Any]:
    """`before` and `after`: of the nodes concerned, while what is moved lasts."""
    return {
        "pool": found.pool.name,
        "plan": found.key or None,
        "before": _hours(found.plan.before) if found.key else None,
        "after": _hours(found.plan.after) if found.key else None,
        "moves": [_move(found, step) for step in found.plan.steps],
    }


def _hours(figure: Figure) -> dict[str, Any]:
    return {
        "free_gpu_hours": round(figure.free / 1000, 6),
        "unusable_gpu_hours": round(figure.lost / 1000, 6),
        "share": None if figure.share is None else round(figure.share, 6),
    }


def _move(found: Found, step: Step) -> dict[str, Any]:
    move = step.move
    there = [(pick.gpu_id, pick.start, pick.size) for pick in move.picks]
    return {
        "reservation": str(move.reservation),
        "start": instant(move.period.start),
        "from": [place(found.card(one[0]), *one[1:]) for one in step.before],
        "to": [place(found.card(one[0]), *one[1:]) for one in there],
        "won_gpu_hours": round(step.won / 1000, 6),
    }


def place(card: Card, start: int, size: int) -> dict[str, Any]:
    """Where a booking is or goes."""
    return {
        "node": card.node.name,
        "index": card.index,
        "gpu": card.uuid,
        "span": {"start": start, "size": size},
    }
