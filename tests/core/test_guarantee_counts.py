"""Counts of free GPUs against needs in units, compared with laying every group on every node."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.guarantee_counts import Free, Need, lacking

#: Free GPUs of each node, by model; groups (model, or 2: any; size); single GPUs and slots, by model and any.
State = tuple[
    tuple[tuple[int, ...], tuple[int, ...]],
    tuple[int, int],
    list[tuple[int, int]],
    tuple[int, int, int],
    tuple[int, int, int],
]


def free(nodes: tuple[tuple[int, ...], ...], slots: tuple[int, ...], most: int = 8) -> Free:
    levels = np.zeros((1, len(nodes), most + 1), dtype=np.int64)
    for model, of_it in enumerate(nodes):
        for number in of_it:
            levels[0, model, number] += 1
    return Free(levels, np.array([slots], dtype=np.int64))


def need(
    groups: list[tuple[int, int]], gpus: tuple[int, ...], slots: tuple[int, ...], models: int = 2
) -> Need:
    sizes = tuple(sorted({size for _, size in groups}, reverse=True))
    counts = np.zeros((1, models + 1, len(sizes)), dtype=np.int64)
    for model, size in groups:
        counts[0, model, sizes.index(size)] += 1
    return Need(sizes, counts, np.array([gpus]), np.array([slots]))


def lacks(state: State) -> int:
    nodes, slots, groups, gpus, of_slots = state
    return int(lacking(free(nodes, slots), need(groups, gpus, of_slots))[0])


def fits_by_trying(state: State) -> bool:
    """Every way to lay the groups on nodes; then singles and slots by hand."""
    nodes, slots, groups, gpus, of_slots = state
    flat = [(model, number) for model, of_it in enumerate(nodes) for number in of_it]
    for where in product(range(len(flat)), repeat=len(groups)):
        left = [number for _, number in flat]
        for (model, size), node in zip(groups, where, strict=True):
            left[node] -= size if model in (2, flat[node][0]) else 99
        if min(left, default=0) < 0:
            continue
        spare = [
            sum(n for (m, _), n in zip(flat, left, strict=True) if m == model) - gpus[model]
            for model in (0, 1)
        ]
        if min(spare) < 0:
            continue
        # Whole GPUs that have to be broken for the slots of each model, and what is over of them.
        broken = [-(-max(0, of_slots[m] - slots[m]) // 1000) for m in (0, 1)]
        over = sum(slots[m] + 1000 * broken[m] - of_slots[m] for m in (0, 1))
        rest = sum(spare) - sum(broken) - gpus[2]
        if all(spare[m] >= broken[m] for m in (0, 1)) and rest >= 0 and over + 1000 * rest >= of_slots[2]:
            return True
    return not groups and not any(gpus) and not any(of_slots)


def states(sizes: list[int]) -> st.SearchStrategy[State]:
    nodes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    milli = st.sampled_from([0, 0, 250, 500, 1250])
    few = st.sampled_from([0, 0, 1, 2])
    return st.tuples(
        st.tuples(nodes, nodes),
        st.tuples(milli, milli),
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sizes)), max_size=4),
        st.tuples(few, few, few),
        st.tuples(milli, milli, milli),
    )


@pytest.mark.parametrize("sizes", [[2, 4], [2, 3, 5]], ids=["dividing one another", "not dividing"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_nothing_is_lacking_exactly_where_trying_everything_finds_places(
    sizes: list[int], data: st.DataObject
) -> None:
    state = data.draw(states(sizes))
    assert (lacks(state) == 0) == fits_by_trying(state)


def test_what_is_lacking_is_counted_in_milli() -> None:
    # A node of 5: a group of 4 and one GPU; a second GPU and 250 milli find no place.
    assert lacks((((5,), ()), (0, 0), [(0, 4)], (2, 0, 0), (250, 0, 0))) == 1250
    assert lacks((((3,), ()), (0, 0), [(0, 4)], (0, 0, 0), (0, 0, 0))) == 4000


def test_many_states_are_looked_at_at_once_and_one_need_stands_for_all() -> None:
    both = Free(
        np.concatenate((free(((4,), ()), (0, 0)).nodes, free(((2, 2), ()), (0, 0)).nodes)),
        np.zeros((2, 2), dtype=np.int64),
    )
    one = need([(0, 4)], (0, 0, 0), (0, 0, 0))
    assert lacking(both, one).tolist() == [0, 4000]
    odd = need([(0, 3), (0, 2)], (0, 0, 0), (0, 0, 0))
    assert lacking(both, odd).tolist() == [2000, 3000]


def test_a_search_for_very_many_groups_ends_and_never_says_yes_wrongly() -> None:
    many = [(0, 3)] * 300 + [(0, 2)] * 300
    assert lacking(free(((5,) * 300, ()), (0, 0)), need(many, (0, 0, 0), (0, 0, 0)))[0] == 0
    assert lacking(free(((5,) * 299, ()), (0, 0)), need(many, (0, 0, 0), (0, 0, 0)))[0] > 0
