"""Small pools with quota, and the rules of quota once more: one instant after another, by plain loops.

The slow way shares no code with pool.core: what it says is what docs/quota.md says.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import numpy as np

from pool.core.fleet_rows import CLASSES, halves, micros
from pool.core.period import Period
from pool.core.quota_lines import Grant, Line
from pool.core.quota_uses import Uses
from pool.core.shapes import Class
from pool.core.standing import Booking, Standing
from tests.core.worlds import at, span

H100, A100 = "H100-80GB", "A100-40GB"
MODELS = (A100, H100)
#: What each of the models in the pools of these tests has.
CAPACITY = {A100: 4000, H100: 8000}
ORDER = ("online", "interactive", "batch")


@dataclass(frozen=True, slots=True)
class Work:
    """What a team has of one model, from an hour until an hour (None: without end)."""

    team: int
    milli: int
    start: float = 0
    end: float | None = 8
    model: str = H100
    klass: str = "batch"
    firm: bool = False
    created: int = 0
    number: int = 1
    memory: int = 0

    @property
    def id(self) -> UUID:
        return UUID(int=self.number)

    @property
    def stays(self) -> bool:
        return self.firm or self.klass == "online"

    @property
    def order(self) -> tuple[bool, int, int, int]:
        return (not self.stays, ORDER.index(self.klass), self.created, self.number)

    def there(self, hour: float) -> bool:
        return self.start <= hour and (self.end is None or hour < self.end)


@dataclass(frozen=True, slots=True)
class World:
    lines: tuple[Line, ...]
    work: tuple[Work, ...] = ()
    grants: tuple[Grant, ...] = ()
    parents: Mapping[int, int | None] | None = None
    capacity: Mapping[str, int] | None = None

    @property
    def standing(self) -> Standing:
        capacity = CAPACITY if self.capacity is None else self.capacity
        return Standing(self.lines, self.grants, self.above, uses_of(self.work), MODELS, capacity)

    @property
    def above(self) -> Mapping[int, int | None]:
        return {} if self.parents is None else self.parents


def line(team: int, guaranteed: int, cap: int, model: str | None = None, **more: object) -> Line:
    """Its id tells whose it is, and for what: 10 x team, + 1 for any, + 2 or 3 for a model."""
    number = 10 * team + (1 if model is None else 2 + MODELS.index(model))
    return Line(number, model, guaranteed, cap, team=team, **more)  # type: ignore[arg-type]


def grant(team: int, guaranteed: int, cap: int, start: float, end: float, model: str | None = None) -> Grant:
    return Grant(team, model, guaranteed, cap, 0, 0, span(start, end))


def booking(team: int, milli: int, start: float = 0, end: float | None = 8, **more: object) -> Booking:
    """A batch one of H100s, asked after all that is there, if nothing else is said."""
    known: dict[str, object] = {"charges": {H100: milli}, "klass": Class.BATCH, "created": at(99), **more}
    return Booking(team=team, period=span(start, end), **known)  # type: ignore[arg-type]


def uses_of(work: Sequence[Work]) -> Uses:
    def ints(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return Uses(
        team=ints([one.team for one in work]),
        model=ints([MODELS.index(one.model) for one in work]),
        klass=ints([CLASSES.index(one.klass) for one in work]),
        milli=ints([one.milli for one in work]),
        memory=ints([one.memory for one in work]),
        since=ints([micros(at(one.start)) for one in work]),
        until=ints([micros(None if one.end is None else at(one.end)) for one in work]),
        created=ints([one.created for one in work]),
        firm=np.array([one.stays for one in work], dtype=np.bool_),
        reservation=np.array([halves(one.id) for one in work], dtype=np.int64).reshape(-1, 2),
        row=np.arange(len(work)),
    )


# --- The slow way ---------------------------------------------------------------


class Slow:
    """A world at one hour."""

    def __init__(self, world: World, hour: float) -> None:
        self.world, self.hour = world, hour
        self.work = [one for one in world.work if one.there(hour)]
        self.lines: dict[tuple[int, str | None], Line] = {}
        for one in world.lines:
            self.lines[one.team, one.model] = one
        for given in world.grants:
            key = (given.team, given.model)
            old = self.lines.get(key) or Line(0, given.model, 0, 0, team=given.team)
            if given.period.contains(at(hour)):
                more = old.guaranteed_milli + given.guaranteed_milli
                old = replace(old, guaranteed_milli=more, cap_milli=old.cap_milli + given.cap_milli)
            self.lines[key] = old
        self.having = {team for team, _ in self.lines}

    # Who is where.

    def path(self, team: int) -> list[int]:
        found = [team]
        while (up := self.world.above.get(found[-1])) is not None:
            found.append(up)
        return found

    def is_in(self, team: int, above: int) -> bool:
        return above in self.path(team)

    def up(self, team: int) -> int | None:
        """The next above that has lines."""
        return next((one for one in self.path(team)[1:] if one in self.having), None)

    def children(self, team: int | None) -> list[int]:
        return [one for one in sorted(self.having) if self.up(one) == team]

    def has(self, team: int, model: str | None) -> bool:
        return (team, model) in self.lines

    def guaranteed(self, team: int, model: str | None) -> int:
        return self.lines[team, model].guaranteed_milli if self.has(team, model) else 0

    def kept(self, team: int, model: str | None) -> int:
        found = self.lines.get((team, model))
        if found is None or found.lend_milli is None:
            return 0
        return max(0, found.guaranteed_milli - found.lend_milli)

    # What is guaranteed to whom.

    def claim(self, team: int, model: str | None) -> int:
        """What the team and all below it can claim of those above."""
        if self.has(team, model):
            return self.guaranteed(team, model)
        if self.has(team, None):
            return 0
        return self.asked(team, model)

    def asked(self, team: int | None, model: str | None) -> int:
        return sum(self.claim(child, model) for child in self.children(team))

    def own(self, team: int, model: str | None) -> int:
        left = self.guaranteed(team, model) - self.asked(team, model)
        if model is None:
            left -= sum(max(0, self.asked(team, m) - self.guaranteed(team, m)) for m in MODELS)
        return max(0, left)

    # What is borrowed.

    def rest(self) -> dict[Work, int]:
        """What of each is beyond what is guaranteed to its team's own work."""
        rest = {}
        for team in {one.team for one in self.work}:
            room = {model: self.own(team, model) for model in (*MODELS, None)}
            for one in sorted((one for one in self.work if one.team == team), key=lambda one: one.order):
                left = one.milli
                for model in (one.model, None):
                    took = min(left, room[model])
                    left, room[model] = left - took, room[model] - took
                rest[one] = left
        return rest

    def borrowed(self, against: int | None = None) -> dict[Work, int]:
        """What of each is borrowed; as far as that team can take it back."""
        rest = self.rest()
        if against is None:
            return rest
        deep = sorted(self.having, key=lambda team: (-len(self.path(team)), team))
        for team in deep:
            if not self.is_in(against, team):
                self._stand_together(team, rest)
        return rest

    def _stand_together(self, team: int, rest: dict[Work, int]) -> None:
        below = [one for one in self.work if self.is_in(one.team, team)]
        used = {m: sum(one.milli - rest[one] for one in below if one.model == m) for m in MODELS}
        room: dict[str | None, int] = {m: max(0, self.guaranteed(team, m) - used[m]) for m in MODELS}
        over = sum(max(0, used[m] - self.guaranteed(team, m)) for m in MODELS)
        room[None] = max(0, self.guaranteed(team, None) - over)
        order = sorted(below, key=lambda one: one.order)
        # Each line is filled in the order: the line of the model before that for any.
        for kind in ("model", "any"):
            for one in order:
                model = one.model if kind == "model" else None
                took = min(rest[one], room[model])
                rest[one], room[model] = rest[one] - took, room[model] - took

    def unused(self, team: int) -> dict[str | None, int]:
        """What of the guarantee to its own work the team does not use, on each line."""
        left: dict[str | None, int] = {model: self.own(team, model) for model in (*MODELS, None)}
        for one in self.work:
            if one.team == team:
                took = min(one.milli, left[one.model])
                left[one.model] -= took
                left[None] = max(0, left[None] - (one.milli - took))
        return {model: milli for model, milli in left.items() if milli and self.has(team, model)}

    # What is lent.

    def used(self, team: int, model: str) -> int:
        return sum(one.milli for one in self.work if one.model == model and self.is_in(one.team, team))

    def claims(self, team: int) -> tuple[dict[str, int], int]:
        """What it and those below it keep and do not use: of each model, and of all."""
        below = [self.claims(child) for child in self.children(team)]
        own = {m: max(0, self.kept(team, m) - self.used(team, m)) for m in MODELS}
        models = {m: max(own[m], sum(claims[m] for claims, _ in below)) for m in MODELS}
        over = sum(max(0, self.used(team, m) - self.guaranteed(team, m)) for m in MODELS)
        alone = sum(own.values()) + max(0, self.kept(team, None) - over)
        return models, max(alone, sum(total for _, total in below), sum(models.values()))

    def room(self, team: int) -> dict[str | None, tuple[int, int]]:
        """What may still be borrowed of each model and of all (None), and what others claim there."""
        capacity = CAPACITY if self.world.capacity is None else self.world.capacity
        path = set(self.path(team))
        others = [one for one in self.having if one not in path and self.up(one) in (None, *path)]
        claims = [self.claims(one) for one in others]
        free = {m: capacity[m] - sum(one.milli for one in self.work if one.model == m) for m in MODELS}
        room: dict[str | None, int] = {m: free[m] - sum(models[m] for models, _ in claims) for m in MODELS}
        room[None] = sum(free.values()) - sum(total for _, total in claims)
        claimed: dict[str | None, int] = {m: sum(models[m] for models, _ in claims) for m in MODELS}
        claimed[None] = sum(total for _, total in claims)
        return {model: (milli, claimed[model]) for model, milli in room.items()}


def hours_of(world: World, period: Period) -> list[float]:
    """Every hour of the period up to after the last that changes anything."""
    return [hour for hour in range(-2, 30) if period.contains(at(hour))]


def verdict(world: World, wanted: Booking) -> str | None:
    """The reason for which the booking is refused; None when it is not."""
    hours = hours_of(world, wanted.period)
    now = [Slow(world, hour) for hour in hours]
    for model in wanted.charges:
        if not any(now[0].has(wanted.team, one) for one in (model, None)):
            return "no_line"
    for one in now:
        for team in one.path(wanted.team):
            for model in (*MODELS, None):
                asked = sum(milli for m, milli in wanted.charges.items() if model in (m, None))
                used = sum(one.used(team, m) for m in MODELS if model in (m, None))
                if one.has(team, model) and asked and used + asked > one.lines[team, model].cap_milli:
                    return "over_cap"
    new = [
        as_work(wanted, model, milli, n) for n, (model, milli) in enumerate(sorted(wanted.charges.items()))
    ]
    then = [Slow(replace(world, work=(*world.work, *new)), hour) for hour in hours]
    # What stays goes first whatever its age, and never pushes out what was there and stays.
    firm = [[own_borrowed(one, wanted.team, firm=True) for one in many] for many in (now, then)]
    if new[0].stays and any(after > before for before, after in zip(*firm, strict=True)):
        return "online_over_guaranteed" if wanted.klass is Class.ONLINE else "firm_over_guaranteed"
    for before, after in zip(now, then, strict=True):
        grows = own_borrowed(after, wanted.team) > own_borrowed(before, wanted.team)
        room = before.room(wanted.team)
        asked = {**wanted.charges, None: sum(wanted.charges.values())}
        if grows and any(milli > room[one][0] and room[one][1] for one, milli in asked.items()):
            return "not_lent"
    return None


def own_borrowed(slow: Slow, team: int, *, firm: bool = False) -> int:
    return sum(milli for one, milli in slow.rest().items() if one.team == team and (one.stays or not firm))


def as_work(wanted: Booking, model: str, milli: int, number: int) -> Work:
    def hour(instant: datetime) -> float:
        return (instant - at(0)).total_seconds() / 3600

    return Work(
        team=wanted.team,
        milli=milli,
        start=hour(wanted.period.start),
        end=None if wanted.period.end is None else hour(wanted.period.end),
        model=model,
        klass=wanted.klass.value,
        firm=wanted.firm,
        created=micros(wanted.created),
        number=10**6 + number,
    )


# --- Worlds drawn by a number ------------------------------------------------------


def a_world(seed: int) -> World:
    """Up to seven teams in a tree of any shape, some without lines; guarantees need not fit."""
    dice = random.Random(seed)
    teams = list(range(1, dice.randint(2, 7)))
    parents = {team: dice.choice([None, *range(1, team)]) if dice.random() < 0.6 else None for team in teams}
    lines = [a_line(dice, team, model) for team in teams for model in some(dice, (None, *MODELS))]
    grants = [a_grant(dice, teams) for _ in range(dice.choice([0, 0, 1, 3]))]
    work = [a_work(dice, number, teams) for number in range(1, dice.randint(1, 14))]
    return World(tuple(lines), tuple(work), tuple(grants), parents)


def a_grant(dice: random.Random, teams: Sequence[int]) -> Grant:
    amount = dice.choice([0, 500, 1000])
    cap = amount + dice.choice([0, 1000])
    return grant(dice.choice(teams), amount, cap, *hours(dice), dice.choice([None, *MODELS]))


def a_line(dice: random.Random, team: int, model: str | None) -> Line:
    guaranteed = dice.choice([0, 1000, 1000, 2000, 4000])
    lend = dice.choice([None, 0, guaranteed // 2])
    return line(team, guaranteed, guaranteed + dice.choice([0, 4000, 20_000, 20_000]), model, lend_milli=lend)


def a_work(dice: random.Random, number: int, teams: Sequence[int]) -> Work:
    start, end = hours(dice)
    return Work(
        team=dice.choice(teams),
        milli=dice.choice([125, 500, 1000, 1000, 2000]),
        start=start,
        end=None if dice.random() < 0.1 else end,
        model=dice.choice(MODELS),
        klass=dice.choice(ORDER),
        firm=dice.random() < 0.2,
        created=dice.choice([1, 2, 3]),
        number=number,
    )


def a_booking(seed: int, world: World) -> Booking:
    dice = random.Random(seed)
    start, end = hours(dice)
    team = dice.choice(sorted({one.team for one in world.lines} | {1}))
    charges = {model: dice.choice([125, 500, 1000, 2000]) for model in some(dice, MODELS) or (H100,)}
    klass = dice.choice(list(Class))
    return booking(team, 0, start, end, charges=charges, klass=klass, firm=dice.random() < 0.3)


def some(dice: random.Random, choices: Sequence[str | None]) -> list:
    return [one for one in choices if dice.random() < 0.6]


def hours(dice: random.Random) -> tuple[int, int]:
    start = dice.randint(0, 8)
    return start, start + dice.randint(1, 8)
