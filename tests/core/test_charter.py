"""The tables of lines and grants: who is above whom, what is guaranteed to whose own work."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.charter import Tree, charter
from pool.core.fleet_rows import micros
from tests.core import standings
from tests.core.standings import A100, H100, MODELS, Slow, World, grant, line
from tests.core.worlds import at

PARENTS = {1: None, 2: 1, 3: 1, 4: 2, 5: None}


def test_the_path_of_a_team_leads_to_the_top() -> None:
    tree = Tree(PARENTS)
    assert [tree.path(team) for team in (4, 1, 99)] == [(4, 2, 1), (1,), (99,)]
    assert [tree.below(team) for team in (1, 2, 5, 99)] == [{1, 2, 3, 4}, {2, 4}, {5}, {99}]


def test_a_tree_that_bites_its_own_tail_ends_all_the_same() -> None:
    tree = Tree({1: 2, 2: 1})
    assert (tree.path(1), tree.below(1)) == ((1, 2), {1, 2})


def test_only_teams_with_lines_or_grants_are_in_the_tables() -> None:
    found = charter([line(1, 0, 0), line(4, 0, 0)], [grant(5, 0, 0, 0, 1)], PARENTS, MODELS)
    assert found.teams == (1, 5, 4)
    assert found.above.tolist() == [-1, -1, 0]
    assert [found.node(team) for team in (4, 2, 3, 5, 99)] == [2, 0, 0, 1, -1]
    assert [rows.tolist() for rows in found.levels] == [[2], [0, 1]]


def test_models_that_only_lines_name_come_after_those_of_the_pool() -> None:
    lines = [line(1, 0, 0), standings.Line(7, "B200", 500, 500, team=1)]
    found = charter(lines, [], {}, (H100,))
    assert found.models == (H100, "B200")
    assert found.terms(0).guaranteed.tolist() == [[0, 500, 0]]


def test_what_the_teams_below_are_guaranteed_is_not_the_teams_own() -> None:
    lines = [
        line(1, 4000, 9000, H100), line(1, 2000, 9000), line(2, 3000, 9000, H100), line(3, 2000, 9000, H100),
        line(4, 1000, 9000),
    ]  # fmt: skip
    terms = charter(lines, [], PARENTS, MODELS).terms(0)
    # 5 of H100s for both children, 1 of them out of the line for any; the grandchild has no part of that.
    assert terms.own.tolist() == [[0, 0, 0], [0, 3000, 0], [0, 2000, 0], [0, 0, 1000]]
    assert terms.top.tolist() == [0, 4000, 2000]


def test_tables_hold_from_one_edge_of_a_grant_to_the_next() -> None:
    found = charter([line(1, 1000, 1000)], [grant(1, 500, 500, 2, 4), grant(5, 500, 500, 4, 6)], {}, MODELS)
    times = np.array([micros(at(hour)) for hour in (1, 2, 3.99, 4, 6)], dtype=np.int64)
    assert found.own_at(1, times)[:, -1].tolist() == [1000, 1500, 1500, 1000, 1000]
    assert found.own_of(np.array([0, 0, 1, 1, 1]), times)[:, -1].tolist() == [1000, 1500, 0, 500, 0]
    assert found.own_at(99, times).sum() == 0
    assert found.edges_of({1}, 0, micros(at(9))).tolist() == [micros(at(2)), micros(at(4))]
    assert found.edges_in(micros(at(2)), micros(at(6))).tolist() == [micros(at(4))]


def test_the_weight_of_a_team_is_the_largest_of_its_lines() -> None:
    lines = [line(1, 0, 0, weight=2), line(1, 0, 0, H100, weight=5), line(1, 0, 0, A100)]
    assert charter(lines, [], {}, MODELS).weights.tolist() == [5]


@settings(max_examples=100)
@given(seed=st.integers(0, 2**48))
def test_own_guarantees_are_as_the_slow_way_says(seed: int) -> None:
    world: World = standings.a_world(seed)
    found = world.standing.charter
    for hour in (0, 4, 7):
        slow, terms = Slow(world, hour), found.terms(micros(at(hour)))
        for team in found.teams:
            expected = [slow.own(team, model) for model in (*MODELS, None)]
            assert terms.own[found.row[team]].tolist() == expected
