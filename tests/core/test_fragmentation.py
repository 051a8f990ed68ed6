"""Fragmentation: what is free and of no use to the usual asks, compared with counting slice by slice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.fleet import Fleet, fleet, of_views
from pool.core.fragmentation import Figure, Fragmentation, fragmentation
from pool.core.mig import Media, models
from pool.core.mix import WHOLE, Form, Kind, Mix, learn
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Portion, Use
from pool.core.shapes import Sharing
from pool.core.shares import shareable_mib
from tests.core.fleets import periods, pools
from tests.core.worlds import DAWN, at, gpu, profile, span, taken, wall

MODEL = "H100-80GB"
HOUR = span(0, 1)


def mix(*kinds: Kind) -> Mix:
    return Mix(kinds, tuple(1 / len(kinds) for _ in kinds))


def told(gpus: list[GpuView], of: Mix, period: Period = HOUR) -> Fragmentation:
    return fragmentation(of_views(gpus).window(period, DAWN), of)


def share(memory_milli: int, compute_pct: int = 0) -> Busy:
    known = models()[MODEL].total_memory_mib
    assert known
    memory = shareable_mib(known) * memory_milli // WHOLE
    return Busy(0, 8, span(0, 9), None, "booked", None, Portion(memory, compute_pct, 100, "user:1"))


def shared(*busy: Busy) -> GpuView:
    return replace(
        gpu(0, use=Use.SHARE), sharing=Sharing.MPS, most_shares=9, one_user=True, busy=busy, profiles=()
    )


# --- Examples -----------------------------------------------------------------


def test_an_empty_pool_is_not_fragmented() -> None:
    gpus = [gpu(0), gpu(1, use=Use.WHOLE), replace(shared(), id=2, uuid="GPU-2", index=2)]
    figure = told(gpus, learn(())).of_pool()
    assert figure == Figure(3000.0, 0.0)
    assert figure.share == 0.0


def test_where_nothing_is_free_there_is_no_share_of_it() -> None:
    full = gpu(0, use=Use.WHOLE, busy=[wall(0, 8, HOUR)])
    figure = told([full], learn(())).of_pool()
    assert (figure.known, figure.share) == (True, None)


def test_a_gpu_that_cannot_be_used_is_unknown_and_not_free() -> None:
    seen = told([gpu(0, why="unknown"), gpu(1)], learn(()))
    assert (seen.of_gpu(0).share, seen.of_gpu(1).share) == (None, 0.0)
    assert seen.of_pool().free == 1000.0
    assert [seen.of_gpu(n).known for n in (0, 1, 99)] == [False, True, False]
    assert seen.of_gpu(99) == seen.of_node(99) == Figure(known=False)


def test_a_small_slice_in_the_middle_spoils_the_gpu_for_a_large_one() -> None:
    small = profile(MODEL, "1g.10gb")
    of = mix(Kind(Form.MIG, profile="3g.40gb"))
    middle = told([gpu(0, busy=[taken(small, 3, HOUR)])], of)
    # Of seven free slices the four of the other half still take a 3g.
    assert middle.of_gpu(0) == Figure(875.0, 375.0)
    both = [taken(small, 3, HOUR), taken(small, 4, HOUR)]
    assert told([gpu(0, busy=both)], of).of_gpu(0).share == 1.0


def test_half_of_the_asks_count_half() -> None:
    busy = [taken(profile(MODEL, "1g.10gb"), 0, HOUR)]
    of = mix(Kind(Form.MIG, profile="7g.80gb"), Kind(Form.MIG, profile="1g.10gb"))
    assert told([gpu(0, busy=busy)], of).of_gpu(0) == Figure(875.0, 437.5)


def test_media_engines_that_are_gone_count() -> None:
    all_media = replace(profile(MODEL, "1g.10gb"), media=Media.ALL)
    busy = [taken(all_media, 0, HOUR)]
    assert told([gpu(0, busy=busy)], mix(Kind(Form.MIG, profile="1g.10gb"))).of_gpu(0).share == 6 / 7


def test_one_free_gpu_of_a_node_is_of_no_use_to_asks_for_two() -> None:
    gpus = [gpu(n, use=Use.WHOLE) for n in range(3)]
    gpus[0] = replace(gpus[0], busy=(wall(0, 8, HOUR),))
    pair = mix(Kind(gpus=2))
    assert told(gpus, pair).of_pool() == Figure(2000.0, 0.0)
    gpus[1] = replace(gpus[1], busy=(wall(0, 8, HOUR),))
    seen = told(gpus, pair)
    assert seen.of_node(gpus[0].node_id) == seen.of_pool() == Figure(1000.0, 1000.0)


def test_what_a_node_never_could_does_not_count_against_it() -> None:
    alone = [gpu(0, use=Use.WHOLE)]
    assert told(alone, mix(Kind(gpus=8), Kind(gpus=1))).of_pool().share == 0.0
    elsewhere = mix(Kind(models=("A100-40GB",)), Kind(gpus=1))
    assert told(alone, elsewhere).of_pool().share == 0.0


@pytest.mark.parametrize(("cpu", "share_of"), [(32_000, 0.0), (48_000, 1.0)])
def test_gpus_beside_which_no_cpu_is_left_are_of_no_use(cpu: int, share_of: float) -> None:
    busy = replace(wall(0, 8, HOUR), tenancy="booked", cpu_milli=32_000)
    gpus = [replace(gpu(n, use=Use.WHOLE), cpu_milli=64_000, memory_mib=81_920) for n in range(2)]
    gpus[0] = replace(gpus[0], busy=(busy,))
    assert told(gpus, mix(Kind(cpu_milli=cpu))).of_pool() == Figure(1000.0, 1000.0 * share_of)


def test_the_rest_of_a_shared_gpu_is_lost_to_asks_that_are_larger() -> None:
    small, large = (Kind(Form.SHARE, memory_milli=m, compute_milli=100) for m in (200, 500))
    seen = told([shared(share(750))], mix(small, large)).of_gpu(0)
    assert seen.share == pytest.approx(0.5)
    assert seen.free == pytest.approx(250, abs=1)


def test_memory_without_compute_is_of_no_use_to_asks_for_both() -> None:
    ask = mix(Kind(Form.SHARE, memory_milli=100, compute_milli=100))
    assert told([shared(share(100, compute_pct=95))], ask).of_gpu(0).share == 1.0
    assert told([shared(share(100, compute_pct=90))], ask).of_gpu(0).share == 0.0


def test_a_gpu_with_as_many_shares_as_it_may_have_is_of_no_use() -> None:
    of = mix(Kind(Form.SHARE, memory_milli=10))
    full = shared(*(share(10) for _ in range(9)))
    assert told([full], of).of_gpu(0).share == 1.0


def test_of_a_gpu_for_anything_a_slice_spoils_the_whole() -> None:
    auto = replace(gpu(0, use=Use.AUTO), mig_capable=True)
    of = mix(Kind(), Kind(Form.MIG, profile="1g.10gb"))
    assert told([auto], of).of_gpu(0).share == 0.0
    busy = (taken(profile(MODEL, "1g.10gb"), 0, HOUR),)
    assert told([replace(auto, busy=busy)], of).of_gpu(0).share == 0.5


# --- Brute force --------------------------------------------------------------

KINDS = [
    Kind(gpus=1),
    Kind(gpus=2),
    Kind(models=("A100-40GB",)),
    Kind(Form.MIG, profile="1g.10gb"),
    Kind(Form.MIG, profile="3g.40gb"),
    Kind(Form.MIG, compute_slices=4),
    Kind(Form.MIG, profile="7g.80gb"),
    Kind(Form.SHARE, memory_milli=100, compute_milli=100),
    Kind(Form.SHARE, memory_mib=40_000),
]


def brute(views: list[GpuView], view: GpuView, of: Mix, period: Period) -> tuple[float, float] | None:
    """Free and lost of one MIG or whole GPU, by looking at every place; None for other uses."""
    busy = [b for b in view.busy if b.period.overlaps(period)]
    if view.use is Use.SHARE:
        return None
    if not view.usable:
        return 0.0, 0.0
    taken_slices = {n for b in busy for n in range(b.start, b.start + b.size)}
    if view.use is Use.WHOLE:
        free = set() if busy else set(range(view.grid))
        kinds = [one for one in zip(of.kinds, of.weights, strict=True) if one[0].form is Form.WHOLE]
        return WHOLE * len(free) / view.grid, _lost_whole(views, view, kinds, bool(busy), period)
    free = set(range(view.grid)) - taken_slices
    weight = lost = 0.0
    for kind, often in zip(of.kinds, of.weights, strict=True):
        places = _places(view, kind)
        if places:
            weight += often
            ever, now = set().union(*places), set().union(*(p for p in places if p <= free))
            lost += often * len((free & ever) - now)
    return WHOLE * len(free) / view.grid, WHOLE * lost / weight / view.grid


def _lost_whole(
    views: list[GpuView], view: GpuView, kinds: list[tuple[Kind, float]], busy: bool, period: Period
) -> float:
    weight = lost = 0.0
    for kind, often in kinds:
        ok = [
            v
            for v in views
            if v.node == view.node
            and v.usable
            and v.use is Use.WHOLE
            and (not kind.models or v.model in kind.models)
        ]
        if view not in ok or len(ok) < kind.gpus:
            continue
        free = [v for v in ok if not any(b.period.overlaps(period) for b in v.busy)]
        weight += often
        lost += 0.0 if busy or len(free) >= kind.gpus else often
    return WHOLE * lost / weight if weight else 0.0


def _places(view: GpuView, kind: Kind) -> list[set[int]]:
    if kind.form is not Form.MIG:
        return []
    plain = [p for p in view.profiles if not set("+-") & set(p.name)]
    enough = [p for p in plain if p.compute_slices >= kind.compute_slices]
    named = [p for p in view.profiles if p.name == kind.profile]
    least = min(enough, key=lambda p: (p.size, p.compute_slices, p.memory_mib or 0), default=None)
    found = named[0] if named else None if kind.profile else least
    return [set(range(s, s + found.size)) for s in found.starts] if found else []


def without_media(view: GpuView) -> GpuView:
    """The brute force knows nothing of media engines, nor of compute slices that are counted twice."""
    return replace(view, busy=tuple(replace(b, media=None) for b in view.busy))


@settings(max_examples=150)
@given(pools, periods, st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
def test_it_is_what_looking_at_every_place_gives(
    gpus: list[GpuView], period: Period, kinds: list[Kind]
) -> None:
    of = mix(*kinds, Kind(gpus=1), Kind(Form.MIG, compute_slices=1))
    views = [without_media(view) for view in gpus]
    seen = told(views, of, period)
    for view in views:
        expected = brute(views, view, of, period)
        figure = seen.of_gpu(view.id)
        if expected is not None:
            assert (figure.free, figure.lost) == pytest.approx(expected)
        assert figure.share is None or 0 <= figure.share <= 1
    total = seen.of_pool()
    assert total.lost <= total.free + 1e-6


# --- Blocks -------------------------------------------------------------------


def rack(busy: Collection[int], missing: Collection[int] = (), sizes: tuple[int, ...] = (2, 4)) -> Fleet:
    """Blocks of two nodes with one GPU each, in the order of their numbers."""
    views = [
        gpu(n, use=Use.WHOLE, node=f"node-{n}", busy=[wall(0, 8, HOUR)] if n in busy else [])
        for n in range(8)
        if n not in missing
    ]
    plain = of_views(views)
    cards = [
        replace(card, node=replace(card.node, id=card.id, block=f"block-{card.id // 2}"))
        for card in plain.cards
    ]
    return fleet(cards, plain.rows(), block_sizes=sizes)


@pytest.mark.parametrize(
    ("busy", "missing", "figure"),
    [
        (set(), set(), 0),
        ({0}, set(), 2 + 4),
        ({0, 1}, set(), 2 + 4),
        ({0, 2}, set(), 2 + 2 + 4),
        ({0, 7}, set(), 2 + 2 + 4 + 4),
        (set(), {3}, 1),
        ({0}, {3}, 2 + 4 + 1),
    ],
)
def test_every_unit_with_an_unusable_node_counts_its_size_and_missing_nodes_one_each(
    busy: set[int], missing: set[int], figure: int
) -> None:
    window = rack(busy, missing=missing).window(HOUR, DAWN)
    assert fragmentation(window, learn(())).blocks == figure


def test_without_blocks_or_their_sizes_there_is_no_such_figure() -> None:
    assert told([gpu(0)], learn(())).blocks is None
    window = rack({0}, sizes=()).window(HOUR, DAWN)
    assert fragmentation(window, learn(())).blocks is None


def test_it_is_of_what_is_free_over_the_whole_window() -> None:
    later = gpu(0, use=Use.WHOLE, busy=[wall(0, 8, span(3, 4))])
    short, long = Period(at(0), at(0) + timedelta(microseconds=1)), span(0, 4)
    assert told([later], learn(()), short).of_pool().free == 1000.0
    assert told([later], learn(()), long).of_pool().free == 0.0
