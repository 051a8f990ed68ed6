"""Steps that choose where a booking goes: what fits in a snapshot and is within the team's quota.

No database in here: callers take the snapshot and write what is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from pool.core import placement, promises
from pool.core.errors import Code, Refusal
from pool.core.fleet import Bools
from pool.core.keeping import takes_kept
from pool.core.period import Period
from pool.core.placement import NO_COST, Candidate, Pick, Why
from pool.core.quota_uses import memory_mib
from pool.core.shapes import Ask, Class, kind_of
from pool.core.standing import Booking, Borrowed, check
from pool.queries.snapshot import Snapshot


class NoRoom(Exception):
    """Nothing fits for the whole time; carries the reading on which that was decided."""

    def __init__(self, snap: Snapshot) -> None:
        super().__init__("no room")
        self.snap = snap


class Kept(NoRoom):
    """There is room, but others keep it for themselves while some still borrow what the asker lends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """GPUs and spans for one booking. Not `clean`: the booking before is still on one of them.

    `why` is what speaks against it (placement.Why). What of it is `borrowed` may be taken back.
    """

    picks: tuple[Pick, ...]
    clean: bool
    why: Why = NO_COST
    borrowed: Borrowed = ()

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
    #: Within its guarantee it takes nothing that others keep while some borrow: `Kept` instead.
    spares: bool = False

    @property
    def reading(self) -> Period:
        """For what time the pool has to be read to place it."""
        return Period(self.blocked.start, self.free_until) if self.free_until else self.blocked


def choose(snap: Snapshot, wanted: Wanted) -> list[Plan]:
    """The plans that fit, are within quota, and leave others what they are guaranteed; at least one.

    Best first, and before those the ones that stay free until the wished time, if there are any. Raises
    `NoRoom` (or `Kept`), or QUOTA_EXCEEDED for the best plan when quota forbids all.
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
        answers = _answers(snap, found, wanted)
        within = [
            replace(plan, borrowed=answer)
            for plan, answer in zip(found, answers, strict=True)
            if not isinstance(answer, Refusal)
        ]
        if within:
            legal, barred = _leaving_guarantees(snap, wanted, within)
            if legal:
                return _leaving_kept(snap, wanted, legal)
            if snap.barred is not None:
                raise refused or NoRoom(snap)
            snap = replace(snap, barred=barred)
            continue
        # All of the best are of models without quota: look at the others, too.
        first = answers[0]
        assert isinstance(first, Refusal)
        refused = refused or first
        avoid.add(_tight_model(found[0], first))


def _leaving_guarantees(
    snap: Snapshot, wanted: Wanted, plans: Sequence[Plan]
) -> tuple[list[Plan], Bools | None]:
    """Those that leave what others are guaranteed its place; if none does, which places are kept for that.

    What is borrowed may stand in the way, because it is taken back.
    """
    if all(plan.borrowed for plan in plans):
        return list(plans), None
    assert wanted.team_id is not None
    others = promises.to_others(snap.whole, snap.standing, wanted.team_id, wanted.blocked, snap.now)
    if others is None:
        return list(plans), None
    if others.allow_at_once([pick for plan in plans if not plan.borrowed for pick in plan.picks]):
        return list(plans), None
    legal = [plan for plan in plans if plan.borrowed or others.allow(plan.picks)]
    if legal:
        return legal, None
    kept = ~others.open_to(plans[0].picks[0].charge_milli)
    if snap.fleet is not snap.whole:
        kept = kept[[snap.whole.places[pk] for pk in snap.fleet.id.tolist()]]
    return [], kept


def _leaving_kept(snap: Snapshot, wanted: Wanted, plans: list[Plan]) -> list[Plan]:
    """Those that take nothing of what others keep while some borrow (core.keeping); of what borrows all."""
    if not wanted.spares:
        return plans
    assert wanted.team_id is not None
    known: dict[frozenset[tuple[str, int]], bool] = {}
    left = []
    for plan in plans:
        used = charges(plan.picks)
        key = frozenset(used.items())
        if not plan.borrowed and key not in known:
            known[key] = takes_kept(snap.standing, wanted.team_id, used, wanted.period)
        if plan.borrowed or not known[key]:
            left.append(plan)
    if not left:
        raise Kept(snap)
    return left


def _answers(snap: Snapshot, found: Sequence[Plan], wanted: Wanted) -> list[Borrowed | Refusal]:
    """For each plan what of it is borrowed, or why it may not be; most of them count the same."""
    known: dict[tuple[Any, ...], Borrowed | Refusal] = {}
    answers = []
    for plan in found:
        key = tuple(sorted((pick.model, pick.charge_milli, _memory(snap, pick)) for pick in plan.picks))
        if key not in known:
            try:
                known[key] = borrowed(snap, plan.picks, wanted)
            except Refusal as refusal:
                known[key] = refusal
        answers.append(known[key])
    return answers


def charges(picks: Sequence[Pick]) -> Counter[str]:
    """What the picks count, in milli, by GPU model."""
    total: Counter[str] = Counter()
    for pick in picks:
        total[pick.model] += pick.charge_milli
    return total


def charged(plan: Plan) -> int:
    """What all of it counts, in milli."""
    return sum(pick.charge_milli for pick in plan.picks)


def borrowed(snap: Snapshot, picks: Sequence[Pick], wanted: Wanted, *, limited: bool = True) -> Borrowed:
    """What of these picks would be borrowed; () when they lie within what the team is guaranteed.

    `limited`: also what one booking may be is looked at. Refuses with QUOTA_EXCEEDED what may not be had
    (core.standing.check, core.limits.check).
    """
    assert wanted.team_id is not None
    memory: Counter[str] = Counter()
    for pick in picks:
        memory[pick.model] += _memory(snap, pick)
    loans = check(
        snap.standing,
        Booking(
            team=wanted.team_id,
            charges=charges(picks),
            klass=wanted.klass,
            period=wanted.period,
            created=wanted.created or snap.now,
            firm=wanted.firm,
            memory=memory,
            kind=kind_of(wanted.ask) if limited else "",
            largest_milli=max(pick.charge_milli for pick in picks),
            now=snap.now,
        ),
    )
    for pick in picks:
        if loans and pick.model in snap.stopped:
            raise Refusal(Code.QUOTA_EXCEEDED, reason="borrowing_stopped", model=pick.model)
    return loans


def _memory(snap: Snapshot, pick: Pick) -> int:
    """What it takes of its card's memory, in MiB; 0 where that is not known."""
    if pick.portion is not None:
        return pick.portion.memory_mib
    place = snap.fleet.places[pick.gpu_id]
    part = slice(place, place + 1)
    size = np.array([pick.size], dtype=np.int64)
    return int(memory_mib(snap.fleet.memory[part], size, snap.fleet.grid[part])[0])


def over_quota(snap: Snapshot, picks: Sequence[Pick], wanted: Wanted) -> Refusal | None:
    """The refusal when these picks are not within quota at every instant of the period."""
    try:
        borrowed(snap, picks, wanted)
    except Refusal as refusal:
        return refusal
    return None


def no_capacity(snap: Snapshot, wanted: Wanted, first: datetime | None) -> Refusal:
    """The refusal with the numbers: asked, free, offered, what is in the way, the first time that fits."""
    short = placement.shortfall(
        snap.fleet,
        wanted.ask,
        wanted.blocked,
        account=wanted.account,
        now=snap.now,
        without=snap.without,
        barred=snap.barred,
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
        barred=snap.barred,
    )


def _tight_model(plan: Plan, refusal: Refusal | None) -> str:
    """The model to do without: the one whose line is full, else the one that counts most."""
    used = charges(plan.picks)
    named = str(refusal.data.get("model")) if refusal else ""
    return named if named in used else max(used, key=lambda model: (used[model], model))
