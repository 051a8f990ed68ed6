"""manage.py user_make NAME: make a person or a service account; the first admin comes from here."""

from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.core.roles import GlobalRole, TeamRole
from pool.management.shell import refusals_are_sentences, team_named
from pool.models import User
from pool.queries import clock
from pool.services import teams


class Command(BaseCommand):
    help = "Make a person (its password is asked for, or read from standard input) or a service account."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--service", action="store_true", help="a service account; it never signs in")
        parser.add_argument("--role", action="append", default=[], choices=[r.value for r in GlobalRole])
        parser.add_argument("--team", action="append", default=[], metavar="TEAM[:lead]")
        parser.add_argument("--full-name", default="")
        parser.add_argument("--zone", default="")

    def handle(self, *, name: str, service: bool, role: list[str], team: list[str], **more: Any) -> None:
        joined = [_membership(text) for text in team]
        password = None if service else _password()
        now = clock.now()
        with refusals_are_sentences():
            user = teams.make_user(
                actor=None,
                username=name,
                password=password,
                kind=User.Kind.SERVICE if service else User.Kind.PERSON,
                roles=[GlobalRole(one) for one in role],
                full_name=more["full_name"],
                zone=more["zone"],
                now=now,
            )
            for row, team_role in joined:
                teams.set_member(actor=None, team=row, user=user, role=team_role, now=now)
        self.stdout.write(f"User {name} is there.")


def _membership(text: str) -> tuple[Any, TeamRole]:
    name, _, role = text.partition(":")
    if role not in ("", *TeamRole):
        raise CommandError(f"{text}: the role must be one of {', '.join(TeamRole)}.")
    return team_named(name), TeamRole(role or TeamRole.MEMBER)


def _password() -> str:
    if sys.stdin.isatty():
        password, again = getpass.getpass("Password: "), getpass.getpass("Once more: ")
        if password != again:
            raise CommandError("The two differ.")
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < 8:
        raise CommandError("A password needs at least 8 characters.")
    return password
