"""Quota over REST: lines and what is used of them, setting one, and what a pool promises.

Amounts are in thousandths of a GPU (milli) and of a GPU-hour; memory in MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.queries import access, clock
from pool.queries import quota as queries
from pool.queries.quota import Supply, Usage
from pool.services import quota as services
from portal.api import paging, quota_wishes
from portal.api.auth import bound_team, user_of
from portal.api.door import Door, json_object
from portal.api.problems import answer
from portal.api.times import instant

BY_ID = paging.Order(("pk",))


class Quota(Door):
    """GET lists the lines of teams that the caller is in, all for who sets them; POST sets one.

    `fair_share_milli` is the team's fair share of the pool now. POST lowers a limit below what is
    promised only with `accept_above`: without it the answer is 409 `promised` with the list.
    """

    parameters = paging.PARAMETERS | {"team", "pool"}

    def get(self, request: Request) -> HttpResponse:
        rows = queries.visible_to(user_of(request))
        team = bound_team(request)
        if team is not None:
            rows = rows.filter(team=team)
        given = request.query_params
        if "team" in given:
            rows = rows.filter(team=access.team(user_of(request), given["team"]))
        if "pool" in given:
            rows = rows.filter(pool=access.pool(user_of(request), given["pool"]))
        return paging.listing(request, rows, BY_ID, _shown)

    def post(self, request: Request) -> HttpResponse:
        unbound(request)
        access.require(user_of(request), Action.SET_QUOTA)
        wish = quota_wishes.line(json_object(request))
        row = services.set_line(
            actor=user_of(request),
            team=access.team(user_of(request), wish.team),
            pool=access.pool(user_of(request), wish.pool),
            model=wish.model,
            guaranteed_milli=wish.guaranteed_milli,
            cap_milli=wish.cap_milli,
            conditions=wish.conditions,
            version=wish.version,
            show_first=not wish.accept_above,
            now=clock.now(),
        )
        return answer(_shown([queries.visible_to(user_of(request)).get(pk=row.pk)])[0])


class Promised(Door):
    """Promised against supply, by model and (`model` null) of all together; for approvers."""

    def get(self, request: Request, name: str) -> HttpResponse:
        unbound(request)
        access.require(user_of(request), Action.DECIDE)
        pool = access.pool(user_of(request), name)
        rows = queries.supply(pool, clock.now())
        return answer({"pool": pool.name, "results": [_supply(one) for one in rows]})


def unbound(request: Request) -> None:
    """A token of one team decides nothing for others."""
    team = bound_team(request)
    if team is not None:
        raise Refusal(Code.FORBIDDEN, token_team=team.name)


def _shown(rows: Sequence[Any]) -> list[dict[str, Any]]:
    now = clock.now()
    pools = {row.pool_id: row.pool for row in rows}
    fair = {pk: queries.fair_shares(pool, now) for pk, pool in pools.items()}
    return [_line(one, fair[one.row.pool_id].get(one.row.team_id)) for one in queries.bars(list(rows), now)]


def _line(one: Usage, fair: int | None) -> dict[str, Any]:
    """`guaranteed_milli` and `cap_milli` are the line's own; `effective` has what grants add now."""
    row, burn = one.row, one.burn
    conditions = services.conditions(row)
    return {
        "team": one.team,
        "pool": one.pool,
        "model": one.model,
        "guaranteed_milli": row.guaranteed_milli,
        "cap_milli": row.cap_milli,
        "effective": {"guaranteed_milli": one.guaranteed_milli, "cap_milli": one.cap_milli},
        "used_milli": one.used_milli,
        "fair_share_milli": fair,
        "lend_milli": conditions.lend_milli,
        "unit": str(conditions.unit),
        "unit_size": conditions.unit_size,
        "weight": conditions.weight,
        "memory_mib": conditions.memory_mib,
        "budget_milli_hours": conditions.budget_milli_hours,
        "month": None
        if burn is None
        else {
            "start": instant(burn.month.start),
            "end": instant(burn.month.end),
            "budget_milli_hours": burn.budget,
            "spent_milli_hours": burn.spent,
        },
        "kinds": list(conditions.kinds),
        "largest_milli": conditions.largest_milli,
        "most_gpus": conditions.most_gpus,
        "longest_minutes": conditions.longest_minutes,
        "ahead_minutes": conditions.ahead_minutes,
        "version": one.version,
    }


def _supply(one: Supply) -> dict[str, Any]:
    return {
        "model": one.model,
        "guaranteed_milli": one.guaranteed,
        "caps_milli": one.caps,
        "capacity_milli": one.capacity,
        "unknown_milli": one.unknown,
        "used_milli": one.used,
    }
