"""Work within its guarantee in a place that is another team's: when it has to go, and when never."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import astray, promises
from pool.core.asks import MigAsk
from pool.core.borrowers import borrowers, inside
from pool.core.fleet import CLASSES, Fleet, fleet, halves, micros, of_views
from pool.core.period import Period
from pool.core.placement import Candidate, candidates
from pool.core.quota_lines import Line, Unit
from pool.core.quota_uses import Uses
from pool.core.reclaim import Borrower, Notice, Reclaim, reclaim, without
from pool.core.shapes import Class
from pool.core.standing import Booking, Standing, check
from tests.core.standings import H100, line
from tests.core.worlds import Dial, at, codes, gpu, profile, span, taken

HALF, FULL = "3g.40gb", "7g.80gb"
NOW, WHEN = at(2), span(2, 6)
NO_WAIT = Notice(timedelta(0), timedelta(0))
#: Who asks, in whole GPUs, and two others.
ASKER, VISION, SPEECH = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Stay:
    """Half a GPU: the lower or the upper one."""

    number: int
    team: int
    gpu: int
    upper: bool = False
    firm: bool = False
    until: float = 8

    @property
    def id(self) -> UUID:
        return UUID(int=self.number)


@dataclass(frozen=True, slots=True)
class Pool:
    gpus: int
    stays: tuple[Stay, ...]
    lines: tuple[Line, ...]

    @property
    def fleet(self) -> Fleet:
        half = profile(H100, HALF)
        views = [
            gpu(n, busy=[taken(half, 4 * s.upper, span(0, s.until)) for s in self.on(n)])
            for n in range(self.gpus)
        ]
        known = of_views(views)
        rows = known.rows()
        for row in rows:
            (stay,) = [s for s in self.on(int(row["gpu"])) if (int(row["mask"]) > 15) == s.upper]
            row["since"], row["until"] = row["start"], row["end"]
            row["team"] = row["owner"] = stay.team
            row["klass"], row["firm"], row["priority"] = CLASSES.index("batch"), stay.firm, 50
            row["created"], row["reservation"] = micros(at(-9)) + stay.number, halves(stay.id)
            row["charge"], row["blocker"] = 500, False
        return fleet(known.cards, rows)

    def on(self, number: int) -> list[Stay]:
        return sorted((s for s in self.stays if s.gpu == number), key=lambda s: s.upper)

    def standing(self, known: Fleet, gone: frozenset[UUID] = frozenset()) -> Standing:
        uses = Uses.of(known, span(0, 12)).but(gone)
        return Standing(self.lines, (), {}, uses, known.models, {H100: 1000 * self.gpus})

    # --- As services answer -------------------------------------------------------

    def place(
        self, left: Fleet, gone: frozenset[UUID], period: Period, last: Collection[UUID]
    ) -> list[Candidate]:
        standing = self.standing(left, gone)
        assert not check(standing, Booking(ASKER, {H100: 1000}, Class.BATCH, period, NOW))
        first_come = not any(one in gone for one in last)
        others = promises.to_others(left, standing, ASKER, period, NOW, first_come=first_come)
        every = candidates(left, MigAsk(FULL), period, now=NOW)
        return [one for one in every if others is None or others.allow(one.picks)]

    def reclaimed(self) -> Reclaim | None:
        known = self.fleet
        standing = self.standing(known)
        last = [link for one in inside(known, standing, ASKER, WHEN, NOW) for link in one.links]

        def wrong(who: Sequence[Borrower], gone: frozenset[UUID], period: Period) -> Sequence[bool]:
            there = without(known, gone, period.start)
            return astray.astray(known, astray.Left(there, self.standing(there, gone)), who, period, NOW)

        return reclaim(
            known,
            MigAsk(FULL),
            WHEN,
            NOW,
            rule=NO_WAIT,
            borrowers=lambda start: borrowers(known, standing, ASKER, WHEN, NOW),
            place=lambda left, gone, period: self.place(left, gone, period, last),
            inside=lambda start: astray.perhaps(known, standing, ASKER, WHEN, NOW),
            astray=wrong,
        )

    def victims(self) -> set[int] | None:
        found = self.reclaimed()
        return None if found is None else {link.int for one in found.victims for link in one.links}


def a_line(team: int, guaranteed: int, unit: Unit = Unit.SLOTS) -> Line:
    return line(team, guaranteed, 9000, unit=unit)


ONE_EACH = (a_line(ASKER, 1000, Unit.GPU), a_line(VISION, 1000))


# --- With the numbers written out -----------------------------------------------------


def test_who_came_inside_in_anothers_place_goes_when_nothing_else_helps() -> None:
    # Of three halves of vision the third was borrowed, on the second GPU; then one on the first was released.
    pool = Pool(2, (Stay(1, VISION, 0), Stay(3, VISION, 1)), ONE_EACH)
    found = pool.reclaimed()
    assert pool.victims() == {3}
    assert found is not None
    assert [one.is_inside for one in found.victims] == [True]
    assert [pick.gpu_id for pick in found.candidates[0].picks] == [1]


def test_as_long_as_a_borrower_will_do_nobody_who_is_inside_goes() -> None:
    stays = (Stay(1, VISION, 0), Stay(2, SPEECH, 2), Stay(3, VISION, 1))
    assert Pool(3, stays, ONE_EACH).victims() == {2}


def test_what_is_firm_never_goes() -> None:
    stays = (Stay(1, VISION, 0, firm=True), Stay(3, VISION, 1, firm=True))
    assert Pool(2, stays, ONE_EACH).victims() is None


def test_nobody_who_is_inside_goes_where_more_is_promised_than_there_is() -> None:
    # One GPU for two that are guaranteed: who was first keeps it.
    assert Pool(1, (Stay(1, VISION, 0), Stay(2, VISION, 0, upper=True)), ONE_EACH).victims() is None


def test_nobody_goes_for_more_than_a_guarantee_is_in() -> None:
    # In slots the asker has its amount: two halves are free.
    lines = (a_line(ASKER, 1000), a_line(VISION, 1000))
    assert Pool(2, (Stay(1, VISION, 0), Stay(3, VISION, 1)), lines).victims() is None


def test_its_own_team_makes_no_room_for_it() -> None:
    lines = (a_line(ASKER, 2000, Unit.GPU),)
    assert Pool(2, (Stay(1, ASKER, 0), Stay(3, ASKER, 1)), lines).victims() is None


def test_nobody_might_be_astray_while_all_that_is_guaranteed_has_its_place() -> None:
    pool = Pool(2, (Stay(1, VISION, 0), Stay(2, VISION, 0, upper=True)), ONE_EACH)
    known = pool.fleet
    assert astray.perhaps(known, pool.standing(known), ASKER, WHEN, NOW) == []


# --- Against trying all ---------------------------------------------------------------


def a_world(gpus: int, code: int, promised: int) -> Pool:
    dial = Dial(code)
    stays = []
    for n in range(gpus):
        for upper in (False, True):
            team, age = dial.turn([None, VISION, VISION, SPEECH]), dial.turn([0, 10])
            firm = dial.turn([False] * 5 + [True])
            if team is not None:
                stays.append(Stay(age + len(stays) + 1, team, n, upper, firm))
    wants = Dial(promised)
    lines = (
        a_line(ASKER, wants.turn([1000, 1000, 2000]), Unit.GPU),
        a_line(VISION, wants.turn([500, 1000, 1500, 0])),
        a_line(SPEECH, wants.turn([0, 500, 1000]), wants.turn([Unit.SLOTS, Unit.GPU])),
    )
    return Pool(gpus, tuple({s.number: s for s in stays}.values()), lines)


def inside_of(pool: Pool, stays: Sequence[Stay]) -> set[Stay]:
    """Who of these fills what its team is guaranteed: firm ones, then the older."""
    due = {one.team: one.guaranteed_milli for one in pool.lines}
    found = set()
    for stay in sorted(stays, key=lambda s: (not s.firm, s.number)):
        if due.get(stay.team, 0) >= 500:
            due[stay.team] -= 500
            found.add(stay)
    return found


def lacks(pool: Pool, stays: Sequence[Stay], held: Collection[Stay], but: int | None = None) -> int:
    """What of the guarantees that `stays` do not use finds no place beside those who are `held`."""
    whole = sum(all(s.gpu != n for s in held) for n in range(pool.gpus))
    loose = sum(len([s for s in held if s.gpu == n]) == 1 for n in range(pool.gpus))
    gpus = slots = 0
    used = inside_of(pool, stays)
    for one in pool.lines:
        left = one.guaranteed_milli - 500 * sum(s.team == one.team for s in used)
        if one.team != but:
            gpus += left // 1000 if one.unit is Unit.GPU else 0
            slots += (left % 1000 if one.unit is Unit.GPU else left) // 500
    short = max(0, gpus - whole)
    return 1000 * short + 500 * max(0, slots - loose - 2 * max(0, whole - gpus))


def stands_wrongly(pool: Pool, stay: Stay, left: Sequence[Stay]) -> bool:
    """Whether it may not be put where it is beside those who are left, of whom borrowers make room."""
    held = [s for s in left if s.firm or s in inside_of(pool, left)]
    return lacks(pool, left, [*held, stay], stay.team) > lacks(pool, left, held)


def fits(pool: Pool, left: Sequence[Stay]) -> bool:
    return any(all(s.gpu != n for s in left) for n in range(pool.gpus))


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 4), codes, codes)
def test_who_is_inside_goes_only_where_it_may_not_be_and_only_when_nothing_else_helps(
    gpus: int, code: int, promised: int
) -> None:
    pool = a_world(gpus, code, promised)
    gone = pool.victims()
    within = inside_of(pool, pool.stays)
    soft = [s for s in pool.stays if not s.firm]
    if gone is None:
        if sum(one.guaranteed_milli for one in pool.lines) <= 1000 * gpus and len(soft) == len(pool.stays):
            raise AssertionError("what is guaranteed is to be had where nothing is firm")
        return
    victims = [s for s in pool.stays if s.number in gone]
    left = [s for s in pool.stays if s not in victims]
    assert all(not s.firm for s in victims)
    assert fits(pool, left)
    for stay in within & set(victims):
        assert stands_wrongly(pool, stay, left)
    if within & set(victims):
        only = [s for s in soft if s not in within]
        for number in range(len(only) + 1):
            for some in combinations(only, number):
                assert not _may(pool, [s for s in pool.stays if s not in some])


def _may(pool: Pool, left: Sequence[Stay]) -> bool:
    """Whether the asker may have a GPU beside those who are left."""
    held = [s for s in left if s.firm or s in inside_of(pool, left)]
    free = [n for n in range(pool.gpus) if all(s.gpu != n for s in left)]
    its = [[*held, Stay(-1, ASKER, n), Stay(-2, ASKER, n, upper=True)] for n in free]
    return any(lacks(pool, left, one, ASKER) <= lacks(pool, left, held) for one in its)
