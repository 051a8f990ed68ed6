"""manage.py quota_set TEAM POOL: how many GPUs a team may hold at once."""

from __future__ import annotations

from argparse import ArgumentParser
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import pool_named, refusals_are_sentences, team_named
from pool.queries import clock
from pool.services import quota


class Command(BaseCommand):
    help = "Set a team's quota in a pool, in GPUs (a slice counts as its share of one)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("team")
        parser.add_argument("pool")
        parser.add_argument("--cap", required=True, help="the most at any moment, such as 16 or 2.5")
        parser.add_argument("--guaranteed", default="0")
        parser.add_argument("--model", default="", help="only for this GPU model (default: any)")

    def handle(self, *, team: str, pool: str, cap: str, guaranteed: str, model: str, **_: Any) -> None:
        with refusals_are_sentences():
            line = quota.set_line(
                actor=None,
                team=team_named(team),
                pool=pool_named(pool),
                model=model,
                guaranteed_milli=_milli(guaranteed),
                cap_milli=_milli(cap),
                now=clock.now(),
            )
        self.stdout.write(
            f"{team} in {pool}, {model or 'any model'}: "
            f"guaranteed {line.guaranteed_milli / 1000:g}, cap {line.cap_milli / 1000:g} GPUs."
        )


def _milli(text: str) -> int:
    try:
        return int(Decimal(text) * 1000)
    except (InvalidOperation, ValueError, OverflowError):
        raise CommandError(f"{text} is no number of GPUs.") from None
