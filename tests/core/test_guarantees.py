"""Guarantees that hold: the rules with their numbers, and small pools against trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pool.core.fleet import fleet, micros, of_views
from pool.core.guarantees import Claim, Claims, Guarantees, Takeable
from pool.core.period import Period
from pool.core.placement import GpuView, Pick, Portion, Use
from pool.core.shapes import Sharing
from tests.core.worlds import DAWN, at, gpu, profile, span, wall

H100, A100 = "H100-80GB", "A100-40GB"
MORNING = span(0, 4)
MINE, OTHER, THIRD = 1, 2, 3


def whole(view: GpuView) -> Pick:
    return Pick(view.id, view.model, None, 0, view.grid, 1000)


def piece(view: GpuView, name: str, start: int) -> Pick:
    p = profile(view.model, name)
    return Pick(view.id, view.model, p, start, p.size, 1000 * p.size // view.grid)


def guarded(
    views: Sequence[GpuView],
    claims: Sequence[Claim],
    period: Period = MORNING,
    takeable: Takeable | None = None,
) -> Guarantees:
    known = of_views(views)
    of_others = Claims.of(known, claims).but(MINE)
    return Guarantees(known, period, DAWN, of_others, takeable or Takeable.none())


def wholes(nodes: str, use: Use = Use.WHOLE) -> list[GpuView]:
    """One GPU for each letter, on the node of that letter."""
    return [gpu(n, H100, node=f"node-{letter}", use=use) for n, letter in enumerate(nodes)]


# --- The rules, with the numbers written out --------------------------------------


def test_two_of_three_gpus_are_guaranteed_to_another_team_so_only_one_can_be_taken():
    views = wholes("abc")
    promised = guarded(views, [Claim(OTHER, H100, 2000, MORNING, "gpu")])
    assert promised.allow([whole(views[0])])
    assert not promised.allow([whole(views[0]), whole(views[1])])


def test_what_a_team_is_guaranteed_itself_keeps_nothing_from_it():
    views = wholes("ab")
    assert guarded(views, [Claim(MINE, H100, 2000, MORNING, "gpu")]).allow([whole(v) for v in views])


def test_single_gpus_are_taken_where_they_do_not_break_the_last_group_of_a_node():
    # Node a has two free GPUs, node b one: the group of two can only be on a.
    views = wholes("aab")
    promised = guarded(views, [Claim(OTHER, H100, 2000, MORNING, "node", 2)])
    assert promised.allow([whole(views[2])])
    assert not promised.allow([whole(views[0])])
    assert promised.open_to(1000).tolist() == [False, False, True]


def test_a_guarantee_in_slots_takes_any_slices_but_one_in_gpus_needs_an_empty_gpu():
    # 1g.10gb on each of two GPUs: 875 milli are left of each, but no whole GPU.
    views = [gpu(0), gpu(1)]
    picks = [piece(view, "1g.10gb", 0) for view in views]
    assert guarded(views, [Claim(OTHER, H100, 1000, MORNING, "slots")]).allow(picks)
    assert not guarded(views, [Claim(OTHER, H100, 1000, MORNING, "gpu")]).allow(picks)


def test_slices_count_only_as_far_as_offered_profiles_cover_them():
    # Of eight memory slices the last can only be had with its neighbour.
    views = [gpu(0)]
    six = [piece(views[0], "1g.10gb", start) for start in range(6)]
    rest = [Claim(OTHER, H100, 250, MORNING)]
    assert guarded(views, rest).allow(six)
    assert not guarded(views, [Claim(OTHER, H100, 125, MORNING)]).allow([*six, piece(views[0], "1g.10gb", 6)])


def test_whole_gpus_are_those_whose_use_allows_it_where_a_model_has_any():
    mixed = [gpu(0, use=Use.MIG), gpu(1, use=Use.WHOLE)]
    claim = [Claim(OTHER, H100, 1000, MORNING, "gpu")]
    assert guarded(mixed, claim).allow([piece(mixed[0], "7g.80gb", 0)])
    assert not guarded(mixed, claim).allow([whole(mixed[1])])
    slices_only = [gpu(0), gpu(1)]
    assert guarded(slices_only, claim).allow([piece(slices_only[0], "7g.80gb", 0)])
    assert not guarded(slices_only, claim).allow([piece(view, "1g.10gb", 0) for view in slices_only])


def test_what_is_no_whole_unit_is_claimed_in_the_next_smaller_one():
    # 3500 milli in groups of two: one group, one GPU and half a GPU in slots.
    views = wholes("aabbc")
    promised = guarded(views, [Claim(OTHER, H100, 3500, MORNING, "node", 2)])
    assert promised.allow([whole(views[4])])
    assert not promised.allow([whole(views[4]), whole(views[3])])


def test_a_guarantee_for_any_model_takes_what_those_for_one_model_leave():
    views = [gpu(0, H100, use=Use.WHOLE), gpu(1, A100, use=Use.WHOLE), gpu(2, A100, use=Use.WHOLE)]
    claims = [Claim(OTHER, H100, 1000, MORNING, "gpu"), Claim(THIRD, None, 1000, MORNING, "gpu")]
    assert guarded(views, claims).allow([whole(views[1])])
    assert not guarded(views, claims).allow([whole(views[0])])
    assert not guarded(views, claims).allow([whole(views[1]), whole(views[2])])


def test_borrowers_stand_in_nobodys_way_because_they_can_be_taken_back():
    views = wholes("aa")
    views[0] = replace(views[0], busy=(wall(0, 8, span(0, 4)),))
    claim = [Claim(OTHER, H100, 1000, MORNING, "gpu")]
    borrowed = Takeable(np.array([0]), np.array([micros(at(0))]), np.array([micros(at(4))]))
    assert not guarded(views, claim).allow([whole(views[1])])
    assert guarded(views, claim, MORNING, borrowed).allow([whole(views[1])])
    half = replace(borrowed, until=np.array([micros(at(2))]))
    assert not guarded(views, claim, MORNING, half).allow([whole(views[1])])
    assert guarded(views, claim, span(0, 2), half).allow([whole(views[1])])


def test_a_use_that_ends_and_the_guarantee_that_it_leaves_unused_then_are_not_counted_twice():
    views = wholes("ab")
    views[0] = replace(views[0], busy=(wall(0, 8, span(0, 2)),))
    after = [Claim(OTHER, H100, 1000, span(2, None), "gpu")]
    assert guarded(views, after).allow([whole(views[1])])
    assert not guarded(views, [Claim(OTHER, H100, 1000, MORNING, "gpu")]).allow([whole(views[1])])


def test_what_is_lacking_anyway_is_no_reason_to_refuse_but_it_must_not_grow():
    # Three GPUs are promised, two are there: taking one makes it worse, one of another model does not.
    views = [*wholes("ab"), gpu(2, A100, use=Use.WHOLE)]
    promised = guarded(views, [Claim(OTHER, H100, 3000, MORNING, "gpu")])
    assert not promised.allow([whole(views[0])])
    assert promised.allow([whole(views[2])])
    assert promised.open_to(1000).tolist() == [card.model == A100 for card in promised.fleet.cards]


def test_where_more_is_promised_than_there_is_who_comes_first_gets_what_is_left():
    # Both teams have one GPU left of their guarantees, and one GPU is there.
    views = wholes("a")
    known = of_views(views)
    claims = Claims.of(known, [Claim(team, H100, 1000, MORNING, "gpu") for team in (MINE, OTHER)])
    of_others, own = claims.but(MINE), claims.but(OTHER)
    assert Guarantees(known, MORNING, DAWN, of_others, Takeable.none(), own).allow([whole(views[0])])
    assert not Guarantees(known, MORNING, DAWN, of_others, Takeable.none()).allow([whole(views[0])])


def test_gpus_that_are_out_of_reach_serve_no_guarantee():
    views = [*wholes("a"), gpu(1, use=Use.WHOLE, why="unknown")]
    assert not guarded(views, [Claim(OTHER, H100, 1000, MORNING, "gpu")]).allow([whole(views[0])])


def test_shares_leave_what_both_ledgers_leave():
    view = replace(gpu(0, use=Use.SHARE), sharing=Sharing.HAMI, most_shares=4, memory_mib=81_920 + 1024)
    portion = Portion(40_960, 70, 100)
    share = Pick(0, H100, None, 0, 8, 700, portion)
    # Half of the memory and 30 % of the compute are left: 300 milli.
    assert guarded([view], [Claim(OTHER, H100, 300, MORNING)]).allow([share])
    assert not guarded([view], [Claim(OTHER, H100, 301, MORNING)]).allow([share])
    assert not guarded([view], [Claim(OTHER, H100, 1, MORNING)]).allow([replace(share)] * 4)


def test_groups_of_sizes_that_do_not_divide_one_another_are_packed_by_search():
    # Nodes of 4 and 3 are left: the group of three has to be on b. Of 3 and 3 one pair finds no place.
    views = wholes("aaaaabbb")
    claims = [Claim(OTHER, H100, 3000, MORNING, "node", 3), Claim(THIRD, H100, 4000, MORNING, "node", 2)]
    assert guarded(views, claims).allow([whole(views[0])])
    assert not guarded(views, claims).allow([whole(views[0]), whole(views[1])])


def test_a_claim_for_a_model_that_the_pool_does_not_have_is_left_out():
    views = wholes("a")
    assert guarded(views, [Claim(OTHER, "B200-180GB", 1000, MORNING, "gpu")]).allow([whole(views[0])])


def test_a_fleet_without_gpus_promises_nothing():
    nothing = fleet([], np.zeros(0, dtype=of_views([gpu(0)]).rows().dtype))
    claims = Claims.of(nothing, [Claim(OTHER, None, 1000, MORNING, "gpu")])
    assert Guarantees(nothing, MORNING, DAWN, claims, Takeable.none()).allow([])
