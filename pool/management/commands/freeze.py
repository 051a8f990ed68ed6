"""manage.py freeze: stop commands and starts at once, or lift that."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import refusals_are_sentences
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Stop commands and starts for a GPU, a node, a pool or everything; --thaw lifts it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("target", choices=["gpu", "node", "pool", "everything"])
        parser.add_argument("name", nargs="?", help="the GPU's UUID, or the name of node or pool")
        parser.add_argument("--thaw", action="store_true")

    def handle(self, *, target: Any, name: str | None, thaw: bool, **_: Any) -> None:
        if (name is None) != (target == "everything"):
            raise CommandError("Name what to freeze, or write: everything.")
        with refusals_are_sentences():
            inventory.freeze(actor=None, target=target, id=name, frozen=not thaw, now=clock.now())
        self.stdout.write("Thawed." if thaw else "Frozen: bookings are kept, nothing is commanded.")
