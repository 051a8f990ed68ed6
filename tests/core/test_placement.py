"""Placement against brute force, for every model of the catalogue; and its promises by example."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.mig import Media
from pool.core.placement import GpuView, Pick, Use, candidates, clash, shortfall
from pool.core.quota import charge_milli
from pool.core.shapes import GpuAsk, MigAsk
from tests.core import worlds
from tests.core.worlds import gpu, profile, span, taken, wall

EACH_MODEL = pytest.mark.parametrize("model", sorted(mig.models()))
H100, RTX = "H100-80GB", "RTX-PRO-6000-96GB"


# --- Against brute force ------------------------------------------------------


@EACH_MODEL
@settings(max_examples=60)
@given(data=st.data())
def test_it_finds_a_fit_exactly_when_brute_force_does(model: str, data: st.DataObject) -> None:
    gpus, ask, period = data.draw(worlds.cases(model))
    found = candidates(gpus, ask, period)
    assert bool(found) == (worlds.brute_fit(gpus, ask, period) is not None)
    assert (shortfall(gpus, ask, period).free >= ask.count) == bool(found)


@EACH_MODEL
@settings(max_examples=30)
@given(data=st.data())
def test_every_candidate_holds_at_every_instant_of_the_period(model: str, data: st.DataObject) -> None:
    gpus, ask, period = data.draw(worlds.cases(model))
    found = candidates(gpus, ask, period)
    for candidate in found:
        places = worlds.as_places(candidate.picks, gpus)
        assert len(places) == ask.count
        assert worlds.legal(places, period)
        assert clash(gpus, candidate.picks, period) is None
        if ask.same_node:
            assert len({g.node for g, _, _ in places}) == 1
        for g, p, start in places:
            assert g.usable
            assert g.use is (Use.WHOLE if p is None else Use.MIG)
            assert p is None or start in p.starts
    assert len({c.picks for c in found}) == len(found) <= 16


@EACH_MODEL
@settings(max_examples=25)
@given(data=st.data(), rotate=st.integers(0, 3))
def test_the_same_pool_in_another_order_gives_the_same_answer(
    model: str, data: st.DataObject, rotate: int
) -> None:
    gpus, ask, period = data.draw(worlds.cases(model))
    assert candidates(gpus, ask, period) == candidates(worlds.shuffled(gpus, rotate), ask, period)


@EACH_MODEL
@settings(max_examples=30)
@given(data=st.data())
def test_placing_again_and_again_fills_a_gpu_without_overlap(model: str, data: st.DataObject) -> None:
    """What was placed is held, then the next is placed: as a day of bookings does it."""
    held = [gpu(0, model), gpu(1, model)]
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(mig.models()[model].profiles)).name
        period = data.draw(worlds.periods)
        found = candidates(held, MigAsk(name), period)
        assert bool(found) == (worlds.brute_fit(held, MigAsk(name), period) is not None)
        if not found:
            continue
        pick = found[0].picks[0]
        assert pick.profile is not None
        assert worlds.legal(worlds.as_places([pick], held), period)
        now = taken(pick.profile, pick.start, period)
        held = [replace(g, busy=(*g.busy, now)) if g.id == pick.gpu_id else g for g in held]


@st.composite
def odd_profiles(draw: st.DrawFn) -> mig.Profile:
    """What a driver might offer one day: starts that cross, and a limit of its own."""
    size = draw(st.integers(1, 4))
    starts = draw(st.sets(st.integers(0, 8 - size), min_size=1, max_size=6))
    return replace(
        profile(H100, "1g.10gb"),
        size=size,
        starts=tuple(sorted(starts)),
        max_instances=draw(st.integers(1, 4)),
    )


@settings(max_examples=150)
@given(odd=odd_profiles(), count=st.integers(1, 5), data=st.data())
def test_a_fit_is_found_also_where_the_placements_of_a_profile_cross(
    odd: mig.Profile, count: int, data: st.DataObject
) -> None:
    busy = data.draw(worlds.busy_lists(H100, 2))
    gpus = [replace(gpu(n, busy=busy if n else ()), profiles=(odd,)) for n in range(2)]
    ask, period = MigAsk(odd.name, count=count), data.draw(worlds.periods)
    found = candidates(gpus, ask, period)
    assert bool(found) == (worlds.brute_fit(gpus, ask, period) is not None)
    assert all(worlds.legal(worlds.as_places(c.picks, gpus), period) for c in found)


# --- One place for the whole time ---------------------------------------------


def test_windows_of_two_cards_are_never_joined() -> None:
    p = profile(H100, "7g.80gb")
    morning = gpu(0, busy=[taken(p, 0, span(4, 8))])
    evening = gpu(1, busy=[taken(p, 0, span(0, 4))])
    assert candidates([morning, evening], MigAsk("7g.80gb"), span(0, 4))
    assert candidates([morning, evening], MigAsk("7g.80gb"), span(4, 8))
    assert candidates([morning, evening], MigAsk("7g.80gb"), span(0, 8)) == []


def test_windows_of_two_spans_of_one_card_are_never_joined() -> None:
    p = profile(H100, "3g.40gb")
    card = gpu(busy=[taken(p, 0, span(0, 4)), taken(p, 4, span(4, 8))])
    assert [c.picks[0].start for c in candidates([card], MigAsk("3g.40gb"), span(0, 4))] == [4]
    assert [c.picks[0].start for c in candidates([card], MigAsk("3g.40gb"), span(4, 8))] == [0]
    assert candidates([card], MigAsk("3g.40gb"), span(3, 5)) == []


def test_bookings_that_touch_fit_behind_one_another() -> None:
    card = gpu(busy=[taken(profile(H100, "7g.80gb"), 0, span(0, 4))])
    assert candidates([card], MigAsk("7g.80gb"), span(4, 8))
    assert candidates([card], MigAsk("7g.80gb"), span(3, 8)) == []


def test_what_has_no_end_is_never_in_the_past() -> None:
    card = gpu(busy=[taken(profile(H100, "7g.80gb"), 0, span(4, None))])
    assert candidates([card], MigAsk("1g.10gb"), span(0, 4))
    assert candidates([card], MigAsk("1g.10gb"), span(500, 501)) == []
    assert candidates([card], MigAsk("1g.10gb"), span(0, None)) == []


# --- Use ----------------------------------------------------------------------


def test_a_full_mig_instance_never_answers_a_whole_gpu_ask() -> None:
    assert candidates([gpu(use=Use.MIG)], GpuAsk(), span(0, 1)) == []
    assert candidates([gpu(use=Use.WHOLE)], GpuAsk(), span(0, 1))


def test_a_whole_gpu_never_answers_a_slice_ask() -> None:
    assert candidates([gpu(use=Use.WHOLE)], MigAsk("7g.80gb"), span(0, 1)) == []


def test_a_whole_gpu_has_to_be_entirely_free() -> None:
    card = gpu(use=Use.WHOLE, busy=[wall(7, 1, span(2, None))])
    assert candidates([card], GpuAsk(), span(0, 2))
    assert candidates([card], GpuAsk(), span(0, 3)) == []


def test_a_gpu_that_cannot_be_used_is_not_free() -> None:
    assert candidates([gpu(why="unknown")], MigAsk("1g.10gb"), span(0, 1)) == []


def test_unknown_memory_satisfies_no_minimum() -> None:
    unmeasured = replace(gpu(use=Use.WHOLE), memory_mib=None)
    assert candidates([unmeasured], GpuAsk(), span(0, 1))
    assert candidates([unmeasured], GpuAsk(memory_mib=1), span(0, 1)) == []


# --- Which place ----------------------------------------------------------------


def starts(found: list[Pick]) -> list[tuple[int, int]]:
    return [(p.gpu_id, p.start) for p in found]


@pytest.mark.parametrize(
    ("model", "name", "start"),
    [
        (H100, "1g.10gb", 6),
        (H100, "2g.20gb", 4),
        (H100, "3g.40gb", 4),
        (H100, "4g.40gb", 0),
        ("A30-24GB", "1g.6gb", 3),
        (RTX, "2g.48gb", 6),
    ],
)
def test_on_an_empty_gpu_it_takes_what_spoils_least(model: str, name: str, start: int) -> None:
    assert candidates([gpu(model=model)], MigAsk(name), span(0, 1))[0].picks[0].start == start


def test_it_fills_a_gpu_that_is_in_use_before_it_opens_another() -> None:
    used = gpu(1, busy=[taken(profile(H100, "1g.10gb"), 6, span(0, 8))])
    first = candidates([gpu(0), used, gpu(2)], MigAsk("1g.10gb"), span(2, 3))[0]
    assert first.picks[0].gpu_id == 1


def test_small_slices_leave_half_a_card_to_a_large_one() -> None:
    card = gpu()
    for name in ("1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"):
        pick = candidates([card], MigAsk(name), span(0, 1))[0].picks[0]
        assert pick.profile is not None
        card = replace(card, busy=(*card.busy, taken(pick.profile, pick.start, span(0, 1))))


def test_a_media_free_slice_goes_where_the_media_engines_are_gone() -> None:
    full = gpu(1, RTX, busy=[taken(profile(RTX, "1g.24gb+me.all"), 0, span(0, 8))])
    assert candidates([gpu(0, RTX), full], MigAsk("1g.24gb-me"), span(0, 1))[0].picks[0].gpu_id == 1


def test_the_cheaper_model_comes_first_and_the_answer_names_it() -> None:
    found = candidates([gpu(0, "A100-40GB"), gpu(1, H100)], MigAsk("1g.10gb"), span(0, 1))
    assert [(c.picks[0].model, c.charge_milli) for c in found[:8]] == [(H100, 125)] * 7 + [("A100-40GB", 250)]


def test_models_are_mixed_only_when_one_alone_does_not_do() -> None:
    pool = [gpu(0, "A100-40GB"), gpu(1, H100)]
    three = candidates(pool, MigAsk("1g.10gb", count=3), span(0, 1))
    assert all(len({p.model for p in c.picks}) == 1 for c in three)
    eleven = candidates(pool, MigAsk("1g.10gb", count=11), span(0, 1))
    assert len(eleven[0].picks) == 11
    assert candidates(pool, MigAsk("1g.10gb", count=12), span(0, 1)) == []


def test_whole_gpus_leave_the_emptiest_node_whole() -> None:
    a = [gpu(n, node="node-a", use=Use.WHOLE) for n in range(4)]
    b = [gpu(n + 4, node="node-b", use=Use.WHOLE) for n in range(4)]
    b[0] = replace(b[0], busy=(wall(0, 8, span(0, 8)),))
    one = candidates([*a, *b], GpuAsk(), span(0, 1))
    assert starts(list(one[0].picks)) == [(5, 0)]
    four = candidates([*a, *b], GpuAsk(count=4, same_node=True), span(0, 1))
    assert starts(list(four[0].picks)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert candidates([*a, *b], GpuAsk(count=5, same_node=True), span(0, 1)) == []


def test_several_whole_gpus_share_as_few_nodes_as_they_can() -> None:
    pool = [gpu(n * 4 + i, node=f"node-{n}", use=Use.WHOLE) for n in range(3) for i in range(4)]
    pool += [gpu(20 + n, node=f"single-{n}", use=Use.WHOLE) for n in range(5)]
    five = candidates(pool, GpuAsk(count=5), span(0, 1))[0]
    nodes = {g.node for g in pool if g.id in {p.gpu_id for p in five.picks}}
    assert len(nodes) == 2


def test_the_other_candidates_are_somewhere_else() -> None:
    found = candidates([gpu(n) for n in range(4)], MigAsk("3g.40gb"), span(0, 1))
    assert len({(c.picks[0].gpu_id, c.picks[0].start) for c in found}) == len(found) == 8
    assert len(candidates([gpu(n) for n in range(4)], MigAsk("3g.40gb"), span(0, 1), limit=3)) == 3


def test_a_minimum_gets_the_smallest_profile_and_its_charge() -> None:
    pick = candidates([gpu()], MigAsk(memory_mib=15_000), span(0, 1))[0].picks[0]
    assert (pick.profile, pick.charge_milli) == (profile(H100, "1g.20gb"), charge_milli(2, 8))
    pick = candidates([gpu()], MigAsk(memory_mib=15_000, compute_slices=2), span(0, 1))[0].picks[0]
    assert pick.profile == profile(H100, "2g.20gb")


def test_a_very_large_ask_is_answered_or_refused() -> None:
    pool = [gpu(n) for n in range(150)]
    assert len(candidates(pool, MigAsk("1g.10gb", count=1024), span(0, 1))[0].picks) == 1024
    assert candidates(pool[:146], MigAsk("1g.10gb", count=1024), span(0, 1)) == []
    assert candidates([], MigAsk("1g.10gb"), span(0, 1)) == []


# --- Checking what was chosen ---------------------------------------------------


def pick(g: GpuView, name: str | None, start: int) -> Pick:
    p = None if name is None else profile(g.model, name)
    size = g.grid if p is None else p.size
    return Pick(g.id, g.model, p, start, size, charge_milli(size, g.grid))


@pytest.mark.parametrize(
    ("card", "name", "start", "word"),
    [
        (gpu(), "1g.10gb", 3, None),
        (gpu(1), "1g.10gb", 3, "gone"),
        (gpu(why="frozen"), "1g.10gb", 3, "frozen"),
        (gpu(use=Use.WHOLE), "1g.10gb", 3, "wrong_use"),
        (gpu(), None, 0, "wrong_use"),
        (gpu(use=Use.WHOLE), None, 0, None),
        (gpu(use=Use.WHOLE, busy=[wall(7, 1, span(1, 2))]), None, 0, "busy"),
        (gpu(busy=[wall(3, 1, span(1, 2))]), "1g.10gb", 3, "busy"),
        (gpu(busy=[wall(3, 1, span(2, 3))]), "1g.10gb", 3, None),
        (gpu(), "1g.10gb", 7, "no_such_placement"),
        (gpu(busy=[taken(profile(H100, "1g.10gb+me"), 0, span(1, 2))]), "1g.10gb+me", 3, "media"),
        (gpu(busy=[taken(profile(H100, "1g.10gb+me"), 0, span(1, 2))]), "1g.10gb", 3, None),
    ],
)
def test_a_pick_is_checked_with_the_rules_it_was_made_by(
    card: GpuView, name: str | None, start: int, word: str | None
) -> None:
    wanted = replace(pick(card, name, start), gpu_id=0)
    assert clash([card], [wanted], span(0, 2)) == word


def test_picks_are_checked_against_one_another() -> None:
    card = gpu()
    assert clash([card], [pick(card, "3g.40gb", 0), pick(card, "3g.40gb", 4)], span(0, 1)) is None
    assert clash([card], [pick(card, "3g.40gb", 0), pick(card, "4g.40gb", 0)], span(0, 1)) == "busy"
    assert clash([card], [pick(card, "1g.10gb+me", n) for n in (0, 1)], span(0, 1)) == "media"


def test_a_driver_that_allows_fewer_instances_is_believed() -> None:
    few = replace(profile(H100, "1g.10gb"), max_instances=2)
    card = replace(gpu(busy=[taken(few, 6, span(0, 8))]), profiles=(few,))
    assert clash([card], [pick(card, "1g.10gb", 0)], span(0, 1)) is None
    assert clash([card], [pick(card, "1g.10gb", n) for n in (0, 1)], span(0, 1)) == "limit"
    assert candidates([card], MigAsk("1g.10gb", count=2), span(0, 1)) == []
    assert few.media is Media.DEFAULT


def test_a_whole_gpu_that_grew_since_it_was_picked_is_looked_at_entirely() -> None:
    card = gpu(use=Use.WHOLE, busy=[wall(7, 1, span(0, 1))])
    assert clash([card], [replace(pick(card, None, 0), size=4)], span(0, 1)) == "busy"


def test_a_pick_whose_profile_has_changed_its_size_is_no_placement() -> None:
    card = gpu()
    assert clash([card], [replace(pick(card, "2g.20gb", 0), size=1)], span(0, 1)) == "no_such_placement"
