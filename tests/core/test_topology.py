"""Nodes, domains and blocks: which GPUs may serve an ask together, and which of a node are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pool.core.fleet import Card, Fleet, NodeCard, fleet
from pool.core.fleet_rows import ROW
from pool.core.placement import Use, candidates, field, node_clash, shortfall
from pool.core.placement_search import Candidate
from pool.core.shapes import Ask, GpuAsk, MigAsk, Spread
from pool.core.topology import channel, linked
from tests.core.worlds import at, profile, span

NVL72 = (18, 36)


def tray(
    number: int,
    *,
    block: str = "",
    domain: str = "",
    imex: str = "READY",
    gpus: int = 4,
    why: str = "",
    cpu: int | None = None,
    use: Use = Use.WHOLE,
) -> list[Card]:
    """A node with some GPUs."""
    node = NodeCard(number, f"tray-{number:03}", block, cpu, None, imex)
    known = profile("H100-80GB", "1g.10gb")
    return [
        Card(
            id=100 * number + index,
            uuid=f"GPU-{number}-{index}",
            node=node,
            index=index,
            model="GB200-186GB",
            memory_mib=190_000,
            use=use,
            grid=8,
            profiles=(known,) if use is Use.MIG else (),
            why=why,
            domain=domain or f"node:{node.name}",
        )
        for index in range(gpus)
    ]


def rack(name: str, first: int, trays: int = 18, **more: object) -> list[Card]:
    return [c for n in range(first, first + trays) for c in tray(n, block=name, domain=name, **more)]  # type: ignore[arg-type]


def pool(cards: Sequence[Card], taken: Sequence[int] = (), sizes: tuple[int, ...] = ()) -> Fleet:
    """`taken`: ids of GPUs that are booked for ever."""
    rows = np.zeros(len(taken), dtype=ROW)
    for row, gpu_id in zip(rows, taken, strict=True):
        row["gpu"], row["mask"], row["profile"], row["end"] = gpu_id, 0xFF, -1, 2**63 - 1
    return fleet(cards, rows, block_sizes=sizes)


def find(there: Fleet, ask: Ask) -> list[Candidate]:
    return candidates(there, ask, span(0, 1), now=at(0))


def nodes_of(candidate: Candidate) -> list[int]:
    return sorted({pick.gpu_id // 100 for pick in candidate.picks})


def blocks_of(candidate: Candidate, trays: int = 18) -> list[int]:
    """How many GPUs of each block, where blocks have so many trays."""
    counts: dict[int, int] = {}
    for pick in candidate.picks:
        counts[pick.gpu_id // 100 // trays] = counts.get(pick.gpu_id // 100 // trays, 0) + 1
    return sorted(counts.values())


# --- Blocks and segments --------------------------------------------------------------


def test_what_fits_one_block_never_crosses() -> None:
    """Half of each of two racks is free: together enough for 40, but neither alone."""
    racks = [*rack("a", 0), *rack("b", 18)]
    half = [c.id for c in racks if c.node.id % 18 >= 9]
    there = pool(racks, half, NVL72)
    assert blocks_of(find(there, GpuAsk(count=36))[0]) == [36]
    assert find(there, GpuAsk(count=40)) == []
    short = shortfall(there, GpuAsk(count=40), span(0, 1))
    assert (short.free, short.offered) == (36, 72)
    assert short.counts == {"busy": 72, "room": 36, "other_block": 36}


def test_segments_may_lie_in_different_blocks_but_none_straddles_one() -> None:
    racks = [*rack("a", 0), *rack("b", 18)]
    half = [c.id for c in racks if c.node.id % 18 >= 9]
    there = pool(racks, half, NVL72)
    found = find(there, GpuAsk(count=40, segment=20))
    assert blocks_of(found[0]) == [20, 20]
    assert find(there, GpuAsk(count=80, segment=40)) == []
    assert blocks_of(find(there, GpuAsk(count=60, segment=12))[0]) == [24, 36]


def test_a_segment_that_is_larger_than_the_ask_is_one_block() -> None:
    racks = [*rack("a", 0), *rack("b", 18)]
    half = [c.id for c in racks if c.node.id % 18 >= 9]
    there = pool(racks, half, NVL72)
    assert blocks_of(find(there, GpuAsk(count=36, segment=64))[0]) == [36]
    assert find(there, GpuAsk(count=40, segment=64)) == []


def test_a_larger_ask_takes_the_smallest_aggregate_that_holds_it() -> None:
    """Four racks in aggregates of two: 100 GPUs never take from both aggregates."""
    racks = [c for n, name in enumerate("abcd") for c in rack(name, 18 * n)]
    used = [c.id for c in racks if c.node.id % 36 >= 20]
    there = pool(racks, used, NVL72)
    found = find(there, GpuAsk(count=76))[0]
    assert len({pick.gpu_id // 100 // 36 for pick in found.picks}) == 1
    assert find(there, GpuAsk(count=100)) == []
    assert len(find(there, GpuAsk(count=150))[0].picks) == 150


def test_sixteen_of_eighteen_trays_are_possible() -> None:
    there = pool([*rack("a", 0, why=""), *rack("b", 18)], [0, 400], NVL72)
    found = find(there, GpuAsk(count=64, segment=64))
    assert blocks_of(found[0]) == [64]
    by_tray = find(there, GpuAsk(count=16, segment=16, spread=Spread.NODE))
    assert len(nodes_of(by_tray[0])) == 16
    assert blocks_of(by_tray[0]) == [16]
    assert find(there, GpuAsk(count=19, segment=19, spread=Spread.NODE)) == []


def test_a_job_takes_the_block_that_it_fills_best() -> None:
    there = pool([*rack("a", 0), *rack("b", 18)], [c.id for c in rack("b", 18)][:32], NVL72)
    assert {n // 18 for n in nodes_of(find(there, GpuAsk(count=40, segment=40))[0])} == {1}


def test_without_blocks_segments_and_trees_mean_nothing() -> None:
    there = pool([*tray(0), *tray(1), *tray(2)])
    assert len(find(there, GpuAsk(count=12))[0].picks) == 12
    assert len(find(there, GpuAsk(count=12, segment=6))[0].picks) == 12


def test_a_node_of_which_nobody_said_where_it_stands_is_a_block_of_its_own() -> None:
    there = pool([*tray(0, block="a"), *tray(1), *tray(2)])
    assert len(find(there, GpuAsk(count=4))) > 0
    assert find(there, GpuAsk(count=8, segment=8)) == []
    assert len(nodes_of(find(there, GpuAsk(count=8, segment=4))[0])) == 2


# --- Domains --------------------------------------------------------------------------


def test_an_nvlink_domain_is_never_left() -> None:
    cards = [*tray(0, domain="x"), *tray(1, domain="x"), *tray(2, domain="y"), *tray(3, domain="y")]
    there = pool(cards, [0, 100])
    found = find(there, GpuAsk(count=7, same_nvlink_domain=True))
    assert nodes_of(found[0]) == [2, 3]
    assert find(there, GpuAsk(count=9, same_nvlink_domain=True)) == []
    assert len(find(there, GpuAsk(count=9))[0].picks) == 9
    assert shortfall(there, GpuAsk(count=9, same_nvlink_domain=True), span(0, 1)).counts == {
        "busy": 2,
        "room": 8,
        "other_domain": 6,
    }


def test_a_node_without_imex_reaches_no_other_node() -> None:
    cards = [*tray(0, domain="x"), *tray(1, domain="x", imex="INITIALIZING"), *tray(2, domain="x")]
    there = pool(cards)
    found = find(there, GpuAsk(count=8, same_nvlink_domain=True))
    assert nodes_of(found[0]) == [0, 2]
    assert find(there, GpuAsk(count=9, same_nvlink_domain=True)) == []
    alone = find(pool(tray(1, domain="x", imex="")), GpuAsk(count=4, same_nvlink_domain=True))
    assert nodes_of(alone[0]) == [1]
    short = shortfall(there, GpuAsk(count=9, same_nvlink_domain=True), span(0, 1))
    assert short.counts == {"room": 8, "imex_not_ready": 4}


def test_gpus_without_a_fabric_reach_those_of_their_node() -> None:
    there = pool([*tray(0), *tray(1)])
    assert len(nodes_of(find(there, GpuAsk(count=4, same_nvlink_domain=True))[0])) == 1
    assert find(there, GpuAsk(count=5, same_nvlink_domain=True)) == []


def test_a_reservation_gets_the_lowest_free_channel() -> None:
    assert channel([]) == 0
    assert channel([0, 1, 3]) == 2


# --- Nodes ------------------------------------------------------------------------------


def test_spread_puts_each_piece_on_a_node_of_its_own() -> None:
    there = pool([*tray(0), *tray(1), *tray(2)], [0, 1, 2, 3])
    assert nodes_of(find(there, GpuAsk(count=2, spread=Spread.NODE))[0]) == [1, 2]
    assert find(there, GpuAsk(count=3, spread=Spread.NODE)) == []
    slices = pool([*tray(0, use=Use.MIG), *tray(1, use=Use.MIG)])
    assert nodes_of(find(slices, MigAsk("1g.10gb", count=2, spread=Spread.NODE))[0]) == [0, 1]
    assert find(slices, MigAsk("1g.10gb", count=3, spread=Spread.NODE)) == []


def test_no_more_goes_to_a_node_than_it_has_cpu_and_memory_for() -> None:
    there = pool([*tray(0, cpu=32_000), *tray(1, cpu=None)])
    found = find(there, GpuAsk(count=6, node_cpu_milli=16_000))
    assert sum(pick.gpu_id < 100 for pick in found[0].picks) == 2
    assert {pick.cpu_milli for pick in found[0].picks} == {16_000}
    assert find(there, GpuAsk(count=7, node_cpu_milli=16_000)) == []
    assert nodes_of(find(there, GpuAsk(count=3, node_cpu_milli=16_000, same_node=True))[0]) == [1]
    assert shortfall(there, GpuAsk(count=9, node_cpu_milli=33_000), span(0, 1)).counts == {
        "node_full": 4,
        "room": 4,
    }


def test_what_bookings_take_of_a_node_is_taken_from_it() -> None:
    there = pool(tray(0, cpu=32_000), [0])
    rows = there.rows()
    rows["cpu"] = 20_000
    less = fleet(there.cards, rows)
    assert field(less, GpuAsk(node_cpu_milli=12_000), span(0, 1), at(0)).free == 1
    assert find(less, GpuAsk(node_cpu_milli=12_001)) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_node_that_has_become_smaller_than_what_is_booked_there_still_serves_what_wants_none_of_it(
    count: int,
) -> None:
    there = pool([*tray(0, cpu=32_000)], [0])
    rows = there.rows()
    rows["cpu"] = 40_000
    less = fleet(there.cards, rows)
    (found, *_) = find(less, GpuAsk(count=count))
    assert abs(found.cost) < 100_000
    assert node_clash(less, found.picks, span(0, 1), at(0)) is None
    assert find(less, GpuAsk(count=count, node_cpu_milli=1)) == []
    wishing = [replace(pick, ram_mib=1024) for pick in found.picks]
    assert node_clash(less, wishing, span(0, 1), at(0)) is None
    assert node_clash(less, [replace(wishing[0], cpu_milli=1)], span(0, 1), at(0)) == "node_full"


# --- Links --------------------------------------------------------------------------------


def chained(links: dict[tuple[int, int], int], number: int = 4) -> list[Card]:
    """GPUs of one node with so many NVLinks between pairs of them."""
    cards = tray(0, gpus=number)
    pairs = {**links, **{(b, a): count for (a, b), count in links.items()}}
    return [
        replace(c, links=tuple((cards[b].uuid, count) for (a, b), count in pairs.items() if a == n))
        for n, c in enumerate(cards)
    ]


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [(2, [2, 3]), (1, [0]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])],
)
def test_several_are_the_best_linked_and_one_is_the_worst(wanted: int, taken: list[int]) -> None:
    cards = chained({(0, 1): 1, (1, 2): 2, (2, 3): 4, (1, 3): 2})
    assert linked(cards, wanted) == taken
    there = pool(cards)
    found = find(there, GpuAsk(count=wanted, same_node=True))
    assert [pick.gpu_id for pick in found[0].picks] == taken


def test_behind_a_switch_all_are_alike_and_the_cpu_decides() -> None:
    cards = [replace(c, links=(("", 18),), numa=n // 2) for n, c in enumerate(tray(0))]
    assert linked(cards, 2) == [0, 1]
    assert linked([cards[0], cards[2], cards[3]], 2) == [1, 2]


def test_a_node_with_very_many_gpus_is_chosen_from_one_by_one() -> None:
    cards = chained({(n, n + 1): 1 + (n == 7) for n in range(15)}, 16)
    taken = linked(cards, 8)
    assert len(taken) == 8
    assert {7, 8} <= set(taken)
    assert linked(cards, 8) == taken
