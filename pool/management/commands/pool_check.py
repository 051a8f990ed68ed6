"""manage.py pool_check [POOL ...]: recompute everything from the rows; 1 with a list if anything differs."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import pool_named
from pool.queries import clock
from pool.queries.consistency import Difference
from pool.services import consistency


class Command(BaseCommand):
    help = "Recompute quota, places, states, events and layouts from the rows; exits 1 if anything differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pools", nargs="*", metavar="POOL", help="only these; else all")
        parser.add_argument("--json", action="store_true", help="print a JSON list")

    def handle(self, *, pools: list[str], **options: Any) -> None:
        for name in pools:
            pool_named(name)
        found = consistency.check(now=clock.now(), pools=pools)
        if options["json"]:
            self.stdout.write(json.dumps([asdict(one) for one in found], default=str))
        else:
            self._tell(found)
        if any(not one.kept for one in found):
            sys.exit(1)

    def _tell(self, found: list[Difference]) -> None:
        for one in found:
            how = "kept" if one.kept else "DIFFERS"
            numbers = " ".join(f"{name}={value}" for name, value in one.data.items())
            self.stdout.write(f"{how:<8} {one.pool} {one.rule} {one.subject} {numbers}".rstrip())
        wrong = sum(not one.kept for one in found)
        self.stdout.write(f"{wrong} differ, {len(found) - wrong} are kept from before a limit was changed.")
