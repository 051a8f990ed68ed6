"""manage.py node_set NODE: how its holders get slices, and where it stands. Without options: show it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import refusals_are_sentences
from pool.models import Node
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Choose how holders on a node get their slices, and name its block. Without options: show it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--access", choices=("advisory", "cdi", "unix"))
        parser.add_argument("--block", help="the rack or block it stands in, as in Slurm; '': none is named")

    def handle(self, *, node: str, access: str | None, block: str | None, **_: Any) -> None:
        row = Node.objects.filter(name=node).first()
        if row is None:
            raise CommandError(f"There is no node {node}.")
        if access:
            with refusals_are_sentences():
                row = inventory.set_access(actor=None, node=node, access=access, now=clock.now())
        if block is not None:
            with refusals_are_sentences():
                row = inventory.set_block(actor=None, node=node, block=block, now=clock.now())
        stands = f"  block {row.block}" if row.block else ""
        offered = ", ".join(row.access_offered) or "not told"
        self.stdout.write(f"{row.name}  access {row.access}  (its agent offers: {offered}){stands}")
