"""Why a reservation is as it is, over REST: the rule, its numbers, and the rows behind it."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.queries import clock
from pool.queries.explanations import Row
from pool.services import explanations as services
from pool.services.explanations import Explanation as Told
from portal import explainwords
from portal.api.auth import user_of
from portal.api.door import Door
from portal.api.problems import answer
from portal.api.reservations import seen
from portal.api.times import instant
from portal.api.waiting import place


class Explanation(Door):
    def get(self, request: Request, pk: uuid.UUID) -> HttpResponse:
        row = seen(request, pk)
        told = services.explain(user=user_of(request), row=row, now=clock.now())
        return answer(_told(told) | {"place": place({pk: told.place}, pk) if told.place else None})


def _told(told: Told) -> dict[str, Any]:
    """`rows`: reservations that fill what it needs, stand before it or took its place, as far as the caller
    may see them; all others are only counted (`not_shown`)."""
    return {
        "state": told.state,
        "reason": told.reason,
        "since": instant(told.since),
        "by": told.by or None,
        "rule": told.rule.value,
        "detail": explainwords.sentence(told),
        "numbers": dict(told.numbers),
        "rows": [_row(one) for one in told.rows.shown],
        "more_rows": told.rows.more,
        "not_shown": {"reservations": told.rows.others, "charge_milli": told.rows.others_milli},
    }


def _row(one: Row) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "title": one.title,
        "team": one.team,
        "owner": one.owner,
        "state": one.state,
        "start": instant(one.start),
        "end": instant(one.end),
        "charge_milli": one.milli,
    }
