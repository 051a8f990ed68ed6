"""manage.py account_set: the account of a person or a team on the GPU nodes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences, team_named, user_named
from pool.queries import clock
from pool.services import accounts


class Command(BaseCommand):
    help = "Say under which account a person or a team is known on the nodes; an empty one is none."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=["user", "team"])
        parser.add_argument("name")
        parser.add_argument("account")

    def handle(self, *, kind: str, name: str, account: str, **_: Any) -> None:
        holder = user_named(name) if kind == "user" else team_named(name)
        with refusals_are_sentences():
            accounts.set_account(actor=None, holder=holder, account=account, now=clock.now())
        self.stdout.write(
            f"{name} is {account} on the nodes." if account else f"{name} has no account there."
        )
