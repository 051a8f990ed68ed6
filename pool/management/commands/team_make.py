"""manage.py team_make NAME: make a team, at the top or below another."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences, team_named
from pool.queries import clock
from pool.services import teams


class Command(BaseCommand):
    help = "Make a team."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--title", default="")
        parser.add_argument("--parent", help="the team that it belongs to")
        parser.add_argument("--zone", default="UTC", help="IANA time zone (default UTC)")

    def handle(self, *, name: str, title: str, parent: str | None, zone: str, **_: Any) -> None:
        above = team_named(parent) if parent else None
        with refusals_are_sentences():
            teams.make_team(actor=None, name=name, title=title, parent=above, zone=zone, now=clock.now())
        self.stdout.write(f"Team {name} is there.")
