"""Room for an ask that does not fit, over REST: what would have to move, and moving it. For operators.

POST shows it; with the `plan` that was shown it is carried out, all of it or nothing. What is asked is
not booked by it. What moves, and what never does: pool/core/moves.py.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.queries import clock, inventory
from pool.services import moves as services
from pool.services.moves import For, Found, Step
from portal.api import wishes
from portal.api.auth import user_of
from portal.api.defrag import place, unbound
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.reservations import claim_of
from portal.api.times import instant


class Room(Door):
    """`plan` null in the answer: it fits as it is, or no move helps. Takes an Idempotency-Key."""

    def post(self, request: Request, name: str) -> HttpResponse:
        unbound(request)
        body = json_object(request)
        asked = wishes.room(body, inventory.reported_names)
        wish = For(
            team=asked.team,
            pool=name,
            ask=asked.ask,
            start=asked.start,
            duration=asked.duration,
            klass=asked.klass,
            owner=asked.owner,
        )
        actor, now = user_of(request), clock.now()
        if asked.plan is None:
            return answer(_found(services.find(actor=actor, wish=wish, now=now)))
        claim = claim_of(request, body)
        moved = services.apply(actor=actor, wish=wish, key=asked.plan, now=now, claim=claim)
        return answer({"moved": moved})


def _found(found: Found) -> dict[str, Any]:
    return {
        "pool": found.pool.name,
        "fits": found.fits,
        "plan": found.key or None,
        "charge_milli": found.charge_milli,
        "moves": [_move(found, step) for step in found.steps],
    }


def _move(found: Found, step: Step) -> dict[str, Any]:
    there = [(pick.gpu_id, pick.start, pick.size) for pick in step.move.picks]
    return {
        "reservation": str(step.move.reservation),
        "start": instant(step.move.period.start),
        "from": [place(found.card(one[0]), *one[1:]) for one in step.before],
        "to": [place(found.card(one[0]), *one[1:]) for one in there],
    }
