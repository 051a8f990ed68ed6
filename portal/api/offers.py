"""Offers over REST: good starts for an ask. Nothing is booked; POST, because an ask has fields of its own.

An offer is held, or booked, by sending its `booking` with the rest of the body to /reservations/hold
or /reservations. What makes a start good: pool/core/offers.py.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.moves import Shift
from pool.core.offers import Offer
from pool.core.period import duration_text
from pool.queries import clock, inventory
from pool.services import offers as services
from pool.services.offers import Found
from portal.api import wishes
from portal.api.auth import user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer, as_json
from portal.api.reservations import only_of
from portal.api.times import instant, loans
from portal.errors import problem


class Offers(Door):
    """Up to five starts within the window from `start` to `end`, the soonest first."""

    def post(self, request: Request) -> HttpResponse:
        wish = wishes.seeking(json_object(request), inventory.reported_names)
        only_of(request, wish.team)
        found = services.find(
            actor=user_of(request),
            team=wish.team,
            pool=wish.pool,
            ask=wish.ask,
            duration=wish.duration,
            start=wish.start,
            end=wish.end,
            klass=wish.klass,
            owner=wish.owner,
            terms=wish.terms,
            now=clock.now(),
        )
        return answer(_found(found))


def _found(found: Found) -> dict[str, Any]:
    """`refusal`: the problem that a booking at the start of the window gets, when nothing is offered.

    `would_move`: how many bookings that have not begun would have to go elsewhere for it (whose is not told).
    """
    return {
        "start": instant(found.window.start),
        "end": instant(found.window.end),
        "duration": duration_text(found.duration),
        "offers": [_offer(one) for one in found.offers],
        "refusal": as_json(problem(found.refusal)) if found.refusal else None,
        "would_move": _would_move(found.shift) if found.shift else None,
    }


def _would_move(shift: Shift) -> dict[str, Any]:
    return {"bookings": len(shift.moves), "charge_milli": shift.charge_milli}


def _offer(one: Offer) -> dict[str, Any]:
    """`extendable_until` null: no end in sight. `loss_milli`: what it costs others, in thousandths of a GPU.

    `idle_s`: time that is left free beside it and is too short for another like it. `reclaimable`: when
    how much of it would be borrowed, so that it may be taken back.
    """
    booking = {"start": instant(one.period.start), "end": instant(one.period.end)}
    if one.free_until is not None:
        booking["free_until"] = instant(one.free_until)
    return {
        "good_for": list(one.good_for),
        "booking": booking,
        "extendable_until": instant(one.extendable_until),
        "reclaimable": loans(one.borrowed),
        "charge_milli": sum(pick.charge_milli for pick in one.picks),
        "models": sorted({pick.model for pick in one.picks}),
        "loss_milli": one.loss,
        "idle_s": int(one.idle.total_seconds()),
    }
