"""Openings of asks that nodes, segments and alternatives limit: no start is promised that they rule out."""

from __future__ import annotations

from dataclasses import replace

from pool.core.placement import GpuView, Use
from pool.core.shapes import GpuAsk, MigAsk, Spread
from tests.core import worlds
from tests.core.test_openings import H100, of, starts
from tests.core.worlds import gpu, span, wall


def on_node(number: int, node: str, *busy: worlds.Busy, cpu: int | None = 64_000, block: str = "") -> GpuView:
    return replace(gpu(number, node=node, use=Use.WHOLE, busy=busy), cpu_milli=cpu, block=block)


def working(start: float, end: float, cpu: int = 64_000) -> worlds.Busy:
    return replace(wall(0, 8, span(start, end)), tenancy="booked", cpu_milli=cpu)


def test_a_node_without_cpu_left_has_no_room_on_any_of_its_gpus() -> None:
    pool = [on_node(0, "a", working(0, 2), working(3, 5, 16_000)), on_node(1, "a")]
    assert starts(of(pool, GpuAsk(node_cpu_milli=32_000)), 1, 6) == [(2, 6)]
    assert starts(of(pool, GpuAsk(node_cpu_milli=56_000)), 1, 6) == [(2, 2), (5, 6)]
    assert starts(of(pool, GpuAsk(node_cpu_milli=65_000)), 1, 6) == []
    assert starts(of(pool, GpuAsk(node_cpu_milli=1)), 1, 6) == [(2, 6)]
    unknown = [replace(one, cpu_milli=None) for one in pool]
    assert starts(of(unknown, GpuAsk(node_cpu_milli=65_000)), 1, 6) == [(0, 6)]


def test_a_node_has_to_have_what_all_pieces_on_it_want() -> None:
    pool = [on_node(0, "a", working(0, 2, 32_000)), on_node(1, "a"), on_node(2, "a"), on_node(3, "b")]
    ask = GpuAsk(count=2, same_node=True, node_cpu_milli=20_000)
    assert starts(of(pool, ask), 1, 6) == [(2, 6)]


def test_spread_pieces_need_nodes_not_gpus() -> None:
    pool = [on_node(0, "a"), on_node(1, "a"), on_node(2, "b", working(0, 3))]
    assert starts(of(pool, GpuAsk(count=2, spread=Spread.NODE)), 1, 6) == [(3, 6)]


def test_a_rest_of_a_block_is_no_segment() -> None:
    pool = [on_node(n, "a", block="x") for n in range(3)]
    pool += [on_node(3, "b", working(0, 4), block="y"), on_node(4, "b", block="y")]
    assert starts(of(pool, GpuAsk(count=4, segment=2)), 1, 6) == [(4, 6)]


def test_pieces_of_different_profiles_are_not_added_up() -> None:
    small = worlds.profile(H100, "1g.10gb")
    pool = [gpu(0, busy=[worlds.taken(small, start, span(0, 4)) for start in range(6)])]
    assert starts(of(pool, MigAsk(profile_any=("1g.10gb", "1g.20gb"), count=2)), 1, 6) == [(4, 6)]
