"""Adopting foreign use over REST: what runs on a GPU without a booking becomes one.

The rules are in pool.services.adoption.
"""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import Code, Refusal
from pool.queries import access, clock
from pool.services import adoption
from portal.api import wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.reservations import claim_of, created


class Adopt(Door):
    """POST books the foreign use that begins at memory slice `first` (0: also the whole GPU), from now on.

    Needs the operator's role. 409 names the bookings that stand in the way and fit nowhere else.
    """

    def post(self, request: Request, uuid: str) -> HttpResponse:
        body = json_object(request)
        asked = wishes.adoption(body)
        team = bound_team(request)
        if team is not None and team.name != asked.team:
            raise Refusal(Code.FORBIDDEN, token_team=team.name)
        row = adoption.adopt(
            actor=user_of(request),
            gpu=access.gpu(user_of(request), uuid).uuid,
            first=asked.first,
            team=asked.team,
            owner=asked.owner,
            title=asked.title,
            end=asked.end,
            duration=asked.duration,
            now=clock.now(),
            claim=claim_of(request, body),
        )
        return created(request, row)
