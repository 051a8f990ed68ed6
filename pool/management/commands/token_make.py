"""manage.py token_make USER: make an API token and print it, this once."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences, team_named, user_named
from pool.queries import clock
from pool.services import tokens


class Command(BaseCommand):
    help = "Make an API token and print it: it cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--team", help="bind it to this team")
        parser.add_argument("--name", default="made on the server")
        parser.add_argument("--days", type=int, default=tokens.DEFAULT_DAYS)

    def handle(self, *, user: str, team: str | None, name: str, days: int, **_: Any) -> None:
        with refusals_are_sentences():
            _token, text = tokens.make(
                actor=None,
                user=user_named(user),
                team=team_named(team) if team else None,
                name=name,
                days=days,
                now=clock.real_now(),
            )
        self.stdout.write(text)
