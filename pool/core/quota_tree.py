"""Whether what the teams are guaranteed fits into the tree of teams and into the pool.

A child stays within its parent: what the lines of the teams below a team guarantee has to
fit into what its own lines guarantee, model for model, and what is over into the line for
any. A line that a team does not have binds nobody below it. The teams at the top share the
pool itself: of each model no more is guaranteed than there is, nor of all together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from pool.core.charter import Charter, Terms, charter
from pool.core.fleet_rows import instant, micros
from pool.core.quota_lines import Grant, Line


@dataclass(frozen=True, slots=True)
class Excess:
    """More is guaranteed than there is: by lines below `team` (None: by all, of the pool).

    `model` None: on the line for any, or of all models together. Amounts in milli; since `at`.
    """

    team: int | None
    model: str | None
    guaranteed_milli: int
    room_milli: int
    at: datetime


def excess(
    lines: Sequence[Line],
    grants: Sequence[Grant],
    parents: Mapping[int, int | None],
    capacity: Mapping[str, int],
    *,
    now: datetime,
) -> Excess | None:
    """The first instant from `now` on at which the guarantees do not fit, and where; None when all do.

    For set_line and approvals: hand over the lines and grants as they would be. `capacity`: of
    each model, in milli; of another there is nothing, so none of it can be guaranteed.
    """
    known = charter(lines, grants, parents, sorted(capacity))
    first = micros(now)
    for moment in (first, *known.edges_in(first, 2**63 - 1).tolist()):
        terms = known.terms(moment)
        found = _in_tree(known, terms) or _in_pool(known, terms, capacity)
        if found is not None:
            at = instant(moment)
            assert at is not None
            return Excess(*found, at=at)
    return None


#: Team, model, guaranteed, room.
_Found = tuple[int | None, str | None, int, int]


def _in_tree(known: Charter, terms: Terms) -> _Found | None:
    models = len(known.models)
    any_line = terms.has[:, models]
    bound = terms.has[:, :models] & ~any_line[:, None]
    too_much = bound & (terms.asked[:, :models] > terms.guaranteed[:, :models])
    for row, column in np.argwhere(too_much).tolist():
        asked, room = int(terms.asked[row, column]), int(terms.guaranteed[row, column])
        return known.teams[row], known.models[column], asked, room
    asked_any = terms.asked[:, models] + terms.over()
    for row in np.flatnonzero(any_line & (asked_any > terms.guaranteed[:, models])).tolist():
        return known.teams[row], None, int(asked_any[row]), int(terms.guaranteed[row, models])
    return None


def _in_pool(known: Charter, terms: Terms, capacity: Mapping[str, int]) -> _Found | None:
    for model, asked in zip(known.models, terms.top.tolist(), strict=False):
        if asked > capacity.get(model, 0):
            return None, model, asked, capacity.get(model, 0)
    total, room = int(terms.top.sum()), sum(capacity.values())
    return (None, None, total, room) if total > room else None
