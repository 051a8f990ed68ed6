"""manage.py pool_make NAME: make an empty pool."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import refusals_are_sentences
from pool.models import Pool
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Make an empty pool."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--title", default="")
        parser.add_argument("--zone", default="UTC", help="IANA time zone (default UTC)")
        parser.add_argument("--unless-there", action="store_true", help="leave a pool of that name as it is")

    def handle(self, *, name: str, title: str, zone: str, unless_there: bool, **_: Any) -> None:
        if unless_there and Pool.objects.filter(name=name).exists():
            return
        with refusals_are_sentences():
            inventory.make_pool(actor=None, name=name, title=title, zone=zone, now=clock.now())
        self.stdout.write(f"Pool {name} is there.")
