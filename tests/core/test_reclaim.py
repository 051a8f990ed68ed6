"""Who gives way: the order, the smallest set, the recall; compared with the rule taken one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.asks import Ask, GpuAsk, MigAsk
from pool.core.fleet import Fleet, fleet, halves, of_views
from pool.core.period import Period
from pool.core.placement import SWITCH, Candidate, GpuView, Use, candidates, clash
from pool.core.reclaim import Borrower, Notice, Reclaim, recall, reclaim, smallest, taken_order, without
from tests.core.worlds import DAWN, Dial, a_pool, an_ask, at, codes, gpu, profile, span, taken, wall

H100 = "H100-80GB"
NO_WAIT = Notice(timedelta(0), timedelta(0))
PERIOD = span(1, 3)


def number(n: int) -> UUID:
    return UUID(int=(n + 1) * 0x9E3779B97F4A7C15 % (1 << 128))


def borrower(n: int, **changes: object) -> Borrower:
    """Reservation n, wholly borrowed; all stand alike but for what is said, and the later ones are newer."""
    plain = Borrower((number(n),), 7, 1000, 1000, 1000.0, 50, at(-2) + timedelta(seconds=n), at(-1))
    return replace(plain, **changes)  # type: ignore[arg-type]


def booked(views: Sequence[GpuView]) -> Fleet:
    """The fleet of these views; what is on them are the reservations 0, 1, .. in the order of its rows."""
    known = of_views(views)
    rows = known.rows()
    for n in range(len(rows)):
        rows["reservation"][n] = halves(number(n))
    return fleet(known.cards, rows)


def placed(ask: Ask, now: datetime = DAWN) -> Callable[[Fleet, frozenset[UUID], Period], Sequence[Candidate]]:
    return lambda left, gone, period: candidates(left, ask, period, now=now)


def taken_for(
    known: Fleet,
    ask: Ask,
    may: Sequence[Borrower],
    *,
    rule: Notice = NO_WAIT,
    period: Period = PERIOD,
    allowed: Callable[[frozenset[UUID], Period], bool] = lambda gone, period: True,
) -> Reclaim | None:
    return reclaim(
        known, ask, period, DAWN, rule=rule, borrowers=lambda at: may, place=placed(ask), allowed=allowed
    )


def victims(found: Reclaim | None) -> set[UUID] | None:
    return None if found is None else {link for one in found.victims for link in one.links}


def full(count: int, node: str = "node-a") -> list[GpuView]:
    """Whole GPUs with one booking each, from an hour ago on."""
    return [gpu(n, use=Use.WHOLE, node=node, busy=[wall(0, 8, span(-1, 8))]) for n in range(count)]


# --- Who is taken, with the numbers written out -------------------------------------


def test_teams_furthest_over_their_share_give_way_first_then_the_lowest_priority_then_the_newest() -> None:
    may = [
        borrower(0, over_share=500.0, priority=0),
        borrower(1, priority=60),
        borrower(2, priority=50),
        borrower(3, priority=50),
        borrower(4, over_share=9000.0, borrowed_milli=500),
    ]
    # 4 is partly within its guarantee: the last resort, however far its team is over.
    assert taken_order(may) == [3, 2, 1, 0, 4]


def test_one_gpu_takes_one_victim_the_newest_of_those_who_stand_alike() -> None:
    found = taken_for(booked(full(3)), GpuAsk(count=1), [borrower(n) for n in range(3)])
    assert found is not None
    assert victims(found) == {number(2)}
    assert found.period == PERIOD
    assert [pick.gpu_id for pick in found.candidates[0].picks] == [2]


def test_what_turns_out_not_to_be_needed_is_put_back() -> None:
    # The newest is on a GPU of its own, but its GPU is not enough for two on one node; so it stays.
    views = [*full(2), gpu(2, use=Use.WHOLE, node="node-b", busy=[wall(0, 8, span(-1, 8))])]
    found = taken_for(booked(views), GpuAsk(count=2, same_node=True), [borrower(n) for n in range(3)])
    assert victims(found) == {number(0), number(1)}


def test_nobody_is_taken_if_it_would_not_fit_even_then() -> None:
    found = taken_for(booked(full(3)), GpuAsk(count=3), [borrower(n) for n in range(2)])
    assert found is None


def test_who_is_not_among_the_borrowers_is_never_taken() -> None:
    found = taken_for(booked(full(2)), GpuAsk(count=1), [borrower(0)])
    assert victims(found) == {number(0)}


def test_a_gang_across_the_line_is_taken_only_when_nothing_else_does() -> None:
    known = booked(full(2))
    partly = borrower(1, borrowed_milli=400, over_share=9000.0)
    assert victims(taken_for(known, GpuAsk(count=1), [borrower(0), partly])) == {number(0)}
    assert victims(taken_for(known, GpuAsk(count=2), [borrower(0), partly])) == {number(0), number(1)}


def test_a_chain_of_one_owner_leaves_as_one() -> None:
    view = gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(-1, 2)), wall(0, 8, span(2, 4))])
    chain = borrower(0, links=(number(0), number(1)))
    assert victims(taken_for(booked([view]), GpuAsk(), [chain])) == {number(0), number(1)}


def test_quota_and_placement_are_decided_together() -> None:
    # There is room, but a sibling's borrowing on another GPU fills the parent's cap.
    views = [*full(1), gpu(1, use=Use.WHOLE)]
    sibling = number(0)
    found = taken_for(booked(views), GpuAsk(), [borrower(0)], allowed=lambda gone, period: sibling in gone)
    assert victims(found) == {sibling}
    assert taken_for(booked(views), GpuAsk(), [borrower(0)], allowed=lambda gone, period: False) is None


def test_what_guarantees_do_not_allow_is_tried_with_other_victims() -> None:
    known = booked(full(2))

    def only_on_gpu_0(left: Fleet, gone: frozenset[UUID], period: Period) -> list[Candidate]:
        every = candidates(left, GpuAsk(), period, now=DAWN)
        return [one for one in every if one.picks[0].gpu_id == 0]

    may = [borrower(0), borrower(1)]
    found = reclaim(
        known, GpuAsk(), PERIOD, DAWN, rule=NO_WAIT, borrowers=lambda at: may, place=only_on_gpu_0
    )
    assert victims(found) == {number(0)}


def test_recall_is_the_notice_or_the_rest_of_the_minimum_run_and_one_hour_at_most() -> None:
    rule = Notice(timedelta(minutes=5), timedelta(minutes=30))
    young, old = borrower(0, started=DAWN - timedelta(minutes=10)), borrower(1, started=at(-9))
    assert recall([old], DAWN, rule) == timedelta(minutes=5)
    assert recall([old, young], DAWN, rule) == timedelta(minutes=20)
    assert recall([borrower(2, started=None)], DAWN, rule) == timedelta(minutes=5)
    assert recall([old], DAWN, Notice(timedelta(hours=5), timedelta(0))) == timedelta(hours=1)


def test_the_booking_is_moved_to_when_its_victims_have_left_and_keeps_its_length() -> None:
    rule = Notice(timedelta(minutes=5), timedelta(minutes=30))
    young = borrower(0, started=DAWN - timedelta(minutes=10))
    found = taken_for(booked(full(1)), GpuAsk(), [young], rule=rule, period=span(0, 2))
    assert found is not None
    assert found.at == DAWN + timedelta(minutes=20)
    assert found.period == Period(found.at, found.at + timedelta(hours=2))
    # A later start leaves time enough.
    later = taken_for(booked(full(1)), GpuAsk(), [young], rule=rule)
    assert later is not None
    assert (later.at, later.period) == (at(1), PERIOD)


def test_a_gpu_of_any_use_gets_the_time_to_change_its_mode() -> None:
    view = replace(gpu(0, use=Use.AUTO), mig_capable=True)
    small = profile(H100, "1g.10gb")
    known = booked([replace(view, busy=(taken(small, 0, span(-1, 8)),))])
    found = taken_for(known, GpuAsk(), [borrower(0)])
    assert found is not None
    assert (found.at, found.period.start) == (at(1), at(1) + SWITCH)
    same = taken_for(known, MigAsk("7g.80gb"), [borrower(0)])
    assert same is not None
    assert same.period == PERIOD


def test_who_has_left_is_there_until_then_and_not_any_more() -> None:
    known = booked([gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 2)), wall(0, 8, span(2, 4))])])
    left = without(known, {number(0), number(1)}, at(1))
    assert [(int(s), int(e)) for s, e in zip(left.on.start, left.on.end, strict=True)] == [
        (int(known.on.start[0]), int(known.on.start[0]) + 3_600_000_000)
    ]
    assert without(known, (), at(1)) is known


# --- Against a reverse pass one by one ----------------------------------------------


def one_by_one(may: Sequence[Borrower], fits: Callable[[Sequence[Borrower]], bool]) -> list[Borrower] | None:
    """The rule as it is told: as many as it takes in order; then the last first back, if it still fits."""
    order = [may[n] for n in taken_order(may)]
    wholly = [one for one in order if one.tier == 0]
    if not fits(order):
        return None
    pool = wholly if fits(wholly) else order
    out: list[Borrower] = []
    while not fits(out):
        out.append(pool[len(out)])
    for one in reversed(list(out)):
        rest = [other for other in out if other is not one]
        if fits(rest):
            out = rest
    return out


def a_borrower(n: int, code: int) -> Borrower:
    dial = Dial(code)
    return borrower(
        n,
        borrowed_milli=dial.turn([1000, 1000, 500]),
        over_share=dial.turn([1000.0, 2000.0]),
        priority=dial.turn([10, 50]),
    )


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([H100, "A30-24GB"]),
    st.lists(codes, min_size=1, max_size=4),
    st.lists(codes, min_size=1, max_size=9),
    codes,
    st.lists(codes, min_size=9, max_size=9),
)
def test_the_victims_are_those_of_the_rule_and_none_of_them_can_be_left_out(
    model: str, gpus: list[int], busy: list[int], wish: int, standing: list[int]
) -> None:
    known = booked(a_pool(model, gpus, busy))
    rows = len(known.rows())
    ask = an_ask(model, wish)
    may = [a_borrower(n, standing[n % 9] + n) for n in range(rows) if standing[n % 9] % 4]

    def fits(gone: Sequence[Borrower]) -> bool:
        ids = [link for one in gone for link in one.links]
        return bool(candidates(without(known, ids, PERIOD.start), ask, PERIOD, now=DAWN))

    found = taken_for(known, ask, may)
    expected = one_by_one(may, fits)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert {one.links for one in found.victims} == {one.links for one in expected}
    assert {one.links for one in found.victims} <= {one.links for one in may}
    for one in found.victims:
        assert not fits([other for other in found.victims if other is not one])
    left = without(known, victims(found) or (), found.at)
    views = [left.view(card.id, DAWN) for card in left.cards]
    assert clash(views, found.candidates[0].picks, found.period) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12), st.integers(0, 20))
def test_bisecting_finds_what_going_one_by_one_finds(sizes: list[tuple[int, int]], wanted: int) -> None:
    may = [borrower(n, priority=priority) for n, (priority, _) in enumerate(sizes)]
    worth = np.array([size for _, size in sizes])
    found = smallest(may, lambda gone: int(worth[gone].sum()) >= wanted)
    expected = one_by_one(may, lambda gone: sum(worth[may.index(one)] for one in gone) >= wanted)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert {may[n].links for n in found.tolist()} == {one.links for one in expected}
