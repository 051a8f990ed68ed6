"""queries.teams: roles that reach down, and what a user sees of teams."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser

from pool.core.roles import GlobalRole, TeamRole
from pool.models import Membership, Team, User
from pool.queries import teams
from tests.cast import Cast


@pytest.fixture
def lab(cast: Cast) -> Team:
    """Two steps below vision."""
    middle = Team.objects.create(name="vision-lab", parent=cast.vision)
    return Team.objects.create(name="vision-lab-night", parent=middle)


def names(rows: object) -> list[str]:
    return [row.name for row in rows]  # type: ignore[attr-defined]


def test_a_role_reaches_all_subteams_and_no_other_team(cast: Cast, lab: Team) -> None:
    assert teams.reach(cast.lena) == dict.fromkeys([cast.vision.pk, lab.parent_id, lab.pk], TeamRole.LEAD)
    assert teams.reach(cast.milo)[lab.pk] == TeamRole.MEMBER
    assert teams.reach(cast.sam) == {cast.speech.pk: TeamRole.LEAD}
    assert teams.reach(cast.otto) == {}


def test_a_role_does_not_reach_up(cast: Cast, lab: Team) -> None:
    Membership.objects.create(team=lab, user=cast.sam, role="lead")
    assert cast.vision.pk not in teams.reach(cast.sam)


def test_of_two_roles_the_higher_counts(cast: Cast, lab: Team) -> None:
    Membership.objects.create(team=lab, user=cast.milo, role="lead")
    assert teams.reach(cast.milo)[lab.pk] == TeamRole.LEAD
    assert teams.reach(cast.milo)[cast.vision.pk] == TeamRole.MEMBER


def test_teams_in_a_circle_end_the_walk(cast: Cast, lab: Team) -> None:
    Team.objects.filter(pk=cast.vision.pk).update(parent=lab)
    assert set(teams.reach(cast.milo)) == {cast.vision.pk, lab.parent_id, lab.pk}


def test_whoever_is_inactive_or_unknown_has_no_role(cast: Cast) -> None:
    for user in (cast.lena, cast.anna):
        User.objects.filter(pk=user.pk).update(is_active=False)
        user.refresh_from_db()
        assert (teams.reach(user), teams.global_roles(user)) == ({}, frozenset())
    assert (teams.reach(AnonymousUser()), teams.global_roles(AnonymousUser())) == ({}, frozenset())


def test_global_roles_are_read_from_the_user(cast: Cast) -> None:
    assert teams.global_roles(cast.otto) == {GlobalRole.OPERATOR}
    assert teams.global_roles(cast.lena) == frozenset()


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("lena", ["vision"]),
        ("sam", ["speech"]),
        ("ada", ["speech", "vision"]),
        ("otto", ["speech", "vision"]),
        ("anna", ["speech", "vision"]),
    ],
)
def test_teams_are_seen_by_their_own_and_by_those_who_look_after_all(
    cast: Cast, who: str, seen: list[str]
) -> None:
    assert names(teams.visible_to(getattr(cast, who))) == seen


def test_only_operators_and_admins_see_all_reservations(cast: Cast) -> None:
    seeing = [
        who for who in ("lena", "milo", "sam", "ada", "otto", "anna") if teams.sees_all(getattr(cast, who))
    ]
    assert seeing == ["otto", "anna"]


def test_a_form_offers_the_teams_that_one_may_book_for(cast: Cast, lab: Team) -> None:
    assert names(teams.to_book_for(cast.milo)) == ["vision", "vision-lab", "vision-lab-night"]
    assert names(teams.to_book_for(cast.otto)) == []


def test_members_are_those_of_the_team_and_above(cast: Cast, lab: Team) -> None:
    assert [user.username for user in teams.members(lab)] == ["lena", "milo", "robot"]
    User.objects.filter(pk=cast.milo.pk).update(is_active=False)
    assert [user.username for user in teams.members(lab)] == ["lena", "robot"]
