"""The role table, cell by cell."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from pool.core.roles import TABLE, Action, GlobalRole, TeamRole, allows

#: Action -> who may: nobody else, in any combination of roles.
EXPECTED = {
    "book": "member lead",
    "book_for_others": "lead",
    "release_own": "member lead",
    "release_team": "lead operator admin",
    "extend_own": "member lead",
    "extend_team": "lead",
    "view_team": "member lead operator admin",
    "manage_members": "lead admin",
    "manage_tokens": "lead admin",
    "request_quota": "lead",
    "comment_request": "member lead approver admin",
    "set_quota": "approver admin",
    "decide": "approver admin",
    "manage_node": "operator admin",
    "manage_pool": "operator admin",
    "view_all": "operator admin",
}

EVERY_SET = [frozenset(roles) for roles in chain.from_iterable(combinations(GlobalRole, n) for n in range(4))]


def test_the_table_names_every_action() -> None:
    assert set(TABLE) == set(Action) == {Action(name) for name in EXPECTED}


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("team", [None, *TeamRole])
@pytest.mark.parametrize("role", [None, *GlobalRole])
def test_each_cell(action: Action, team: TeamRole | None, role: GlobalRole | None) -> None:
    may = EXPECTED[action].split()
    roles = frozenset[GlobalRole]() if role is None else frozenset({role})
    assert allows(action, team, roles) == (team in may or role in may)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("roles", EVERY_SET, ids=lambda r: "+".join(sorted(r)) or "none")
def test_several_roles_allow_what_one_of_them_allows(action: Action, roles: frozenset[GlobalRole]) -> None:
    for team in (None, *TeamRole):
        alone = [allows(action, team, frozenset({role})) for role in roles]
        assert allows(action, team, roles) == (allows(action, team, frozenset()) or any(alone))


@pytest.mark.parametrize("action", Action)
def test_a_stranger_may_do_nothing(action: Action) -> None:
    assert not allows(action, None, frozenset())


@pytest.mark.parametrize(
    "action", [Action.BOOK, Action.BOOK_FOR_OTHERS, Action.EXTEND_OWN, Action.EXTEND_TEAM]
)
def test_nobody_spends_a_team_s_quota_from_outside(action: Action) -> None:
    assert not allows(action, None, frozenset(GlobalRole))


def test_a_lead_does_not_set_the_own_quota() -> None:
    assert not allows(Action.SET_QUOTA, TeamRole.LEAD, frozenset())
    assert not allows(Action.SET_QUOTA, TeamRole.LEAD, frozenset({GlobalRole.OPERATOR}))


@pytest.mark.parametrize("action", Action)
def test_a_lead_may_what_a_member_may(action: Action) -> None:
    assert allows(action, TeamRole.LEAD, frozenset()) >= allows(action, TeamRole.MEMBER, frozenset())
