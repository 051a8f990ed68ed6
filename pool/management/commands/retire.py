"""manage.py retire: take a GPU, or a node with all its GPUs, out of the inventory; GPUs may come back."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import refusals_are_sentences
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Retire a GPU, or a node: its token and its Redis user end. --back brings GPUs back, observed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("target", choices=["gpu", "node"])
        parser.add_argument("name", help="the GPU's UUID, or the name of the node")
        parser.add_argument("--back", action="store_true")

    def handle(self, *, target: Any, name: str, back: bool, **_: Any) -> None:
        with refusals_are_sentences():
            rows = inventory.retire(actor=None, target=target, id=name, retired=not back, now=clock.now())
        if not rows and target == "gpu":
            raise CommandError("It was so already.")
        self.stdout.write(f"{len(rows)} GPUs {'are back, only observed' if back else 'retired'}.")
