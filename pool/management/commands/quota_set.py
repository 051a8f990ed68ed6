"""manage.py quota_set TEAM POOL: how many GPUs a team may hold at once, and what stands beside that."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import pool_named, refusals_are_sentences, team_named
from pool.models import QuotaLine
from pool.queries import clock
from pool.queries import quota as queries
from pool.services import quota

#: Option -> field of Conditions, and by how much what is typed is multiplied.
OPTIONS: dict[str, tuple[str, int]] = {
    "lend": ("lend_milli", 1000),
    "weight": ("weight", 1),
    "unit_size": ("unit_size", 1),
    "memory": ("memory_mib", 1024),
    "budget": ("budget_milli_hours", 1000),
    "largest": ("largest_milli", 1000),
    "gpus": ("most_gpus", 1),
    "longest": ("longest_minutes", 60),
    "ahead": ("ahead_minutes", 60),
}
HELP = {
    "lend": "GPUs of the guaranteed that others may borrow",
    "weight": "for the fair share",
    "unit_size": "GPUs of one node that are guaranteed together, with --unit node",
    "memory": "GPU memory at once, in GiB",
    "budget": "GPU-hours in a month",
    "largest": "the largest piece of one booking, in GPUs",
    "gpus": "the most GPUs in one booking",
    "longest": "the longest booking, in hours",
    "ahead": "so many hours ahead it can be booked",
}
#: What takes a limit away.
NONE = "none"


class Command(BaseCommand):
    help = (
        "Set a team's quota in a pool, in GPUs (a slice counts as its share of one). "
        f"What is not named stays as it is; '{NONE}' takes a limit away."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("team")
        parser.add_argument("pool")
        parser.add_argument("--cap", required=True, help="the most at any moment, such as 16 or 2.5")
        parser.add_argument("--guaranteed", default="0")
        parser.add_argument("--model", default="", help="only for this GPU model (default: any)")
        parser.add_argument("--unit", choices=("slots", "gpu", "node"), help="in what it is guaranteed")
        parser.add_argument("--kind", action="append", choices=quota.KINDS, help="what may be booked")
        for name, words in HELP.items():
            parser.add_argument(f"--{name.replace('_', '-')}", help=words)

    def handle(self, *, team: str, pool: str, cap: str, guaranteed: str, model: str, **more: Any) -> None:
        with refusals_are_sentences():
            its_team, its_pool = team_named(team), pool_named(pool)
            line = quota.set_line(
                actor=None,
                team=its_team,
                pool=its_pool,
                model=model,
                guaranteed_milli=_number(guaranteed, 1000),
                cap_milli=_number(cap, 1000),
                conditions=_conditions(queries.line_of(its_team, its_pool, model), more),
                now=clock.now(),
            )
        self.stdout.write(
            f"{team} in {pool}, {model or 'any model'}: "
            f"guaranteed {line.guaranteed_milli / 1000:g}, cap {line.cap_milli / 1000:g} GPUs."
        )


def _conditions(row: QuotaLine, given: dict[str, Any]) -> quota.Conditions:
    """What stands on the line, with what was named in place of it."""
    named: dict[str, Any] = {
        field: _limit(given[option], field, by)
        for option, (field, by) in OPTIONS.items()
        if given.get(option) is not None
    }
    if given.get("unit"):
        named["unit"] = given["unit"]
    if given.get("kind"):
        named["kinds"] = tuple(given["kind"])
    return replace(quota.conditions(row), **named)


def _limit(text: str, field: str, by: int) -> int | None:
    if text == NONE and field not in ("weight", "unit_size"):
        return None
    return _number(text, by)


def _number(text: str, by: int) -> int:
    try:
        return int(Decimal(text) * by)
    except (InvalidOperation, ValueError, OverflowError):
        raise CommandError(f"{text} is no number.") from None
