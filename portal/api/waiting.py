"""The wait list over REST: join it, and see where one's own stand in it.

To leave it is POST /reservations/<id>/release, to accept an offer POST /reservations/<id>/confirm.
The rules are in pool.services.waitlist and turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.states import State
from pool.queries import clock, inventory
from pool.queries import reservations as queries
from pool.services import lineup
from pool.services import reservations as services
from pool.services.wishes import Asked
from portal.api import paging, wishes
from portal.api.auth import user_of, within_token
from portal.api.door import Door, json_object
from portal.api.reservations import claim_of, created, only_of, resource
from portal.api.times import instant

if TYPE_CHECKING:
    from pool.models import Reservation
    from pool.services.lineup import Place

OLDEST_FIRST = paging.Order(("created_at", "pk"))


class Waiting(Door):
    """GET lists those that wait and that the caller may see, with their places; POST joins."""

    parameters = paging.PARAMETERS

    def get(self, request: Request) -> HttpResponse:
        rows = within_token(request, queries.visible_to(user_of(request))).filter(state=State.WAITING)
        return paging.listing(request, rows, OLDEST_FIRST, _shown)

    def post(self, request: Request) -> HttpResponse:
        body = json_object(request)
        wish = wishes.waiting(body, inventory.reported_names)
        only_of(request, wish.booking.team)
        row = services.join(
            asked=_asked(request, wish.booking),
            latest=wish.latest,
            partial_ok=wish.partial_ok,
            asks_first=wish.asks_first,
            claim=claim_of(request, body),
        )
        return created(request, row)


def _asked(request: Request, wish: wishes.Booking) -> Asked:
    return Asked(
        actor=user_of(request),
        team=wish.team,
        pool=wish.pool,
        title=wish.title,
        ask=wish.ask,
        start=wish.start,
        end=None,
        duration=wish.duration,
        klass=wish.klass,
        owner=wish.owner,
        visibility="team",
        restartable=wish.restartable,
        now=clock.now(),
        terms=wish.terms,
    )


def _shown(page: Sequence[Reservation]) -> list[dict[str, Any]]:
    now = clock.now()
    pools = {row.pool_id: row.pool for row in page}
    places: dict[UUID, Place] = {}
    for pool in pools.values():
        places |= lineup.places(pool, now)
    return [resource(queries.as_resource(row)) | {"place": place(places, row.pk)} for row in page]


def place(places: Mapping[UUID, Place], pk: UUID) -> dict[str, Any] | None:
    """`position` 1 is the first of `of`. `estimate`: when it could begin if nobody extends; null: unknown."""
    found = places.get(pk)
    if found is None:
        return None
    return {
        "position": found.position,
        "of": found.of,
        "why": found.why,
        "estimate": instant(found.starts),
    }
