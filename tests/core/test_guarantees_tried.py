"""Guarantees of small pools against trying every way to place them: the same answer at every instant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.fleet import Fleet, micros, of_views
from pool.core.guarantees import Claim, Claims, Guarantees, Takeable
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Pick, Use, candidates
from pool.core.shapes import GpuAsk
from tests.core.test_guarantees import H100, MINE, OTHER, THIRD, whole
from tests.core.worlds import DAWN, Dial, codes, gpu, span, taken, wall


@dataclass(frozen=True)
class Case:
    views: list[GpuView]
    claims: list[Claim]
    takeable: list[tuple[int, Period]]
    picks: list[Pick]
    period: Period


def cases(codes_of: Sequence[int], claim_codes: Sequence[int], pick: int) -> Case:
    views = [a_view(n, code) for n, code in enumerate(codes_of)]
    number = sum(len(view.busy) for view in views)
    dial = Dial(pick)
    start = dial.turn(range(3))
    period = span(start, start + dial.turn([1, 2, 4]))
    taken_back = [(row, a_span(dial)) for row in range(number) if dial.turn([True, False])]
    wanted = [view for view in views if dial.turn([True, False])]
    picks = [a_pick(view, dial) for view in wanted]
    return Case(views, [a_claim(code) for code in claim_codes], taken_back, picks, period)


def a_span(dial: Dial) -> Period:
    start = dial.turn(range(5))
    return span(start, start + dial.turn([1, 2, 6]))


def a_view(number: int, code: int) -> GpuView:
    dial = Dial(code)
    view = gpu(
        number,
        dial.turn([H100, H100, "A30-24GB"]),
        node=dial.turn(["node-a", "node-b"]),
        use=dial.turn([Use.WHOLE, Use.WHOLE, Use.MIG]),
        why=dial.turn([None] * 6 + ["unknown"]),
    )
    busy: list[Busy] = []
    for _ in range(dial.turn([0, 1, 2])):
        if view.use is Use.WHOLE:
            new = wall(0, view.grid, a_span(dial))
        else:
            p = dial.turn(view.profiles)
            new = taken(p, dial.turn(p.starts), a_span(dial))
        if not any(_meet(new, b) for b in busy):
            busy.append(replace(new, tenancy="booked"))
    return replace(view, busy=tuple(busy))


def _meet(one: Busy, other: Busy) -> bool:
    apart = one.start + one.size <= other.start or other.start + other.size <= one.start
    return not apart and one.period.overlaps(other.period)


def a_pick(view: GpuView, dial: Dial) -> Pick:
    if view.use is Use.WHOLE:
        return whole(view)
    p = dial.turn(view.profiles)
    return Pick(view.id, view.model, p, dial.turn(p.starts), p.size, 1000 * p.size // view.grid)


def a_claim(code: int) -> Claim:
    dial = Dial(code)
    unit, size = dial.turn([("slots", 1), ("gpu", 1), ("gpu", 1), ("node", 2), ("node", 3)])
    model = dial.turn([H100, "A30-24GB", None])
    milli = dial.turn([1000, 2000, 3000]) if unit != "slots" else dial.turn([250, 500, 1250])
    return Claim(dial.turn([OTHER, THIRD]), model, milli, a_span(dial), unit, size)


def instants(case: Case) -> Iterator[datetime]:
    edges = {case.period.start}
    for period in (
        *(b.period for view in case.views for b in view.busy),
        *(claim.period for claim in case.claims),
        *(period for _, period in case.takeable),
    ):
        edges |= {period.start, period.end or period.start}
    return (edge for edge in sorted(edges) if case.period.contains(edge))


def free_slices(case: Case, known: Fleet, instant: datetime, picks: Sequence[Pick]) -> list[frozenset[int]]:
    """Of each GPU in the order of the views, the slices on which nothing stays."""
    rows = known.rows()
    kept = {view.id: set(range(view.grid)) for view in case.views}
    for number, row in enumerate(rows):
        there = int(row["start"]) <= micros(instant) < int(row["end"])
        back = any(which == number and period.contains(instant) for which, period in case.takeable)
        if there and not back:
            kept[int(row["gpu"])] -= {s for s in range(64) if int(row["mask"]) >> s & 1}
    for pick in picks:
        kept[pick.gpu_id] -= set(range(pick.start, pick.start + pick.size))
    return [frozenset(kept[view.id]) if view.usable else frozenset() for view in case.views]


@lru_cache(maxsize=10_000)
def covered(model: str, free: frozenset[int]) -> int:
    """The most slices that instances can cover, by trying them all."""
    best = 0
    for p in mig.models()[model].profiles:
        for start in p.starts:
            place = frozenset(range(start, start + p.size))
            if place <= free and place:
                best = max(best, p.size + covered(model, free - place))
    return best


def feasible(case: Case, known: Fleet, instant: datetime, picks: Sequence[Pick]) -> bool:
    free = free_slices(case, known, instant, picks)
    for_whole = {v.model for v in case.views if v.use is Use.WHOLE}
    empty = {
        n
        for n, view in enumerate(case.views)
        if view.usable
        and len(free[n]) == view.grid
        and (view.use is Use.WHOLE or view.model not in for_whole)
    }
    units: list[tuple[str | None, int]] = []
    slots: dict[str | None, int] = {}
    for claim in case.claims:
        if not claim.period.contains(instant):
            continue
        rest = claim.milli
        if claim.unit == "node":
            units += [(claim.model, claim.unit_size)] * (rest // (1000 * claim.unit_size))
            rest %= 1000 * claim.unit_size
        if claim.unit != "slots":
            units += [(claim.model, 1)] * (rest // 1000)
            rest %= 1000
        slots[claim.model] = slots.get(claim.model, 0) + rest
    known_models = set(known.models) | {None}
    return _place(
        case,
        [unit for unit in units if unit[0] in known_models],
        {model: milli for model, milli in slots.items() if model in known_models},
        empty,
        free,
    )


def _place(
    case: Case,
    units: list[tuple[str | None, int]],
    slots: dict[str | None, int],
    empty: set[int],
    free: list[frozenset[int]],
) -> bool:
    if units:
        (model, size), rest = units[0], units[1:]
        for some in combinations(sorted(empty), size):
            views = [case.views[n] for n in some]
            if len({(v.node, v.model) for v in views}) == 1 and model in (None, views[0].model):
                left = [frozenset[int]() if n in some else one for n, one in enumerate(free)]
                if _place(case, rest, slots, empty - set(some), left):
                    return True
        return False
    has: dict[str, int] = {}
    for view, one in zip(case.views, free, strict=True):
        if view.use is Use.WHOLE:
            milli = 1000 if len(one) == view.grid else 0
        else:
            milli = 1000 if len(one) == view.grid else 1000 * covered(view.model, one) // view.grid
        has[view.model] = has.get(view.model, 0) + milli
    left_over = {model: milli - slots.get(model, 0) for model, milli in has.items()}
    return min(left_over.values(), default=0) >= 0 and sum(left_over.values()) >= slots.get(None, 0)


drawn = st.builds(
    cases, st.lists(codes, min_size=1, max_size=6), st.lists(codes, min_size=1, max_size=4), codes
)


@settings(max_examples=200, deadline=None)
@given(drawn)
def test_it_says_of_small_pools_what_trying_everything_says(case: Case) -> None:
    known = of_views(case.views)
    takeable = Takeable(
        np.array([row for row, _ in case.takeable], dtype=np.int64),
        np.array([micros(period.start) for _, period in case.takeable], dtype=np.int64),
        np.array([micros(period.end) for _, period in case.takeable], dtype=np.int64),
    )
    says = Guarantees(known, case.period, DAWN, Claims.of(known, case.claims), takeable).allow(case.picks)
    before = [feasible(case, known, instant, ()) for instant in instants(case)]
    after = [feasible(case, known, instant, case.picks) for instant in instants(case)]
    if all(after):
        assert says
    elif any(was and not now for was, now in zip(before, after, strict=True)):
        assert not says


@settings(max_examples=60, deadline=None)
@given(drawn)
def test_no_gpu_is_closed_on_which_a_piece_would_be_allowed(case: Case) -> None:
    known = of_views(case.views)
    promised = Guarantees(known, case.period, DAWN, Claims.of(known, case.claims), Takeable.none())
    is_open = promised.open_to(1000)
    rows = known.rows()
    for view in case.views:
        place = known.places[view.id]
        free = not any(
            int(row["gpu"]) == view.id and row["start"] < promised.end and row["end"] > promised.start
            for row in rows
        )
        can_be = view.usable and view.use is Use.WHOLE and free
        if can_be and promised.allow([whole(view)]) and _all_fit(case, known):
            assert is_open[place]


def _all_fit(case: Case, known: Fleet) -> bool:
    bare = replace(case, takeable=[])
    return all(feasible(bare, known, instant, ()) for instant in instants(bare))


@settings(max_examples=100, deadline=None)
@given(drawn)
def test_what_is_guaranteed_is_obtained_when_the_borrowers_have_left(case: Case) -> None:
    # My own claim is one whole GPU for all of the period; borrowers are so for as long as they are there.
    mine = Claim(MINE, H100, 1000, case.period, "gpu")
    case = replace(
        case,
        claims=[*case.claims, mine],
        takeable=[(row, span(-9, 99)) for row, _ in case.takeable],
    )
    known = of_views(case.views)
    if not any(view.use is Use.WHOLE and view.model == H100 for view in case.views):
        return
    if not all(feasible(case, known, instant, ()) for instant in instants(case)):
        return
    which = np.array([row for row, _ in case.takeable], dtype=np.int64)
    is_taken = np.zeros(len(known.on), dtype=np.bool_)
    is_taken[which] = True
    left = replace(known, on=known.on.ended(is_taken, micros(case.period.start)))
    claims = Claims.of(known, case.claims)
    promised = Guarantees(left, case.period, DAWN, claims.but(MINE), Takeable.none(), claims.of_team(MINE))
    ask = GpuAsk((H100,))
    found = candidates(left, ask, case.period, now=DAWN)
    legal = [one for one in found if promised.allow(one.picks)]
    if not legal:
        found = candidates(left, ask, case.period, now=DAWN, barred=~promised.open_to(1000))
        legal = [one for one in found if promised.allow(one.picks)]
    assert legal
