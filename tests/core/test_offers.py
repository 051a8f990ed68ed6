"""Offers against brute force: the soonest and the longest extendable are exact, and each can be booked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import placement
from pool.core.fleet import of_views
from pool.core.offers import Good, Offer, Placed, Search, offers, soonest
from pool.core.openings import openings
from pool.core.period import Period
from pool.core.placement import GpuView, Pick, Use
from pool.core.shapes import Ask, GpuAsk, MigAsk, ShareAsk, Sharing
from tests.core import worlds
from tests.core.worlds import DAWN, HOURS, at, gpu, profile, span, taken, wall

H100 = "H100-80GB"
LAST = 2 * HOURS + 2


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def search(
    gpus: Sequence[GpuView], ask: Ask, length: float, *, until: float = LAST, closed: Sequence[Period] = ()
) -> Search:
    """For so many hours from dawn on."""

    def place(period: Period, free_until: datetime | None) -> Placed | None:
        if any(period.overlaps(one) for one in closed):
            return None
        wished = [Period(period.start, free_until)] if free_until else []
        for tried in (*wished, period):
            found = placement.candidates(gpus, ask, tried, account="me")
            if found:
                return Placed(found[0].picks)
        return None

    def free(picks: Sequence[Pick], period: Period) -> bool:
        return placement.clash(gpus, picks, period) is None

    found = openings(of_views(gpus), ask, DAWN, hours(length), now=DAWN, account="me")
    return Search(found, span(0, until), hours(length), place, free, tuple(closed))


def only(found: Sequence[Offer], good: Good) -> Offer:
    (one,) = (offer for offer in found if good in offer.good_for)
    return one


def starts(found: Sequence[Offer]) -> list[float]:
    return [(offer.period.start - DAWN) / hours(1) for offer in found]


# --- Exact ------------------------------------------------------------------------


@settings(max_examples=120)
@given(case=worlds.cases(H100), length=st.integers(1, 5))
def test_the_soonest_is_the_first_that_brute_force_finds(case: worlds.Case, length: int) -> None:
    gpus, ask, _ = case
    tried = (h for h in range(LAST - length + 1) if worlds.brute_fit(gpus, ask, span(h, h + length)))
    first = next(tried, None)
    found = offers(search(gpus, ask, length))
    assert (starts(found)[0] if found else None) == first
    assert soonest(search(gpus, ask, length)) == (None if first is None else at(first))


@settings(max_examples=80)
@given(case=worlds.cases(H100), length=st.integers(1, 4))
def test_no_place_stays_free_for_longer_than_the_longest(case: worlds.Case, length: int) -> None:
    gpus, ask, _ = case
    found = offers(search(gpus, ask, length))
    if not found:
        return
    longest = only(found, Good.LONGEST_EXTENDABLE)
    last = range(LAST - length + 1)
    if longest.extendable_until is None:
        assert any(worlds.brute_fit(gpus, ask, span(h, None)) for h in last)
        return
    more = longest.extendable_until - longest.period.end  # type: ignore[operator]
    stays = more / hours(1)
    assert any(worlds.brute_fit(gpus, ask, span(h, h + length + stays)) for h in last)
    assert not any(worlds.brute_fit(gpus, ask, span(h, h + length + stays + 1)) for h in last)


@settings(max_examples=80)
@given(case=worlds.cases(H100), length=st.integers(1, 4))
def test_every_offer_is_free_for_as_long_as_it_says_and_inside_the_window(
    case: worlds.Case, length: int
) -> None:
    gpus, ask, _ = case
    found = offers(search(gpus, ask, length))
    assert len(found) <= 5
    assert starts(found) == sorted(set(starts(found)))
    for offer in found:
        assert offer.period.duration == hours(length)
        assert span(0, LAST).start <= offer.period.start
        assert offer.period.end <= at(LAST)  # type: ignore[operator]
        until = offer.extendable_until or at(1000)
        assert placement.clash(gpus, offer.picks, Period(offer.period.start, until)) is None
        again = search(gpus, ask, length).place(offer.period, offer.free_until)
        assert again == Placed(offer.picks)


@settings(max_examples=40)
@given(case=worlds.cases(H100), length=st.integers(1, 4))
def test_the_same_pool_gets_the_same_offers_in_whatever_order_it_comes(
    case: worlds.Case, length: int
) -> None:
    gpus, ask, _ = case
    assert offers(search(gpus, ask, length)) == offers(search(gpus[::-1], ask, length))


# --- Cases ------------------------------------------------------------------------


def test_the_three_kinds_are_told_apart() -> None:
    pool = [
        gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(3, 9))]),
        gpu(1, use=Use.WHOLE, busy=[wall(0, 8, span(0, 4)), wall(0, 8, span(6, 20))]),
        gpu(2, use=Use.WHOLE, busy=[wall(0, 8, span(0, 11))]),
    ]
    found = offers(search(pool, GpuAsk(), 2, until=14))
    assert only(found, Good.SOONEST).period == span(0, 2)
    tight = only(found, Good.LEAST_FRAGMENTING)
    assert (tight.period, tight.idle, tight.extendable_until) == (span(4, 6), timedelta(), at(6))
    longest = only(found, Good.LONGEST_EXTENDABLE)
    assert (longest.period.start, longest.extendable_until) == (at(9), None)


def test_one_start_can_be_good_for_everything() -> None:
    (first, *_) = offers(search([gpu(0, use=Use.WHOLE)], GpuAsk(), 2))
    assert first.period == span(0, 2)
    assert first.good_for == (Good.SOONEST, Good.LEAST_FRAGMENTING, Good.LONGEST_EXTENDABLE)
    assert first.extendable_until is None


def test_nothing_is_offered_outside_the_window() -> None:
    pool = [gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(0, 5))])]
    assert starts(offers(search(pool, GpuAsk(), 2, until=7))) == [5]
    assert offers(search(pool, GpuAsk(), 2, until=6.9)) == []
    assert offers(search([], GpuAsk(), 2)) == []


def test_times_at_which_nothing_may_be_booked_are_left_out() -> None:
    pool = [gpu(0, use=Use.WHOLE)]
    found = offers(search(pool, GpuAsk(), 2, closed=[span(1, 3), span(4, 5)]))
    assert starts(found)[0] == 5


def test_a_slice_beside_which_it_cannot_be_closes_the_whole_gpu() -> None:
    me = profile(H100, "1g.10gb+me")
    pool = [gpu(0, busy=[taken(me, 0, span(0, 3))])]
    assert starts(offers(search(pool, MigAsk("1g.10gb+me"), 1)))[0] == 3
    assert starts(offers(search(pool, MigAsk("1g.10gb"), 1)))[0] == 0


def share_gpu(number: int, *portions: tuple[Period, int, int, str]) -> GpuView:
    busy = tuple(
        replace(wall(0, 8, period), tenancy="booked", portion=placement.Portion(memory, compute, 100, user))
        for period, memory, compute, user in portions
    )
    plain = gpu(number, use=Use.SHARE)
    return replace(plain, sharing=Sharing.MPS, most_shares=7, one_user=True, busy=busy)


def test_a_share_starts_when_the_ledger_has_room() -> None:
    pool = [share_gpu(0, (span(0, 4), 8192, 60, "me"), (span(2, 6), 8192, 30, "me"))]
    half = ShareAsk(memory_mib=4096, guaranteed=50, limit=50)
    assert starts(offers(search(pool, half, 3)))[0] == 4
    little = ShareAsk(memory_mib=4096, guaranteed=10, limit=10)
    assert starts(offers(search(pool, little, 3)))[0] == 0
    assert starts(offers(search(pool, replace(little, count=2), 3)))[0] == 4


def test_a_share_waits_for_another_account_to_leave() -> None:
    pool = [share_gpu(0, (span(0, 4), 8192, 10, "you"), (span(5, 6), 1024, 10, "me"))]
    found = offers(search(pool, ShareAsk(memory_mib=1024, guaranteed=10, limit=10), 3))
    assert starts(found)[0] == 4


@pytest.mark.parametrize("count", [2, 3])
def test_several_start_when_all_of_them_are_free(count: int) -> None:
    pool = [gpu(n, use=Use.WHOLE, busy=[wall(0, 8, span(0, n + 1))]) for n in range(4)]
    found = offers(search(pool, GpuAsk(count=count), 2))
    assert starts(found)[0] == count
    assert only(found, Good.LONGEST_EXTENDABLE).extendable_until is None


def test_a_gpu_of_any_use_needs_time_to_change_its_mode() -> None:
    slice_ = taken(profile(H100, "1g.10gb"), 0, span(0, 2))
    pool = [replace(gpu(0, use=Use.AUTO, busy=[slice_]), mig_capable=True, mig_now=True)]
    (first, *_) = offers(search(pool, GpuAsk(), 1))
    assert first.period.start == at(2) + timedelta(seconds=60)


def test_more_starts_lie_apart_from_one_another() -> None:
    pool = [gpu(n, use=Use.WHOLE, busy=[wall(0, 8, span(n, 20))]) for n in range(1, 9)]
    found = offers(search(pool, GpuAsk(), 1, until=20))
    assert len(found) == 5
    assert starts(found) == sorted(set(starts(found)))


@settings(max_examples=60)
@given(case=worlds.cases(H100), length=st.integers(1, 4))
def test_of_all_starts_at_the_ends_of_openings_the_least_fragmenting_costs_least(
    case: worlds.Case, length: int
) -> None:
    gpus, ask, _ = case
    found = offers(search(gpus, ask, length))
    if not found:
        return
    best = only(found, Good.LEAST_FRAGMENTING)
    assert all((best.loss, best.idle) <= (one.loss, one.idle) for one in found if one.free_until is None)
