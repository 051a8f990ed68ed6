"""manage.py node_set NODE: how holders on a node get their slices. Without options: show it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import refusals_are_sentences
from pool.models import Node
from pool.queries import clock
from pool.services import inventory


class Command(BaseCommand):
    help = "Choose how holders on a node get their slices, and nobody else. Without options: show it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--access", choices=("advisory", "cdi", "unix"))

    def handle(self, *, node: str, access: str | None, **_: Any) -> None:
        row = Node.objects.filter(name=node).first()
        if row is None:
            raise CommandError(f"There is no node {node}.")
        if access:
            with refusals_are_sentences():
                row = inventory.set_access(actor=None, node=node, access=access, now=clock.now())
        offered = ", ".join(row.access_offered) or "not told"
        self.stdout.write(f"{row.name}  access {row.access}  (its agent offers: {offered})")
