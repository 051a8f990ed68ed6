"""Quota lines, what is used of them, and what all of a pool promises against what it has.

What is used is counted from the rows of reservations that hold: that of a team and of all
teams below it, by the fleet that each process keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
from django.db.models import Count, QuerySet

from pool.core import quota_lines, standing
from pool.core.fairness import Demand
from pool.core.fleet_rows import Bools, Ints, micros
from pool.core.period import Period
from pool.core.quota import WHOLE
from pool.core.quota_lines import Grant, Limits, Line
from pool.core.quota_uses import Uses
from pool.core.roles import Action, allows
from pool.core.standing import Promised, Standing
from pool.models import Gpu, Pool, QuotaGrant, QuotaLine, Team
from pool.queries import budgets, fairness, fleets, inventory, teams, waiting
from pool.queries.budgets import Burn

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from pool.models import User

#: What "now" means for a bar: the peak of the coming minute.
SOON = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Rules:
    """What people have decided about a pool, and how much it has of each model, in milli."""

    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    parents: Mapping[int, int | None]
    capacity: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Usage:
    """A line as it is at an instant, grants included, and the most used of it in a period, in milli.

    `model` None: any. `line_milli` is what the line itself guarantees and caps, without grants.
    """

    row: QuotaLine
    team: str
    pool: str
    model: str | None
    guaranteed_milli: int
    cap_milli: int
    used_milli: int
    version: int
    burn: Burn | None = None

    @property
    def granted(self) -> bool:
        """Whether a grant adds to the line now."""
        return self.cap_milli > self.row.cap_milli or self.guaranteed_milli > self.row.guaranteed_milli


@dataclass(frozen=True, slots=True)
class Supply:
    """What is promised of a model (None: of all together) and what there is, in milli.

    `guaranteed` and `caps` are those of the teams at the top; `unknown` is what of the
    capacity is not heard from now.
    """

    model: str | None
    guaranteed: int
    caps: int
    capacity: int
    unknown: int
    used: int


# --- What was decided ---------------------------------------------------------


def visible_to(user: User | AnonymousUser) -> QuerySet[QuotaLine]:
    """The lines of teams in which the user has a role; all for who sees everything or sets quota."""
    rows = QuotaLine.objects.select_related("team", "pool").order_by("pool__name", "team__name", "model")
    if not user.is_active or user.pk is None:
        return rows.none()
    roles = teams.global_roles(user)
    if teams.sees_all(user) or allows(Action.SET_QUOTA, None, roles):
        return rows
    return rows.filter(team__in=teams.reach(user))


def line_of(team: Team, pool: Pool, model: str) -> QuotaLine:
    """The line of (team, pool, model; "" any); one that was never set is unsaved, with a cap of 0."""
    found = QuotaLine.objects.filter(team=team, pool=pool, model=model).first()
    return found or QuotaLine(team=team, pool=pool, model=model, cap_milli=0, version=0)


def models_of(pool: Pool) -> list[str]:
    """The models of the pool's GPUs that are not retired."""
    found = Gpu.objects.filter(node__pool=pool, retired_at=None).exclude(model="")
    return sorted(set(found.values_list("model", flat=True)))


def rules(pool: Pool) -> Rules:
    """The lines, grants, tree of teams and capacity as they are."""
    found = Gpu.objects.filter(node__pool=pool, retired_at=None).exclude(model="")
    models = found.values_list("model").annotate(number=Count("pk")).order_by("model")
    return Rules(
        lines=tuple(as_line(row) for row in QuotaLine.objects.filter(pool=pool).order_by("pk")),
        grants=tuple(as_grant(row) for row in QuotaGrant.objects.filter(pool=pool).order_by("pk")),
        parents=dict(Team.objects.values_list("pk", "parent")),
        capacity={model: WHOLE * number for model, number in models},
    )


def rules_with(pool: Pool, line: QuotaLine | None = None, grant: QuotaGrant | None = None) -> Rules:
    """The same as it would be with this line in place of that of its team and model, or with this grant."""
    known = rules(pool)
    changed, more = known.lines, known.grants
    if line is not None:
        new = as_line(line)
        others = (one for one in changed if (one.team, one.model) != (new.team, new.model))
        changed = (*others, new)
    if grant is not None:
        more = (*more, as_grant(grant))
    return Rules(changed, more, known.parents, known.capacity)


def as_line(row: QuotaLine) -> Line:
    """A row as the core knows it."""
    return Line(
        row.pk or 0,
        row.model or None,
        row.guaranteed_milli,
        row.cap_milli,
        team=row.team_id,
        lend_milli=row.lend_milli,
        unit=row.unit,
        unit_size=row.unit_size,
        weight=row.weight,
        memory_mib=row.memory_mib,
        budget_milli_hours=row.budget_milli_hours,
        limits=Limits(
            tuple(row.kinds), row.largest_milli, row.most_gpus, row.longest_minutes, row.ahead_minutes
        ),
    )


def as_grant(row: QuotaGrant) -> Grant:
    """As `as_line`."""
    return Grant(
        row.team_id,
        row.model or None,
        row.guaranteed_milli,
        row.cap_milli,
        row.memory_mib,
        row.budget_milli_hours,
        Period(row.valid.lower, row.valid.upper),
    )


def standing_of(pool: Pool, within: Period, known: Rules | None = None) -> Standing:
    """Where the pool's teams stand over a period."""
    known = known or rules(pool)
    fleet = fleets.current(pool.pk)
    uses = Uses.of(fleet, within)
    return Standing(known.lines, known.grants, known.parents, uses, fleet.models, known.capacity)


def promised_above(pool: Pool, row: QuotaLine, now: datetime) -> Sequence[Promised]:
    """What is promised already above this line as it would be, from `now` on."""
    known = standing_of(pool, Period(now, None), rules_with(pool, row))
    return standing.above(known, as_line(row), now)


# --- What is used -------------------------------------------------------------


def bars(rows: Sequence[QuotaLine], now: datetime) -> list[Usage]:
    """These lines as they are used now, with their budgets; in the order given."""
    pools = {row.pool_id: row.pool for row in rows}
    found = {
        one.row.pk: one
        for pk, pool in pools.items()
        for one in used_of(
            pool, [row for row in rows if row.pool_id == pk], Period(now, now + SOON), budget_at=now
        )
    }
    return [found[row.pk] for row in rows]


def used_of(
    pool: Pool, rows: Sequence[QuotaLine], period: Period, budget_at: datetime | None = None
) -> list[Usage]:
    """These lines of one pool with the most that is used of each in `period`."""
    known = rules(pool)
    fleet = fleets.current(pool.pk)
    uses = Uses.of(fleet, period)
    found = []
    for row in rows:
        line = quota_lines.at(as_line(row), known.grants, period.start)
        burn = budgets.burn(pool, as_line(row), known.grants, known.parents, budget_at) if budget_at else None
        found.append(
            Usage(
                row=row,
                team=row.team.name,
                pool=row.pool.name,
                model=line.model,
                guaranteed_milli=line.guaranteed_milli,
                cap_milli=line.cap_milli,
                used_milli=_peak(uses, _of_line(uses, fleet.models, known.parents, line), period),
                version=row.version,
                burn=burn,
            )
        )
    return found


def _of_line(uses: Uses, models: Sequence[str], parents: Mapping[int, int | None], line: Line) -> Bools:
    """Which uses count on the line: of its team and those below it, of its model."""
    those = np.isin(uses.team, list(budgets.below(parents, line.team)))
    if line.model is None:
        return those
    number = models.index(line.model) if line.model in models else -1
    found: Bools = those & (uses.model == number)
    return found


def _peak(uses: Uses, which: Bools, period: Period) -> int:
    """The most at any instant of the period: what ends at an instant is gone before what starts."""
    since: Ints = np.maximum(uses.since[which], micros(period.start))
    until: Ints = np.minimum(uses.until[which], micros(period.end))
    milli = uses.milli[which]
    at = np.concatenate((since, until))
    change = np.concatenate((milli, -milli))
    order = np.lexsort((change, at))
    return int(np.cumsum(change[order]).max(initial=0))


def fair_shares(pool: Pool, now: datetime) -> Mapping[int, int]:
    """The fair share now of each team of the pool, in milli, also by what waits.

    Never less than what the team is guaranteed: its due whenever it asks, also while it asks for less.
    """
    where = standing_of(pool, Period(now, now + SOON))
    rows = list(waiting.line(pool.pk))
    lined_up = waiting.read(rows, fleets.current(pool.pk), where, now) if rows else []
    demands = [Demand(one.team, one.milli, one.priority, one.since) for one in lined_up]
    due = standing.shares(where, now)
    return {
        team: max(share.milli, due[team].guaranteed if team in due else 0)
        for team, share in fairness.now(pool, where, demands, now).items()
    }


# --- What is promised against what there is -----------------------------------


def supply(pool: Pool, now: datetime) -> list[Supply]:
    """Each model of the pool or of a line, and last of all models together."""
    known = rules(pool)
    uses = Uses.of(fleets.current(pool.pk), Period(now, now + SOON))
    names = fleets.current(pool.pk).models
    unknown: dict[str, int] = {}
    for part in inventory.capacity(pool):
        unknown[part.model] = unknown.get(part.model, 0) + WHOLE * part.unknown
    lines_now = [
        quota_lines.at(line, known.grants, now) for line in quota_lines.with_grants(known.lines, known.grants)
    ]
    models = sorted({*known.capacity, *(line.model for line in lines_now if line.model)})
    period = Period(now, now + SOON)
    return [
        Supply(
            model,
            *_promised(lines_now, known.parents, model),
            capacity=known.capacity.get(model, 0) if model else sum(known.capacity.values()),
            unknown=unknown.get(model, 0) if model else sum(unknown.values()),
            used=_peak(uses, _of_model(uses, names, model), period),
        )
        for model in (*models, None)
    ]


def _of_model(uses: Uses, names: Sequence[str], model: str | None) -> Bools:
    if model is None:
        return np.ones(len(uses), dtype=np.bool_)
    found: Bools = uses.model == (names.index(model) if model in names else -1)
    return found


def _promised(
    lines_now: Iterable[Line], parents: Mapping[int, int | None], model: str | None
) -> tuple[int, int]:
    """Guaranteed and caps of the topmost lines: for a model those of that model, else all of them.

    Of all together a team's caps count no higher than its line for any model.
    """
    those = [line for line in lines_now if model is None or line.model == model]
    owners = {line.team for line in those}
    top = [line for line in those if not any(one in owners for one in _above(line.team, parents))]
    guaranteed = sum(line.guaranteed_milli for line in top)
    caps = {team: _cap([line for line in top if line.team == team]) for team in {line.team for line in top}}
    return guaranteed, sum(caps.values())


def _cap(those: Sequence[Line]) -> int:
    """What a team may hold by these lines of its own."""
    of_any = [line.cap_milli for line in those if line.model is None]
    of_models = [line.cap_milli for line in those if line.model is not None]
    if of_any and of_models:
        return min(sum(of_any), sum(of_models)) if sum(of_models) else sum(of_any)
    return sum(of_any) + sum(of_models)


def _above(team: int, parents: Mapping[int, int | None]) -> list[int]:
    found: list[int] = []
    above = parents.get(team)
    while above is not None and above not in found:
        found.append(above)
        above = parents.get(above)
    return found
