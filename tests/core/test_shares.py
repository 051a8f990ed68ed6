"""Shares: what one takes and counts, by example; the ledgers against a look at every instant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import shares
from pool.core.period import Period
from pool.core.shapes import ShareAsk, Sharing
from pool.core.shares import Ledgers, Portion, There, charge_milli, overflow, portion, room_for
from tests.core.worlds import span

SHAREABLE = 80_000


def share(memory_mib: int = 8_000, compute: int = 10, user: str | None = None) -> Portion:
    return Portion(memory_mib, compute, compute or 100, user)


def ledgers(memory_mib: int = SHAREABLE, tenants: int = 10, one_user: bool = False) -> Ledgers:
    return Ledgers(memory_mib, tenants, one_user)


# --- What one share takes, and what it counts --------------------------------------------


def test_memory_in_percent_is_of_what_can_be_shared_and_rounded_down() -> None:
    third = portion(ShareAsk(memory_pct=33, guaranteed=10, limit=10), 1_000, None)
    assert third == Portion(330, 10, 10)
    half = portion(ShareAsk(memory_pct=50, guaranteed=50, limit=50), 81, None)
    assert half is not None
    assert room_for(half, [], span(0, 1), ledgers(81))[0] == 2


def test_a_share_that_is_larger_than_what_can_be_shared_fits_nowhere() -> None:
    assert portion(ShareAsk(memory_mib=SHAREABLE, guaranteed=1, limit=1), SHAREABLE, None)
    assert portion(ShareAsk(memory_mib=SHAREABLE + 1, guaranteed=1, limit=1), SHAREABLE, None) is None
    assert portion(ShareAsk(memory_pct=100, guaranteed=1, limit=1), 0, None) is None


def test_some_memory_is_never_given_away() -> None:
    assert shares.shareable_mib(81_559) == 81_559 - shares.RESERVE_MIB
    assert shares.shareable_mib(500) == 0


@pytest.mark.parametrize(
    ("memory_mib", "compute", "milli"),
    [
        (40_000, 10, 500),
        (8_000, 30, 300),
        (8_001, 10, 101),  # rounded up
        (1, 0, 50),  # 5 % of the compute at least
        (1, 5, 50),
        (80_000, 100, 1000),
    ],
)
def test_it_counts_the_larger_of_its_parts(memory_mib: int, compute: int, milli: int) -> None:
    assert charge_milli(share(memory_mib, compute), SHAREABLE) == milli


def test_it_counts_one_gib_at_least_and_a_whole_gpu_at_most() -> None:
    assert charge_milli(share(1, 1), 10_240) == 100
    assert charge_milli(share(1, 1), 512) == 1000


def test_what_yields_counts_by_what_is_guaranteed() -> None:
    assert charge_milli(Portion(4_000, 0, 100), SHAREABLE) == 50


def test_an_mps_server_has_a_limit_of_its_own() -> None:
    assert shares.most_tenants(Sharing.MPS, 100) == 48
    assert shares.most_tenants(Sharing.MPS, 10) == 10
    assert shares.most_tenants(Sharing.HAMI, 100) == 100


# --- The ledgers by example ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "word"),
    [
        (share(79_000, 1), "memory_full"),
        (share(1, 95), "compute_full"),
        (share(1, 0, "someone"), "other_user"),
    ],
)
def test_it_says_which_ledger_is_full(there: Portion, word: str) -> None:
    full = ledgers(one_user=word == "other_user")
    mine = share(8_000, 10, "me" if full.one_user else None)
    assert room_for(mine, [(span(0, 2), there)], span(1, 3), full) == (0, word)
    assert overflow([mine], [(span(0, 2), there)], span(1, 3), full) == word


def test_a_gpu_takes_no_more_shares_than_its_pool_allows() -> None:
    there = [(span(0, 2), share(1, 0))] * 3
    assert room_for(share(1, 0), there, span(0, 1), ledgers(tenants=3)) == (0, "shares_full")
    assert room_for(share(1, 0), there, span(0, 1), ledgers(tenants=5)) == (2, None)


def test_shares_of_one_account_go_together_where_the_server_is_one_accounts() -> None:
    there = [(span(0, 2), share(1, 0, "me"))]
    assert room_for(share(1, 0, "me"), there, span(0, 1), ledgers(tenants=3, one_user=True)) == (2, None)
    assert overflow([share(1, 0, "me"), share(1, 0, "you")], [], span(0, 1), ledgers(one_user=True))


def test_the_peak_counts_and_never_the_sum_over_time() -> None:
    one_after_another = [(span(n, n + 1), share(70_000, 90)) for n in range(8)]
    assert room_for(share(10_000, 10), one_after_another, span(0, 8), ledgers()) == (1, None)


# --- Against a look at every instant ---------------------------------------------------------


def brute(new: list[Portion], there: list[There], within: Period, book: Ledgers) -> bool:
    """Whether all of it fits, at every instant at which something begins."""
    begins = {within.start} | {p.start for p, _ in there if within.contains(p.start)}
    for instant in begins:
        now = [one for p, one in there if p.contains(instant)] + new
        if sum(one.memory_mib for one in now) > book.memory_mib or len(now) > book.tenants:
            return False
        if sum(one.compute_pct for one in now) > book.compute_pct:
            return False
        if book.one_user and len({one.user for one in now}) > 1:
            return False
    return True


portions = st.builds(
    lambda memory, compute, user: Portion(memory, compute, compute or 100, user),
    st.integers(1, 10),
    st.sampled_from([0, 0, 10, 25, 50, 100]),
    st.sampled_from(["me", "me", "you"]),
)
periods = st.builds(
    lambda start, length: span(start, None if length is None else start + length),
    st.integers(0, 7),
    st.sampled_from([1, 2, 3, 8, None]),
)
books = st.builds(
    lambda memory, tenants, one_user: Ledgers(memory, tenants, one_user),
    st.integers(1, 20),
    st.integers(0, 5),
    st.booleans(),
)
calendars = st.lists(st.tuples(periods, portions), max_size=6)


@settings(max_examples=400)
@given(one=portions, there=calendars, within=periods, book=books)
def test_there_is_room_for_exactly_as_many_as_fit_at_every_instant(
    one: Portion, there: list[There], within: Period, book: Ledgers
) -> None:
    count, why = room_for(one, there, within, book)
    assert (why is None) == (count > 0)
    while_there = [(p, other) for p, other in there if p.overlaps(within)]
    # Whose server it is stands for the whole time, whoever has gone in between.
    others = book.one_user and any(other.user != one.user for _, other in while_there)
    if others:
        assert (count, why) == (0, "other_user")
        return
    assert count == max(n for n in range(21) if n == 0 or brute([one] * n, there, within, book))


@settings(max_examples=400)
@given(new=st.lists(portions, min_size=1, max_size=3), there=calendars, within=periods, book=books)
def test_what_overflows_is_what_does_not_fit_at_some_instant(
    new: list[Portion], there: list[There], within: Period, book: Ledgers
) -> None:
    why = overflow(new, there, within, book)
    if why == "other_user":
        assert book.one_user
        book = replace(book, one_user=False)
        why = overflow(new, there, within, book)
    assert (why is None) == brute(new, there, within, replace(book, one_user=False))
    assert why in (None, *shares.FULL)


@settings(max_examples=200)
@given(one=portions, there=calendars, within=periods, book=books)
def test_both_ways_of_asking_agree(one: Portion, there: list[There], within: Period, book: Ledgers) -> None:
    count, _ = room_for(one, there, within, book)
    assert (overflow([one], there, within, book) is None) == (count > 0)
    if count:
        assert overflow([one] * count, there, within, book) is None
        assert overflow([one] * (count + 1), there, within, book) is not None


@settings(max_examples=200)
@given(memory=st.integers(1, 80_000), compute=st.integers(0, 100))
def test_what_fits_on_one_gpu_never_counts_less_than_it_takes(memory: int, compute: int) -> None:
    milli = charge_milli(share(memory, compute), SHAREABLE)
    assert milli * SHAREABLE >= 1000 * memory
    assert milli >= 10 * compute
    assert 50 <= milli <= 1000
