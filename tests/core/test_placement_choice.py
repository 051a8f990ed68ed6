"""Which candidate comes first, and why: against brute force with nodes, and by example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.fleet import of_views
from pool.core.mix import Form, Kind, Mix
from pool.core.period import Period
from pool.core.placement import (
    Busy,
    GpuView,
    Policy,
    Portion,
    Use,
    candidates,
    clash,
    field,
    held_by,
    shortfall,
)
from pool.core.shapes import GpuAsk, MigAsk, ShareAsk, Sharing, Spread
from tests.core import worlds
from tests.core.worlds import at, gpu, profile, span, taken, wall

H100 = "H100-80GB"


# --- Against brute force ----------------------------------------------------------------


def node_gpu(number: int, node: str, cpu: int | None, block: str, domain: str, imex: str) -> GpuView:
    plain = gpu(number, node=node, use=Use.WHOLE)
    return replace(plain, cpu_milli=cpu, block=block, domain=domain, imex=imex)


@st.composite
def clusters(draw: st.DrawFn) -> list[GpuView]:
    """Up to four nodes with one to three GPUs each, in blocks and domains, some of them booked."""
    found: list[GpuView] = []
    blocks = draw(st.booleans())
    for n in range(draw(st.integers(1, 4))):
        cpu = draw(st.sampled_from([None, None, 0, 1000, 2000]))
        block = draw(st.sampled_from(["a", "b"])) if blocks else ""
        domain = draw(st.sampled_from(["", "x", "y"]))
        imex = draw(st.sampled_from(["READY", "READY", ""]))
        for _ in range(draw(st.integers(1, 3))):
            number = len(found)
            view = node_gpu(number, f"node-{n}", cpu, block, domain and f"{block}{domain}", imex)
            busy = draw(st.lists(worlds.periods.map(lambda p: wall(0, 8, p)), max_size=1))
            found.append(replace(view, busy=tuple(busy)))
    return found


linked_asks = st.builds(
    lambda count, same_node, domain, segment, spread, cpu: GpuAsk(
        count=count,
        same_node=same_node and not spread,
        same_nvlink_domain=domain,
        segment=segment if segment and (segment >= count or count % segment == 0) else None,
        spread=Spread.NODE if spread else None,
        node_cpu_milli=cpu,
    ),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3, 9]),
    st.booleans(),
    st.sampled_from([0, 0, 1000]),
)


def allowed(ask: GpuAsk, some: Sequence[GpuView], every: Sequence[GpuView]) -> bool:
    """The rules as they are told to users, for one set of GPUs."""
    nodes = [g.node for g in some]
    if ask.same_node and len(set(nodes)) > 1:
        return False
    if ask.spread and len(set(nodes)) < len(some):
        return False
    for g in some:
        if g.cpu_milli is not None and nodes.count(g.node) * ask.node_cpu_milli > g.cpu_milli:
            return False
    if ask.same_node:
        return True
    unready = any(g.imex != "READY" or not g.domain for g in some) or len({g.domain for g in some}) > 1
    if ask.same_nvlink_domain and len(set(nodes)) > 1 and unready:
        return False
    return _blocks_allow(ask, some, every)


def _blocks_allow(ask: GpuAsk, some: Sequence[GpuView], every: Sequence[GpuView]) -> bool:
    if not any(g.block for g in every):
        return True
    inside = [sum(g.block == block for g in some) for block in {g.block for g in every}]
    if ask.segment is not None:
        size = min(ask.segment, ask.count)
        return all(number % size == 0 for number in inside)
    if ask.same_nvlink_domain or ask.count == 1:
        return True
    return sum(number > 0 for number in inside) == 1 or not _fits_a_block(ask, every)


def _fits_a_block(ask: GpuAsk, every: Sequence[GpuView]) -> bool:
    """Whether some block holds the ask when nothing is booked."""
    for block in {g.block for g in every}:
        room = 0
        for node in {g.node for g in every if g.block == block}:
            cards = [g for g in every if g.node == node]
            most = len(cards)
            if ask.node_cpu_milli and cards[0].cpu_milli is not None:
                most = min(most, cards[0].cpu_milli // ask.node_cpu_milli)
            room += min(most, 1) if ask.spread else most
        if room >= ask.count:
            return True
    return False


@settings(max_examples=400)
@given(every=clusters(), ask=linked_asks, period=worlds.periods)
def test_it_finds_a_fit_exactly_when_the_rules_allow_one(
    every: list[GpuView], ask: GpuAsk, period: Period
) -> None:
    free = [g for g in every if not any(b.period.overlaps(period) for b in g.busy)]
    fits = any(allowed(ask, some, every) for some in combinations(free, ask.count))
    found = candidates(every, ask, period)
    assert bool(found) == fits
    assert (shortfall(every, ask, period).free >= ask.count) == fits
    views = {g.id: g for g in every}
    for candidate in found:
        assert len({p.gpu_id for p in candidate.picks}) == ask.count
        assert clash(every, candidate.picks, period) is None
        assert allowed(ask, [views[p.gpu_id] for p in candidate.picks], every)
    assert len({c.picks for c in found}) == len(found)
    assert found == candidates(every[::-1], ask, period)


@settings(max_examples=100)
@given(data=st.data())
def test_one_of_several_profiles_is_found_when_any_of_them_fits(data: st.DataObject) -> None:
    gpus, _, period = data.draw(worlds.cases(H100))
    names = data.draw(
        st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "1g.20gb"]), min_size=1, unique=True)
    )
    ask = MigAsk(profile_any=tuple(names), count=data.draw(st.integers(1, 3)))
    found = candidates(gpus, ask, period)
    each = [candidates(gpus, MigAsk(name, count=ask.count), period) for name in names]
    assert bool(found) == any(each)
    assert [c.charge_milli for c in found] == sorted(c.charge_milli for c in found)
    assert all(len({p.profile for p in c.picks}) == 1 for c in found)


# --- Where somebody is already ---------------------------------------------------------------


def test_the_span_that_the_owner_has_already_comes_first() -> None:
    pool = [gpu(n) for n in range(3)]
    (first, *_) = candidates(pool, MigAsk("1g.10gb"), span(0, 1), own=[(2, 3, 1)])
    assert (first.picks[0].gpu_id, first.picks[0].start, first.why.stays) == (2, 3, True)
    both = candidates(pool, MigAsk("1g.10gb", count=2), span(0, 1), own=[(2, 3, 1), (1, 0, 1)])[0]
    assert [(p.gpu_id, p.start) for p in both.picks] == [(1, 0), (2, 3)]
    wholes = [gpu(n, node=f"node-{n // 2}", use=Use.WHOLE) for n in range(4)]
    assert candidates(wholes, GpuAsk(), span(0, 1), own=[(3, 0, 8)])[0].picks[0].gpu_id == 3
    two = candidates(wholes, GpuAsk(count=2), span(0, 1), own=[(2, 0, 8), (3, 0, 8)])[0]
    assert [p.gpu_id for p in two.picks] == [2, 3]
    assert two.why.stays


def test_it_is_found_in_the_fleet_by_owner_and_team() -> None:
    p = profile(H100, "2g.20gb")
    fleet = of_views([gpu(4, busy=[taken(p, 2, span(0, 2)), taken(p, 4, span(0, 3))])])
    rows = fleet.rows()
    rows["owner"], rows["team"] = 7, 9
    mine = fleet.updated(fleet.cards, rows)
    assert held_by(mine, 7, 9, span(2, 4)) == [(4, 2, 2)]
    assert held_by(mine, 7, 9, span(3, 4)) == [(4, 4, 2)]
    assert held_by(mine, 7, 8, span(2, 4)) == held_by(mine, 6, 9, span(2, 4)) == []


# --- What it costs ------------------------------------------------------------------------


def test_a_model_that_others_are_bound_to_is_spared_until_the_pool_is_full() -> None:
    kinds = (Kind(Form.WHOLE, 1), Kind(Form.WHOLE, 1, models=("A100-80GB",)))
    policy = Policy(Mix(kinds, (0.5, 0.5)))
    pool = [gpu(n, "A100-80GB", node="node-a", use=Use.WHOLE) for n in range(4)]
    pool += [gpu(n, H100, node="node-b", use=Use.WHOLE) for n in range(4, 8)]
    (first, *_) = candidates(pool, GpuAsk(), span(0, 1), policy=policy)
    assert first.picks[0].model == H100
    assert first.why.pressure == 0
    bound = candidates(pool, GpuAsk(models=("A100-80GB",)), span(0, 1), policy=policy)[0]
    assert bound.why.pressure == 0
    other = [c for c in candidates(pool, GpuAsk(), span(0, 1), policy=policy) if c.picks[0].model != H100]
    assert other[0].why.pressure > 0


def test_a_booking_goes_where_it_leaves_no_gap_that_nobody_fills() -> None:
    """Both GPUs are free from 2 to 6; on the second something ends at 2 and begins at 6."""
    loose = gpu(0, node="node-a", use=Use.WHOLE, busy=[wall(0, 8, span(7, 8))])
    tight = gpu(1, node="node-a", use=Use.WHOLE, busy=[wall(0, 8, span(0, 2)), wall(0, 8, span(6, 8))])
    (first, *_) = candidates([loose, tight], GpuAsk(), span(2, 6), now=at(0))
    assert first.picks[0].gpu_id == 1
    assert first.why.gaps < 0


def test_slices_fill_gaps_too() -> None:
    p = profile(H100, "4g.40gb")
    tight = gpu(1, busy=[taken(p, 0, span(0, 2)), taken(p, 0, span(6, 8))])
    loose = gpu(0, busy=[taken(p, 0, span(0, 1)), taken(p, 0, span(7, 8))])
    (first, *_) = candidates([loose, tight], MigAsk("4g.40gb"), span(2, 6), now=at(0))
    assert first.picks[0].gpu_id == 1


def test_shares_go_together_with_those_that_end_with_them() -> None:
    def card(number: int, end: float) -> GpuView:
        plain = gpu(number, use=Use.SHARE)
        held = Busy(0, 8, span(0, end), None, "booked", None, Portion(8192, 10, 10))
        return replace(plain, sharing=Sharing.HAMI, most_shares=9, profiles=(), busy=(held,))

    ask = ShareAsk(memory_mib=8192, guaranteed=10, limit=10)
    (first, *_) = candidates([card(0, 2), card(1, 8)], ask, span(1, 8))
    assert first.picks[0].gpu_id == 1


def test_why_tells_the_terms_that_its_cost_is_made_of() -> None:
    (first, *_) = candidates([gpu(0), gpu(1)], MigAsk("2g.20gb", count=2), span(0, 1))
    why = first.why
    assert first.cost == why.cost == why.loss + why.pressure + why.gaps + why.mode
    assert why.loss > 0


@pytest.mark.parametrize("count", [1, 3])
def test_models_to_avoid_are_not_taken(count: int) -> None:
    pool = [gpu(0), gpu(1, "A100-80GB")]
    found = candidates(pool, MigAsk("1g.10gb", count=count), span(0, 1), avoid={H100})
    assert {p.model for c in found for p in c.picks} == {"A100-80GB"}


def test_a_field_counts_what_each_gpu_has_room_for() -> None:
    fleet = of_views([gpu(0), gpu(1, use=Use.WHOLE), gpu(2, why="frozen")])
    here = field(fleet, MigAsk("3g.40gb"), span(0, 1), at(0))
    assert here.count.tolist() == [2, 0, 0]
    assert [here.words[code] for code in here.why] == ["room", "wrong_use", "frozen"]
    assert here.free == 2
