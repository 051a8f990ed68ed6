"""What would have to move: the least in total against all sets, and never into what is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from uuid import UUID

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.fleet import Fleet, halves, of_views
from pool.core.moves import Movable, Shift, Wanted, shift
from pool.core.period import Period
from pool.core.placement import GpuView, Pick, Use, candidates, clash
from pool.core.shapes import Ask, GpuAsk, MigAsk
from tests.core.worlds import DAWN, Dial, codes, gpu, profile, span, taken, wall

H100 = "H100-80GB"
SIZES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb")


def whose(number: int) -> UUID:
    return UUID(int=number + 1)


def booked(
    views: Sequence[GpuView], asks: Sequence[tuple[Ask, Period]]
) -> tuple[list[GpuView], list[Movable]]:
    """These asks booked one after the other, as far as they fit."""
    pool, movable = {v.id: v for v in views}, []
    for number, (ask, period) in enumerate(asks):
        found = candidates(list(pool.values()), ask, period)
        if not found:
            continue
        picks = found[number % len(found)].picks
        for pick in picks:
            view = pool[pick.gpu_id]
            one = taken(pick.profile, pick.start, period) if pick.profile else wall(0, view.grid, period)
            pool[view.id] = replace(view, busy=(*view.busy, replace(one, tenancy=str(whose(number)))))
        charge = sum(pick.charge_milli for pick in picks)
        gpus = frozenset(pick.gpu_id for pick in picks)
        movable.append(Movable(whose(number), ask, period, charge, gpus))
    return list(pool.values()), movable


def fleet_of(views: Sequence[GpuView]) -> Fleet:
    """With the reservations that the tenancies name."""
    found = of_views([replace(v, busy=()) for v in views])
    cards, rows = [], []
    for view in views:
        for busy in view.busy:
            one = of_views([replace(view, busy=(busy,))]).rows()
            if busy.tenancy != "blocker":
                one["reservation"] = halves(UUID(busy.tenancy))
            rows.append(one)
        cards.append(found.cards[found.places[view.id]])
    if not rows:
        return found
    return found.updated(cards, np.concatenate(rows))


def gone(views: Sequence[GpuView], some: Sequence[UUID]) -> list[GpuView]:
    names = {str(one) for one in some}
    return [replace(v, busy=tuple(b for b in v.busy if b.tenancy not in names)) for v in views]


def check(views: Sequence[GpuView], movable: Sequence[Movable], wanted: Wanted, found: Shift) -> None:
    """All of it together is free."""
    moved = [move.reservation for move in found.moves]
    left = gone(views, moved)
    steps = [(found.picks, wanted.period), *((move.picks, move.period) for move in found.moves)]
    for picks, period in steps:
        assert clash(left, picks, period) is None
        for pick in picks:
            busy = taken(pick.profile, pick.start, period) if pick.profile else wall(0, pick.size, period)
            left = [replace(v, busy=(*v.busy, busy)) if v.id == pick.gpu_id else v for v in left]
    periods = {one.reservation: one.period for one in movable}
    assert all(periods[move.reservation] == move.period for move in found.moves)
    charges = {one.reservation: one.charge_milli for one in movable}
    assert found.charge_milli == sum(charges[one] for one in moved)


asks = codes.map(
    lambda code: (
        MigAsk(Dial(code).turn(SIZES), models=(H100,)),
        span(Dial(code // 7).turn(range(3)), 3 + Dial(code // 91).turn(range(3))),
    )
)


@settings(max_examples=60)
@given(gpus=st.integers(1, 3), bookings=st.lists(asks, max_size=5), ask=asks)
def test_the_moves_are_free_and_no_smaller_set_makes_room(
    gpus: int, bookings: list[tuple[Ask, Period]], ask: tuple[Ask, Period]
) -> None:
    views, movable = booked([gpu(n) for n in range(gpus)], bookings)
    wanted = Wanted(*ask)
    found = shift(fleet_of(views), wanted, movable, now=DAWN)
    if candidates(views, wanted.ask, wanted.period):
        assert found is None
        return
    if found is not None:
        check(views, movable, wanted, found)
    bound = found.charge_milli if found else 1 << 30
    for size in range(1, len(movable) + 1):
        for some in combinations(movable, size):
            if sum(one.charge_milli for one in some) >= bound:
                continue
            assert not simple(views, wanted, some)


def simple(views: Sequence[GpuView], wanted: Wanted, some: Sequence[Movable]) -> bool:
    """Whether these go elsewhere one by one, however the ask is placed among what they leave."""
    left = gone(views, [one.reservation for one in some])
    for way in candidates(left, wanted.ask, wanted.period, 8):
        now = left
        steps = [(way.picks, wanted.period)]
        order = sorted(some, key=lambda one: (-one.charge_milli, one.reservation))
        for picks, period in steps:
            now = held(now, picks, period)
        for one in order:
            found = candidates(now, one.ask, one.period, 1)
            if not found:
                break
            now = held(now, found[0].picks, one.period)
        else:
            return True
    return False


def held(views: Sequence[GpuView], picks: Sequence[Pick], period: Period) -> list[GpuView]:
    out = list(views)
    for pick in picks:
        assert pick.profile is not None
        busy = taken(pick.profile, pick.start, period)
        out = [replace(v, busy=(*v.busy, busy)) if v.id == pick.gpu_id else v for v in out]
    return out


def test_a_small_slice_moves_to_make_room_for_a_whole_gpus_worth() -> None:
    small = profile(H100, "1g.10gb")
    views = [
        gpu(0, busy=[replace(taken(small, 0, span(2, 4)), tenancy=str(whose(0)))]),
        gpu(1, busy=[replace(taken(small, 6, span(2, 4)), tenancy=str(whose(1))), wall(0, 4, span(0, 9))]),
    ]
    movable = [Movable(whose(n), MigAsk("1g.10gb"), span(2, 4), 125, frozenset({n})) for n in range(2)]
    wanted = Wanted(MigAsk("7g.80gb"), span(1, 5))
    found = shift(fleet_of(views), wanted, movable, now=DAWN)
    assert found is not None
    assert [(move.reservation, move.picks[0].gpu_id) for move in found.moves] == [(whose(0), 1)]
    assert (found.picks[0].gpu_id, found.charge_milli) == (0, 125)
    check(views, movable, wanted, found)


def test_what_is_not_on_the_list_stays() -> None:
    views = [gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 4))]), gpu(1, use=Use.WHOLE)]
    assert shift(fleet_of(views), Wanted(GpuAsk(count=2), span(0, 1)), [], now=DAWN) is None


def test_several_gpus_of_one_node_come_free_together() -> None:
    views = [gpu(n, use=Use.WHOLE, node=f"node-{n // 2}") for n in range(4)]
    for n in (0, 2):
        views[n] = replace(views[n], busy=(replace(wall(0, 8, span(1, 3)), tenancy=str(whose(n))),))
    movable = [Movable(whose(n), GpuAsk(), span(1, 3), 1000, frozenset({n})) for n in (0, 2)]
    wanted = Wanted(GpuAsk(count=2, same_node=True), span(0, 4))
    found = shift(fleet_of(views), wanted, movable, now=DAWN)
    assert found is not None
    assert len(found.moves) == 1
    check(views, movable, wanted, found)


def test_nothing_has_to_move_where_it_fits_or_where_moving_does_not_help() -> None:
    view = gpu(0, use=Use.WHOLE, busy=[replace(wall(0, 8, span(1, 3)), tenancy=str(whose(0)))])
    movable = [Movable(whose(0), GpuAsk(), span(1, 3), 1000, frozenset({0}))]
    assert shift(fleet_of([view]), Wanted(GpuAsk(), span(4, 5)), movable, now=DAWN) is None
    assert shift(fleet_of([view]), Wanted(GpuAsk(), span(0, 5)), movable, now=DAWN) is None
