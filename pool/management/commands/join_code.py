"""manage.py join_code POOL NODE: print a one-time code with which a node joins."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Print a one-time code that lets one node join, within 24 hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pool")
        parser.add_argument("node", help="the name that the node will have")

    def handle(self, *, pool: str, node: str, **_: Any) -> None:
        with refusals_are_sentences():
            code = inventory.make_join_code(actor=None, pool=pool, name=node, now=clock.now())
        self.stdout.write(code)
