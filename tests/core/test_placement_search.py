"""The search itself: how candidates differ, and that it is quick."""

from __future__ import annotations

import random
from dataclasses import replace
from time import process_time

from pool.core import mig
from pool.core.fleet import of_views
from pool.core.placement import candidates
from pool.core.placement_room import Busy, GpuView, Use
from pool.core.placement_search import Candidate
from pool.core.shapes import Ask, GpuAsk, MigAsk
from tests.core.worlds import gpu, profile, span, taken

H100 = "H100-80GB"


def find(pool: list[GpuView], ask: Ask, limit: int = 16) -> list[Candidate]:
    return candidates(pool, ask, span(0, 1), limit)


def places(candidate: Candidate) -> list[tuple[int, int]]:
    return [(p.gpu_id, p.start) for p in candidate.picks]


def test_every_free_place_comes_once_when_one_is_asked() -> None:
    found = find([gpu(0), gpu(1)], MigAsk("1g.10gb"))
    assert sorted(places(c)[0] for c in found) == [(g, start) for g in (0, 1) for start in range(7)]


def test_candidates_of_several_avoid_what_the_others_take() -> None:
    found = find([gpu(n) for n in range(4)], MigAsk("3g.40gb", count=2))
    taken_by = [set(places(c)) for c in found[:4]]
    assert all(not a & b for i, a in enumerate(taken_by) for b in taken_by[i + 1 :])


def test_there_is_one_candidate_when_everything_is_needed() -> None:
    found = find([gpu(0), gpu(1)], MigAsk("1g.10gb", count=14))
    assert len(found) == 1
    assert len(set(places(found[0]))) == 14
    assert find([gpu(0), gpu(1)], MigAsk("1g.10gb", count=15)) == []


def test_on_one_node_it_prefers_the_node_where_less_is_spoilt() -> None:
    fresh = [gpu(n, node="node-a") for n in range(2)]
    used = [
        gpu(n + 2, node="node-b", busy=[taken(profile(H100, "4g.40gb"), 0, span(0, 9))]) for n in range(2)
    ]
    found = find([*fresh, *used], MigAsk("3g.40gb", count=2, same_node=True))
    assert places(found[0]) == [(2, 4), (3, 4)]
    assert places(found[1])[0][0] in (0, 1)


def test_a_limit_bounds_the_answer_but_never_to_nothing() -> None:
    assert len(find([gpu()], MigAsk("1g.10gb"), limit=2)) == 2
    assert len(find([gpu()], MigAsk("1g.10gb"), limit=0)) == 1


def test_whole_gpus_come_in_the_order_of_their_node_and_index() -> None:
    pool = [gpu(n, use=Use.WHOLE) for n in (3, 1, 2, 0)]
    assert [places(c)[0][0] for c in find(pool, GpuAsk())] == [0, 1, 2, 3]


def test_the_remainder_of_a_large_ask_takes_the_node_that_fits_it_best() -> None:
    pool = [gpu(n, node="big", use=Use.WHOLE) for n in range(4)]
    pool += [gpu(10 + n, node="mid", use=Use.WHOLE) for n in range(3)]
    pool += [gpu(20, node="one", use=Use.WHOLE)]
    found = find(pool, GpuAsk(count=5))
    assert {p.gpu_id for p in found[0].picks} == {0, 1, 2, 3, 20}


def test_whole_candidates_differ_too() -> None:
    pool = [gpu(n, node=f"node-{n // 4}", use=Use.WHOLE) for n in range(8)]
    found = find(pool, GpuAsk(count=2, same_node=True))
    assert len({frozenset(places(c)) for c in found}) == len(found) >= 4


def test_one_node_that_is_larger_than_needed_beats_two_that_fit() -> None:
    pool = [gpu(n, node="four", use=Use.WHOLE) for n in range(4)]
    pool += [gpu(10 + n, node="seven", use=Use.WHOLE) for n in range(7)]
    assert {p.gpu_id // 10 for p in find(pool, GpuAsk(count=5))[0].picks} == {1}


def test_the_second_whole_candidate_is_on_cards_that_the_first_left() -> None:
    pool = [gpu(n, node="four", use=Use.WHOLE) for n in range(4)]
    pool += [gpu(10 + n, node="five", use=Use.WHOLE) for n in range(5)]
    first, second = (set(places(c)) for c in find(pool, GpuAsk(count=3))[:2])
    assert not first & second


def test_picks_come_card_by_card_in_the_order_of_their_start() -> None:
    picks = places(find([gpu(0), gpu(1)], MigAsk("1g.10gb", count=9))[0])
    assert picks == sorted(picks)


# --- Speed ------------------------------------------------------------------------


def crowded(gpus: int, each: int) -> list[GpuView]:
    """GPUs of four models, with bookings behind one another on every quarter."""
    dice = random.Random(7)
    out = []
    for n in range(gpus):
        name = [H100, "A100-40GB", "RTX-PRO-6000-96GB", "GB200-186GB"][n // 8 % 4]
        known, busy = mig.models()[name], []
        for start in range(0, known.grid, known.grid // 4):
            hour = 0
            for _ in range(each // 4):
                hour += dice.choice([0, 0, 1, 5])
                length = dice.randint(1, 5)
                busy.append(
                    Busy(start, known.grid // 4, span(hour, hour + length), mig.Media.DEFAULT, "x", 15)
                )
                hour += length
        out.append(replace(gpu(n, name, node=f"node-{n // 8:02}"), busy=tuple(busy)))
    return out


def quickest(pool: list[GpuView], ask: Ask) -> float:
    period, fleet = span(50, 54), of_views(pool)
    best = 1.0
    for _ in range(7):
        began = process_time()
        candidates(fleet, ask, period)
        best = min(best, process_time() - began)
    return best


def test_a_search_among_thousands_of_bookings_takes_milliseconds() -> None:
    """Measured 1 to 3 ms; the bound leaves room for a busy machine."""
    pool = crowded(100, 40)
    assert sum(len(g.busy) for g in pool) == 4000
    for ask in (MigAsk("1g.10gb"), MigAsk("1g.10gb", count=4), MigAsk(memory_mib=9_000, count=2)):
        assert quickest(pool, ask) < 0.02
