"""manage.py pool_make NAME: make an empty pool."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Make an empty pool."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--title", default="")
        parser.add_argument("--zone", default="UTC", help="IANA time zone (default UTC)")

    def handle(self, *, name: str, title: str, zone: str, **_: Any) -> None:
        with refusals_are_sentences():
            inventory.make_pool(actor=None, name=name, title=title, zone=zone, now=clock.now())
        self.stdout.write(f"Pool {name} is there.")
