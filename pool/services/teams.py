"""Writes of people, service accounts, teams and memberships."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterable
from datetime import datetime

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action, GlobalRole, TeamRole
from pool.models import Membership, Team, User
from pool.queries import access
from pool.services import events, locks

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_USERNAME = re.compile(r"[\w.@+-]{1,150}")


@locks.use_case
def make_team(
    *,
    actor: User | None,
    name: str,
    title: str = "",
    parent: Team | None = None,
    zone: str = "UTC",
    now: datetime,
) -> Team:
    """A team; below `parent` its leads may make it, at the top only an admin.

    Refuses with FORBIDDEN, INVALID (name, zone), TAKEN.
    """
    access.require(actor, Action.MANAGE_MEMBERS, parent)
    check_slug(name)
    check_zone(zone)
    team, made = Team.objects.get_or_create(
        name=name, defaults={"title": title[:120], "parent": parent, "zone": zone}
    )
    if not made:
        raise Refusal(Code.TAKEN, name=name)
    after = {"name": name, "title": title, "parent": parent and parent.name, "zone": zone}
    events.record("team.made", actor=actor, now=now, team_id=team.pk, after=after)
    return team


@locks.use_case
def make_user(
    *,
    actor: User | None,
    username: str,
    password: str | None,
    kind: User.Kind = User.Kind.PERSON,
    roles: Iterable[GlobalRole] = (),
    full_name: str = "",
    email: str = "",
    zone: str = "",
    now: datetime,
) -> User:
    """A person, or a service account (which never signs in: password None). Admins only.

    Refuses with FORBIDDEN, INVALID (username, zone), TAKEN.
    """
    access.require(actor, Action.MANAGE_MEMBERS)
    if not _USERNAME.fullmatch(username):
        raise invalid("/username", "bad_characters")
    if zone:
        check_zone(zone)
    if User.objects.filter(username=username).exists():
        raise Refusal(Code.TAKEN, name=username)
    first, _, last = full_name.partition(" ")
    granted = sorted({GlobalRole(role).value for role in roles})
    user = User(username=username, kind=kind, roles=granted, zone=zone, email=email)
    user.first_name, user.last_name = first[:150], last[:150]
    user.is_staff = GlobalRole.ADMIN in granted  # opens the read-only tables, no more
    user.set_password(None if kind == User.Kind.SERVICE else password)
    user.save()
    events.record(
        "user.made", actor=actor, now=now, after={"username": username, "kind": kind, "roles": granted}
    )
    return user


@locks.use_case
def set_roles(*, actor: User | None, user: User, roles: Iterable[GlobalRole], now: datetime) -> User:
    """Give a user exactly these global roles. Admins only; nobody changes their own."""
    access.require(actor, Action.MANAGE_MEMBERS)
    if actor is not None and actor.pk == user.pk:
        raise Refusal(Code.FORBIDDEN, action=Action.MANAGE_MEMBERS.value)
    before, after = list(user.roles), sorted({GlobalRole(role).value for role in roles})
    if before != after:
        user.roles, user.is_staff = after, GlobalRole.ADMIN in after
        user.save(update_fields=["roles", "is_staff"])
        events.record(
            "user.roles_set",
            actor=actor,
            now=now,
            before={"username": user.username, "roles": before},
            after={"username": user.username, "roles": after},
        )
    return user


@locks.use_case
def set_password(*, actor: User | None, user: User, password: str, now: datetime) -> None:
    """Give a person a new password; their open sessions end. Admins, and everybody for themselves."""
    if actor is None or actor.pk != user.pk:
        access.require(actor, Action.MANAGE_MEMBERS)
    user.set_password(password)
    user.save(update_fields=["password"])
    events.record("user.password_set", actor=actor, now=now, after={"username": user.username})


@locks.use_case
def set_member(
    *, actor: User | None, team: Team, user: User, role: TeamRole | None, now: datetime
) -> Membership | None:
    """Give `user` that role in `team` and its subteams; None takes it away.

    Leads of the team (or above it) and admins. What the user booked stays.
    """
    access.require(actor, Action.MANAGE_MEMBERS, team)
    old = Membership.objects.filter(team=team, user=user).first()
    if (old.role if old else None) == role:
        return old
    if role is None:
        Membership.objects.filter(team=team, user=user).delete()
        new = None
    else:
        new, _ = Membership.objects.update_or_create(team=team, user=user, defaults={"role": role})
    events.record(
        "team.member_set",
        actor=actor,
        now=now,
        team_id=team.pk,
        before={"user": user.username, "role": old.role if old else None},
        after={"user": user.username, "role": role},
    )
    return new


def check_slug(name: str) -> None:
    """Refuse a name that does not fit an address: lower case letters, digits and inner hyphens."""
    if not _SLUG.fullmatch(name):
        raise invalid("/name", "bad_characters")


def check_zone(zone: str) -> None:
    """Refuse what is no IANA time zone."""
    if zone not in zoneinfo.available_timezones():
        raise invalid("/zone", "not_a_choice", choices=["UTC", "Asia/Shanghai", "..."])
