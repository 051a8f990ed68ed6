"""services.teams: who may make people and teams, and give roles."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.roles import GlobalRole, TeamRole
from pool.models import Event, Membership, Team, User
from pool.queries import clock
from pool.queries import teams as queries
from pool.services import teams
from tests.cast import Cast


def refused(code: Code, use_case: Any, **values: Any) -> None:
    with pytest.raises(Refusal) as caught:
        use_case(now=clock.now(), **values)
    assert caught.value.code == code


def test_an_admin_makes_a_team_at_the_top(cast: Cast) -> None:
    team = teams.make_team(actor=cast.anna, name="robotics", title="Robotics", now=clock.now())
    assert Event.objects.get(verb="team.made").team_id == team.pk


def test_a_lead_makes_teams_only_below_the_own(cast: Cast) -> None:
    below = teams.make_team(actor=cast.lena, name="vision-lab", parent=cast.vision, now=clock.now())
    assert below.parent == cast.vision
    refused(Code.FORBIDDEN, teams.make_team, actor=cast.lena, name="top")
    refused(Code.FORBIDDEN, teams.make_team, actor=cast.lena, name="sub", parent=cast.speech)
    refused(Code.FORBIDDEN, teams.make_team, actor=cast.milo, name="sub", parent=cast.vision)


@pytest.mark.parametrize("name", ["", "Vision", "-x", "x-", "a b", "x" * 64, "视觉", "a\n"])
def test_a_teams_name_fits_an_address(cast: Cast, name: str) -> None:
    refused(Code.INVALID, teams.make_team, actor=cast.anna, name=name)


def test_a_name_is_taken_once(cast: Cast) -> None:
    refused(Code.TAKEN, teams.make_team, actor=cast.anna, name="vision")
    refused(Code.TAKEN, teams.make_user, actor=cast.anna, username="lena", password="x")


def test_a_zone_is_an_iana_name(cast: Cast) -> None:
    teams.make_team(actor=cast.anna, name="far", zone="Asia/Shanghai", now=clock.now())
    refused(Code.INVALID, teams.make_team, actor=cast.anna, name="farther", zone="Moon/Base")
    refused(Code.INVALID, teams.make_user, actor=cast.anna, username="x", password="x", zone="../etc")


def test_an_admin_makes_a_person_who_can_sign_in(cast: Cast) -> None:
    user = teams.make_user(
        actor=cast.anna,
        username="nina",
        password="right-horse",
        roles=[GlobalRole.OPERATOR],
        full_name="Nina Ng",
        now=clock.now(),
    )
    assert user.check_password("right-horse")
    assert (user.first_name, user.last_name, user.roles, user.is_staff) == ("Nina", "Ng", ["operator"], False)
    assert "right-horse" not in repr(list(Event.objects.values()))


def test_a_service_account_never_signs_in(cast: Cast) -> None:
    user = teams.make_user(
        actor=cast.anna, username="ci", password="given-all-the-same", kind=User.Kind.SERVICE, now=clock.now()
    )
    assert not user.has_usable_password()


@pytest.mark.parametrize("who", ["lena", "milo", "otto", "ada"])
def test_nobody_else_makes_people_or_gives_global_roles(cast: Cast, who: str) -> None:
    actor = getattr(cast, who)
    refused(Code.FORBIDDEN, teams.make_user, actor=actor, username="x", password="x")
    refused(Code.FORBIDDEN, teams.set_roles, actor=actor, user=cast.milo, roles=[GlobalRole.ADMIN])


def test_an_admin_gives_and_takes_global_roles_but_not_the_own(cast: Cast) -> None:
    teams.set_roles(actor=cast.anna, user=cast.milo, roles=[GlobalRole.ADMIN], now=clock.now())
    milo = User.objects.get(pk=cast.milo.pk)
    assert (milo.roles, milo.is_staff) == (["admin"], True)
    event = Event.objects.get(verb="user.roles_set")
    assert (event.before["roles"], event.after["roles"]) == ([], ["admin"])
    refused(Code.FORBIDDEN, teams.set_roles, actor=cast.anna, user=cast.anna, roles=[])


def test_a_lead_gives_and_takes_roles_in_the_team(cast: Cast) -> None:
    teams.set_member(actor=cast.lena, team=cast.vision, user=cast.sam, role=TeamRole.MEMBER, now=clock.now())
    assert queries.reach(cast.sam)[cast.vision.pk] == TeamRole.MEMBER
    teams.set_member(actor=cast.lena, team=cast.vision, user=cast.sam, role=TeamRole.LEAD, now=clock.now())
    assert queries.reach(cast.sam)[cast.vision.pk] == TeamRole.LEAD
    teams.set_member(actor=cast.lena, team=cast.vision, user=cast.sam, role=None, now=clock.now())
    assert cast.vision.pk not in queries.reach(cast.sam)
    assert Event.objects.filter(verb="team.member_set", team_id=cast.vision.pk).count() == 3


def test_the_same_role_again_is_no_event(cast: Cast) -> None:
    teams.set_member(actor=cast.lena, team=cast.vision, user=cast.milo, role=TeamRole.MEMBER, now=clock.now())
    assert not Event.objects.exists()


def test_members_and_strangers_give_no_roles(cast: Cast) -> None:
    for actor in (cast.milo, cast.sam, cast.otto):
        refused(
            Code.FORBIDDEN, teams.set_member, actor=actor, team=cast.vision, user=actor, role=TeamRole.LEAD
        )
    assert Membership.objects.filter(team=cast.vision).count() == 3


def test_a_lead_above_gives_roles_below(cast: Cast) -> None:
    below = Team.objects.create(name="vision-lab", parent=cast.vision)
    teams.set_member(actor=cast.lena, team=below, user=cast.sam, role=TeamRole.MEMBER, now=clock.now())
    assert below.pk in queries.reach(cast.sam)


def test_a_password_is_changed_by_oneself_or_an_admin(cast: Cast) -> None:
    teams.set_password(actor=cast.milo, user=cast.milo, password="new-one-1", now=clock.now())
    assert cast.milo.check_password("new-one-1")
    teams.set_password(actor=cast.anna, user=cast.milo, password="new-one-2", now=clock.now())
    refused(Code.FORBIDDEN, teams.set_password, actor=cast.lena, user=cast.milo, password="x")
    assert User.objects.get(pk=cast.milo.pk).check_password("new-one-2")
