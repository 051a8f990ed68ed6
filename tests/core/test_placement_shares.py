"""Where shares go: against brute force, and the promises by example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Pick, Portion, Use, candidates, clash, shortfall
from pool.core.shapes import GpuAsk, MigAsk, ShareAsk, Sharing
from pool.core.shares import RESERVE_MIB
from tests.core.worlds import gpu, shuffled, span, wall

GIB = 1024


def card(
    number: int = 0,
    sharing: Sharing = Sharing.HAMI,
    *,
    node: str = "node-a",
    gib: int = 80,
    most: int = 10,
    one_user: bool = False,
    busy: Sequence[Busy] = (),
    why: str | None = None,
    model: str = "H100-80GB",
) -> GpuView:
    """A GPU for shares that has `gib` to give."""
    plain = gpu(number, model, node=node, use=Use.SHARE, busy=busy, why=why)
    return replace(
        plain,
        memory_mib=gib * GIB + RESERVE_MIB,
        sharing=sharing,
        most_shares=most,
        one_user=one_user,
        profiles=(),
    )


def held(gib: int, compute: int, period: Period, user: str | None = None, grid: int = 8) -> Busy:
    portion = Portion(gib * GIB, compute, compute or 100, user)
    return Busy(0, grid, period, None, "booked", None, portion)


def ask(gib: int = 8, compute: int = 10, count: int = 1, **more: object) -> ShareAsk:
    wanted = {"memory_mib": gib * GIB, "guaranteed": compute, "limit": compute or 100, "count": count}
    return ShareAsk(**wanted | more)  # type: ignore[arg-type]


# --- Against brute force -----------------------------------------------------------------


def fits(view: GpuView, new: Sequence[Portion], period: Period) -> bool:
    """Whether the GPU has room for all of them at every instant, counted without the ledgers' code."""
    begins = {period.start} | {b.period.start for b in view.busy if period.contains(b.period.start)}
    for instant in begins:
        there = [b for b in view.busy if b.period.contains(instant)]
        if any(b.portion is None for b in there):
            return False
        now = [b.portion for b in there if b.portion is not None] + list(new)
        memory = view.memory_mib or 0
        if sum(p.memory_mib for p in now) > memory - RESERVE_MIB or sum(p.compute_pct for p in now) > 100:
            return False
        if len(now) > view.most_shares or (view.one_user and len({p.user for p in now}) > 1):
            return False
    return True


def brute(gpus: Sequence[GpuView], wanted: ShareAsk, period: Period, account: str) -> bool:
    usable = [
        g
        for g in gpus
        if g.usable
        and g.use is Use.SHARE
        and (g.sharing is not Sharing.TIMESLICE or wanted.accept_not_enforced)
        and wanted.sharing in (None, g.sharing)
    ]
    for chosen in combinations_with_replacement(usable, wanted.count):
        if wanted.same_node and len({g.node for g in chosen}) > 1:
            continue
        each = Counter(g.id for g in chosen)
        if all(fits(g, portions(g, wanted, account) * each[g.id], period) for g in chosen):
            return True
    return False


def portions(g: GpuView, wanted: ShareAsk, account: str) -> list[Portion]:
    memory = wanted.memory_mib or ((g.memory_mib or 0) - RESERVE_MIB) * (wanted.memory_pct or 0) // 100
    return [Portion(memory, wanted.guaranteed, wanted.limit, account if g.one_user else None)]


periods = st.builds(
    lambda start, length: span(start, None if length is None else start + length),
    st.integers(0, 7),
    st.sampled_from([1, 2, 4, 8, None]),
)
busies = st.builds(
    lambda gib, compute, period, user: held(gib, compute, period, user),
    st.integers(1, 8),
    st.sampled_from([0, 0, 20, 50]),
    periods,
    st.sampled_from(["me", "me", "you"]),
)
walls = st.builds(lambda period: wall(0, 8, period), periods)
cards = st.builds(
    lambda sharing, node, gib, busy, why: card(0, sharing, node=node, gib=gib, busy=busy, why=why),
    st.sampled_from([Sharing.MPS, Sharing.MPS, Sharing.HAMI, Sharing.TIMESLICE]),
    st.sampled_from(["node-a", "node-b"]),
    st.integers(4, 10),
    st.lists(st.one_of(busies, busies, busies, walls), max_size=4),
    st.sampled_from([None, None, None, None, None, "frozen"]),
)
asks = st.builds(
    lambda memory, compute, count, same_node, sharing, accepted: ShareAsk(
        memory_mib=None if isinstance(memory, float) else memory * GIB,
        memory_pct=int(memory) if isinstance(memory, float) else None,
        guaranteed=compute,
        limit=compute or 100,
        count=count,
        same_node=same_node,
        sharing=sharing,
        accept_not_enforced=accepted,
    ),
    st.sampled_from([1, 2, 5, 9, 25.0, 50.0, 100.0]),
    st.sampled_from([0, 20, 50, 100]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([None, None, Sharing.MPS, Sharing.HAMI]),
    st.booleans(),
)
# How many shares a GPU takes, and whether all have to be one account's, is the pool's rule.
pools = st.builds(
    lambda found, most, one_user: [
        replace(g, id=n, index=n, most_shares=most, one_user=one_user and g.sharing is Sharing.MPS)
        for n, g in enumerate(found)
    ],
    st.lists(cards, min_size=1, max_size=3),
    st.integers(1, 4),
    st.booleans(),
)


@settings(max_examples=400)
@given(gpus=pools, wanted=asks, period=periods)
def test_it_finds_a_fit_exactly_when_brute_force_does(
    gpus: list[GpuView], wanted: ShareAsk, period: Period
) -> None:
    found = candidates(gpus, wanted, period, account="me")
    assert bool(found) == brute(gpus, wanted, period, "me")
    assert (shortfall(gpus, wanted, period, account="me").free >= wanted.count) == bool(found)


@settings(max_examples=200)
@given(gpus=pools, wanted=asks, period=periods)
def test_every_candidate_holds_at_every_instant(
    gpus: list[GpuView], wanted: ShareAsk, period: Period
) -> None:
    found = candidates(gpus, wanted, period, account="me")
    views = {g.id: g for g in gpus}
    for candidate in found:
        assert len(candidate.picks) == wanted.count
        assert clash(gpus, candidate.picks, period) is None
        on: dict[int, list[Portion]] = {}
        for pick in candidate.picks:
            assert pick.portion is not None
            assert (pick.start, pick.size) == (0, views[pick.gpu_id].grid)
            on.setdefault(pick.gpu_id, []).append(pick.portion)
        assert all(fits(views[gpu_id], mine, period) for gpu_id, mine in on.items())
    assert len({c.picks for c in found}) == len(found) <= 16


@settings(max_examples=100)
@given(gpus=pools, wanted=asks, period=periods, rotate=st.integers(0, 2))
def test_the_same_pool_in_another_order_gives_the_same_answer(
    gpus: list[GpuView], wanted: ShareAsk, period: Period, rotate: int
) -> None:
    turned = shuffled(gpus, rotate)
    assert candidates(gpus, wanted, period, account="me") == candidates(turned, wanted, period, account="me")


# --- Use and isolation -----------------------------------------------------------------------


def test_a_share_never_goes_where_slices_or_whole_gpus_are_given_and_the_other_way_round() -> None:
    assert candidates([gpu(use=Use.MIG), gpu(1, use=Use.WHOLE)], ask(), span(0, 1)) == []
    assert candidates([card()], GpuAsk(), span(0, 1)) == []
    assert candidates([card()], MigAsk(memory_mib=1), span(0, 1)) == []


def test_time_slicing_only_for_those_who_accept_that_nothing_is_enforced() -> None:
    loose = card(sharing=Sharing.TIMESLICE)
    assert candidates([loose], ask(), span(0, 1)) == []
    assert shortfall([loose], ask(), span(0, 1)).counts == {"not_enforced": 1}
    assert candidates([loose], ask(accept_not_enforced=True), span(0, 1))


def test_the_stronger_isolation_comes_first() -> None:
    kinds = [Sharing.TIMESLICE, Sharing.HAMI, Sharing.MPS]
    pool = [card(n, kind) for n, kind in enumerate(kinds)]
    pool[0] = replace(pool[0], busy=(held(70, 80, span(0, 1)),))
    found = candidates(pool, ask(accept_not_enforced=True), span(0, 1))
    assert [c.picks[0].gpu_id for c in found] == [2, 1, 0]
    only = candidates(pool, ask(sharing=Sharing.HAMI), span(0, 1))
    assert [c.picks[0].gpu_id for c in only] == [1]


def test_several_shares_are_of_one_kind_where_that_is_possible() -> None:
    pool = [card(0, Sharing.MPS, gib=16), card(1, Sharing.HAMI, gib=24)]
    three = candidates(pool, ask(count=3), span(0, 1))[0]
    assert {p.gpu_id for p in three.picks} == {1}
    assert {p.gpu_id for p in candidates(pool, ask(count=4), span(0, 1))[0].picks} == {0, 1}


# --- Which GPU -----------------------------------------------------------------------------


def test_it_fills_a_gpu_that_is_in_use_before_it_opens_another() -> None:
    used = card(1, busy=[held(40, 40, span(0, 8))])
    assert candidates([card(0), used, card(2)], ask(), span(2, 3))[0].picks[0].gpu_id == 1


def test_the_other_candidates_are_somewhere_else_as_long_as_there_is_one() -> None:
    found = candidates([card(n) for n in range(4)], ask(count=2), span(0, 1))
    assert [sorted({p.gpu_id for p in c.picks}) for c in found] == [[0], [1], [2], [3]]
    many = candidates([card(n, most=1) for n in range(3)], ask(count=2), span(0, 1))
    assert [[p.gpu_id for p in c.picks] for c in many] == [[0, 1], [0, 2], [1, 2]]


def test_a_search_among_thousands_of_shares_takes_milliseconds() -> None:
    """Measured 28 ms; the bound leaves room for a busy machine."""
    pool = [
        card(n, node=f"node-{n // 8:03}", busy=[held(4, 5, span(h, h + 2)) for h in range(0, 8, 2)])
        for n in range(1000)
    ]
    best = 1.0
    for _ in range(5):
        began = process_time()
        assert candidates(pool, ask(count=3), span(1, 6))
        best = min(best, process_time() - began)
    assert best < 0.2


def test_it_says_which_ledger_is_full() -> None:
    def why(*busy: Busy, **more: object) -> dict[str, int]:
        return shortfall([card(busy=busy, **more)], ask(), span(0, 1), account="me").counts  # type: ignore[arg-type]

    assert why(held(79, 1, span(0, 1))) == {"memory_full": 1}
    assert why(held(1, 95, span(0, 1))) == {"compute_full": 1}
    assert why(held(1, 1, span(0, 1)), most=1) == {"shares_full": 1}
    assert why(held(1, 1, span(0, 1), "you"), sharing=Sharing.MPS, one_user=True) == {"other_user": 1}
    assert why(wall(0, 8, span(0, None))) == {"blocked": 1}
    assert why(gib=4) == {"too_small": 1}


def test_a_share_that_needs_an_account_is_never_placed_without_one() -> None:
    with pytest.raises(ValueError, match="account"):
        candidates([card(sharing=Sharing.MPS, one_user=True)], ask(), span(0, 1))


def test_unknown_memory_gives_no_shares() -> None:
    unmeasured = replace(card(), memory_mib=None)
    assert shortfall([unmeasured], ask(), span(0, 1)).counts == {"memory_unknown": 1}


# --- Checking what was chosen -----------------------------------------------------------------


def pick(number: int = 0, gib: int = 8, compute: int = 10, user: str | None = None) -> Pick:
    return Pick(number, "H100-80GB", None, 0, 8, 100, Portion(gib * GIB, compute, compute, user))


@pytest.mark.parametrize(
    ("there", "word"),
    [
        (card(), None),
        (card(busy=[held(72, 90, span(0, 1))]), None),
        (card(busy=[held(73, 90, span(0, 1))]), "memory_full"),
        (card(busy=[held(72, 91, span(0, 1))]), "compute_full"),
        (card(busy=[held(73, 91, span(2, 3))]), None),
        (card(busy=[wall(0, 8, span(0, None))]), "busy"),
        (card(why="frozen"), "frozen"),
        (gpu(use=Use.WHOLE), "wrong_use"),
        (gpu(use=Use.MIG), "wrong_use"),
    ],
)
def test_a_pick_is_checked_with_the_rules_it_was_made_by(there: GpuView, word: str | None) -> None:
    assert clash([there], [pick()], span(0, 2)) == word


def test_picks_are_checked_against_one_another() -> None:
    assert clash([card()], [pick(gib=40), pick(gib=40)], span(0, 1)) is None
    assert clash([card()], [pick(gib=40), pick(gib=41)], span(0, 1)) == "memory_full"


def test_a_whole_gpu_is_not_picked_out_of_one_for_shares() -> None:
    assert clash([card()], [replace(pick(), portion=None)], span(0, 1)) == "wrong_use"
