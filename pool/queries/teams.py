"""Which teams a user is in, with roles that reach down to subteams; which teams a user may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.db import connection
from django.db.models import QuerySet

from pool.core.roles import Action, GlobalRole, TeamRole, allows
from pool.models import Team, User

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

_REACH = """
WITH RECURSIVE reach (id, is_lead) AS (
    SELECT team_id, role = 'lead' FROM pool_membership WHERE user_id = %s
    UNION
    SELECT team.id, reach.is_lead FROM pool_team team JOIN reach ON team.parent_id = reach.id
)
SELECT id, bool_or(is_lead) FROM reach GROUP BY id
"""


def reach(user: User | AnonymousUser) -> Mapping[int, TeamRole]:
    """The teams (ids) in which `user` has a role, subteams included, with the higher role of each."""
    if not user.is_active or user.pk is None:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_REACH, [user.pk])
        rows = cursor.fetchall()
    return {team: TeamRole.LEAD if is_lead else TeamRole.MEMBER for team, is_lead in rows}


def global_roles(user: User | AnonymousUser) -> frozenset[GlobalRole]:
    """The user's global roles; none for whoever is inactive or not signed in."""
    if not isinstance(user, User) or not user.is_active:
        return frozenset()
    return frozenset(GlobalRole(role) for role in user.roles)


def sees_all(user: User | AnonymousUser) -> bool:
    """Whether a global role lets this user see every team's reservations."""
    return allows(Action.VIEW_ALL, None, global_roles(user))


def visible_to(user: User | AnonymousUser) -> QuerySet[Team]:
    """Teams in which `user` has a role; all of them for roles that see everything or set quota."""
    teams = Team.objects.select_related("parent").order_by("name")
    all_of_them = sees_all(user) or allows(Action.SET_QUOTA, None, global_roles(user))
    return teams if all_of_them else teams.filter(pk__in=reach(user))


def to_book_for(user: User | AnonymousUser) -> QuerySet[Team]:
    """Teams for which `user` may book: what a form offers."""
    may = [team for team, role in reach(user).items() if allows(Action.BOOK, role, global_roles(user))]
    return Team.objects.filter(pk__in=may).order_by("name")


def members(team: Team) -> QuerySet[User]:
    """Active people and service accounts with a role in `team` or above it, by username."""
    line = [team.pk]
    above = team.parent
    while above is not None:
        line.append(above.pk)
        above = above.parent
    return User.objects.filter(is_active=True, memberships__team__in=line).distinct().order_by("username")
