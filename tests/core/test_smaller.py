"""What fits instead: fewer first, then smaller, and nothing larger would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings

from pool.core.fleet import of_views
from pool.core.placement import GpuView, Portion, Use, candidates, shortfall
from pool.core.shapes import Ask, GpuAsk, MigAsk, ShareAsk, Sharing
from pool.core.smaller import largest
from tests.core import worlds
from tests.core.worlds import gpu, span, wall

H100 = "H100-80GB"
NOW = span(0, 2)


def instead(views: Sequence[GpuView], ask: Ask) -> Ask | None:
    return largest(of_views(views), ask, lambda one: shortfall(views, one, NOW, account="me").free)


@settings(max_examples=60)
@given(case=worlds.cases(H100))
def test_what_is_told_fits(case: worlds.Case) -> None:
    gpus, ask, period = case
    found = largest(of_views(gpus), ask, lambda one: shortfall(gpus, one, period).free)
    if found is not None:
        assert candidates(gpus, found, period)
    else:
        assert not candidates(gpus, replace(ask, count=1), period)


def test_fewer_come_before_smaller_ones() -> None:
    views = [gpu(n, busy=[wall(0, 4, span(0, 9))]) for n in range(2)]
    assert instead(views, MigAsk("3g.40gb", count=4)) == MigAsk("3g.40gb", count=2)
    assert instead(views, MigAsk("7g.80gb", count=2)) == MigAsk("3g.40gb", count=2)
    assert instead(views, MigAsk("7g.80gb", count=5)) == MigAsk("3g.40gb")
    assert instead(views, MigAsk(None, 79_000)) == MigAsk("3g.40gb")
    assert instead(views, MigAsk("1g.10gb")) == MigAsk("1g.10gb")


def test_nothing_is_told_where_nothing_of_the_kind_is_free() -> None:
    assert instead([gpu(0, busy=[wall(0, 8, span(0, 9))])], MigAsk("7g.80gb")) is None
    assert instead([gpu(0)], GpuAsk()) is None


def test_whole_gpus_come_in_whole_segments() -> None:
    views = [gpu(n, use=Use.WHOLE) for n in range(5)]
    assert instead(views, GpuAsk(count=6, segment=2)) == GpuAsk(count=4, segment=2)
    assert instead(views, GpuAsk(count=6)) == GpuAsk(count=5)


def test_what_fits_one_block_is_not_told_across_two() -> None:
    """Six may cross from block to block; of three, one block's worth, two are free together."""
    views = [replace(gpu(n, use=Use.WHOLE, node=f"node-{n // 4}"), block=f"rack-{n // 4}") for n in range(8)]
    for n in (0, 1, 2, 4, 5):
        views[n] = replace(views[n], busy=(wall(0, 8, span(0, 9)),))
    assert shortfall(views, GpuAsk(count=6), NOW).free == 3
    assert instead(views, GpuAsk(count=6)) == GpuAsk(count=2)


def test_of_a_share_as_many_gib_as_there_are() -> None:
    there = replace(wall(0, 8, span(0, 9)), tenancy="booked", portion=Portion(60 * 1024, 10, 10, "me"))
    view = replace(
        gpu(0, use=Use.SHARE), sharing=Sharing.MPS, most_shares=7, memory_mib=81_920, busy=(there,)
    )
    found = instead([view], ShareAsk(memory_mib=40 * 1024, guaranteed=10, limit=10))
    assert isinstance(found, ShareAsk)
    assert found.memory_mib is not None
    room = view.shareable_mib - 60 * 1024
    assert found.memory_mib <= room < found.memory_mib + 1024
