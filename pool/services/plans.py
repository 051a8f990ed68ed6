"""Steps that choose where a booking goes: what fits in a snapshot and is within the team's quota.

No database in here: callers take the snapshot and write what is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from pool.core import placement, quota
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.placement import NO_COST, Candidate, Pick, Why
from pool.core.quota import Line
from pool.core.shapes import Ask, Class
from pool.queries.snapshot import Snapshot


class NoRoom(Exception):
    """Nothing fits for the whole time; carries the reading on which that was decided."""

    def __init__(self, snap: Snapshot) -> None:
        super().__init__("no room")
        self.snap = snap


@dataclass(frozen=True, slots=True)
class Plan:
    """GPUs and spans for one booking. Not `clean`: the booking before is still on one of them.

    `why` is what speaks against it (placement.Why).
    """

    picks: tuple[Pick, ...]
    clean: bool
    why: Why = NO_COST

    @property
    def cost(self) -> int:
        """All of it, in thousandths of a GPU."""
        return self.why.cost


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be placed: `period` counts in quota, `blocked` (with clean-up) on GPUs.

    `account`: whose MPS server shares of it would need (wishes.account). `free_until`: what is taken
    is wished free until then, so that it can be extended; where nothing is, it is placed as ever.
    """

    ask: Ask
    period: Period
    blocked: Period
    klass: Class
    account: str | None = None
    free_until: datetime | None = None
    #: Who will have it: where they are already it goes on without a break. None: not looked at.
    owner_id: int | None = None
    team_id: int | None = None
    #: It cannot be taken back, so nothing of it may be borrowed.
    firm: bool = False
    #: When it was booked: of two alike the older one lies within the guarantee. None: now.
    created: datetime | None = None

    @property
    def reading(self) -> Period:
        """For what time the pool has to be read to place it."""
        return Period(self.blocked.start, self.free_until) if self.free_until else self.blocked


def choose(snap: Snapshot, wanted: Wanted) -> list[Plan]:
    """The plans that fit and are within quota, best first; at least one.

    First those that stay free until the wished time, if there are any. Raises `NoRoom`, or
    QUOTA_EXCEEDED for the best plan when quota forbids all.
    """
    if wanted.free_until is not None:
        with suppress(NoRoom, Refusal):
            return _choose(snap, replace(wanted, blocked=wanted.reading))
    return _choose(snap, wanted)


def _choose(snap: Snapshot, wanted: Wanted) -> list[Plan]:
    avoid: set[str] = set()
    refused = None
    while True:
        found = _fitting(snap, wanted, avoid)
        if not found:
            raise refused or NoRoom(snap)
        refusals = _refusals(snap, found, wanted)
        within = [plan for plan, refusal in zip(found, refusals, strict=True) if refusal is None]
        if within:
            return within
        # All of the best are of models without quota: look at the others, too.
        refused = refused or refusals[0]
        avoid.add(_tight_model(found[0], refusals[0]))


def _refusals(snap: Snapshot, found: Sequence[Plan], wanted: Wanted) -> list[Refusal | None]:
    """For each plan; most of them count the same."""
    known: dict[frozenset[tuple[str, int]], Refusal | None] = {}
    refusals = []
    for plan in found:
        counts = charges(plan.picks)
        key = frozenset(counts.items())
        if key not in known:
            known[key] = over_quota(snap, counts, wanted)
        refusals.append(known[key])
    return refusals


def charges(picks: Sequence[Pick]) -> Counter[str]:
    """What the picks count, in milli, by GPU model."""
    total: Counter[str] = Counter()
    for pick in picks:
        total[pick.model] += pick.charge_milli
    return total


def over_quota(snap: Snapshot, model_charges: Mapping[str, int], wanted: Wanted) -> Refusal | None:
    """The refusal when these charges do not fit the team's lines at every instant of the period.

    Everything stays within the cap; online work, which nobody can take back,
    stays within the guaranteed.
    """
    try:
        quota.check(snap.lines, model_charges, _uses(snap, None), wanted.period)
        if wanted.klass == Class.ONLINE:
            firm = [replace(line, cap_milli=line.guaranteed_milli) for line in snap.lines]
            quota.check(firm, model_charges, _uses(snap, Class.ONLINE), wanted.period)
    except Refusal as refusal:
        if wanted.klass == Class.ONLINE and _is_guaranteed(refusal, snap.lines):
            return Refusal(refusal.code, **{**refusal.data, "reason": "online_over_guaranteed"})
        return refusal
    return None


def no_capacity(snap: Snapshot, wanted: Wanted, first: datetime | None) -> Refusal:
    """The refusal with the numbers: asked, free, offered, what is in the way, the first time that fits."""
    short = placement.shortfall(
        snap.fleet, wanted.ask, wanted.blocked, account=wanted.account, now=snap.now, without=snap.without
    )
    return Refusal(
        Code.NO_CAPACITY,
        asked=short.asked,
        free=short.free,
        offered=short.offered,
        counts=dict(short.counts),
        first_time=first.isoformat() if first else None,
    )


def _fitting(snap: Snapshot, wanted: Wanted, avoid: Collection[str]) -> list[Plan]:
    """Where it can start at once; only if there is nothing, where it has to wait for a clean-up."""
    clean = _candidates(snap, wanted, avoid, clean=True)
    if clean or snap.clean_window is snap.window:
        return [Plan(candidate.picks, True, candidate.why) for candidate in clean]
    found = _candidates(snap, wanted, avoid, clean=False)
    return [Plan(candidate.picks, False, candidate.why) for candidate in found]


def _candidates(snap: Snapshot, wanted: Wanted, avoid: Collection[str], *, clean: bool) -> list[Candidate]:
    whose, team = wanted.owner_id, wanted.team_id
    own = () if whose is None or team is None else placement.held_by(snap.fleet, whose, team, wanted.period)
    window = snap.clean_window if clean else snap.window
    return placement.candidates(
        snap.fleet,
        wanted.ask,
        wanted.blocked,
        account=wanted.account,
        now=snap.now,
        policy=snap.policy,
        own=own,
        without=snap.without,
        clean=clean,
        window=window if wanted.blocked == snap.period else None,
        avoid=avoid,
    )


def _uses(snap: Snapshot, klass: Class | None) -> dict[int, list[tuple[Period, int]]]:
    """The team's uses on each of its lines, of one class or of all."""
    return {
        line.id: [
            (use.period, use.milli)
            for use in snap.uses
            if line.model in (None, use.model) and klass in (None, use.klass)
        ]
        for line in snap.lines
    }


def _is_guaranteed(refusal: Refusal, lines: Sequence[Line]) -> bool:
    """Whether the figure that was exceeded is a guarantee below its line's cap."""
    return any(
        line.id == refusal.data["line"] and refusal.data["cap"] == line.guaranteed_milli < line.cap_milli
        for line in lines
    )


def _tight_model(plan: Plan, refusal: Refusal | None) -> str:
    """The model to do without: the one whose line is full, else the one that counts most."""
    used = charges(plan.picks)
    named = str(refusal.data["model"]) if refusal else ""
    return named if named in used else max(used, key=lambda model: (used[model], model))
