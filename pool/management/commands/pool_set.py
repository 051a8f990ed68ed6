"""manage.py pool_set NAME: a pool's policy. Without options: show it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from pool.management.shell import pool_named, refusals_are_sentences
from pool.queries import clock
from pool.services import inventory, policy

#: Option -> what it is about.
HELP = {
    "may_kill": "processes that outlive the end and its grace are killed",
    "grace_seconds": "between SIGTERM and SIGKILL at the end",
    "over_memory": "what is done about a share that takes too much memory",
    "over_grace_seconds": "how long it may, before it is ended",
    "foreign": "what is done about processes on a GPU that nobody booked",
    "terminal_lines": "holders are told on their terminals",
    "mps_multi_user": "one MPS server may serve several accounts",
    "most_shares": "tenants of one GPU",
    "lost_minutes": "after which bookings on a lost GPU fail or go elsewhere",
    "auto_return": "a GPU that was faulty comes back by itself after its good probes",
    "good_probes": "good reports in a row before a faulty GPU may come back",
    "notice_seconds": "how long before borrowed capacity is taken back its holder is told",
    "min_run_seconds": "what has begun is not taken back before it has run so long",
    "approve_above_milli": "thousandths of a GPU above which a booking needs an approver; none: none does",
    "late_release_price": "unused hours that are given back late cost something of the budget",
    "half_life_hours": "after which past use counts half in the fair share",
    "defragment": "what is done with a plan by which bookings that have not begun move",
}

#: What takes a limit away.
NONE = "none"


class Command(BaseCommand):
    help = "Set a pool's policy. Without options: show it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        for field, allowed in policy.FIELDS.items():
            option = f"--{field.replace('_', '-')}"
            if allowed is None:
                parser.add_argument(option, choices=("yes", "no"), help=HELP[field])
            elif isinstance(allowed[0], str):
                parser.add_argument(option, choices=allowed, help=HELP[field])
            elif field in policy.NO_LIMIT:
                parser.add_argument(option, type=_limit, help=HELP[field])
            else:
                parser.add_argument(option, type=int, help=HELP[field])

        blocks = "how many nodes a block has, then each aggregate of blocks: 18,36,72; none: no tree"
        parser.add_argument("--block-sizes", type=_sizes, help=blocks)

    def handle(self, *, name: str, block_sizes: tuple[int, ...] | None, **options: Any) -> None:
        values = {field: options[field] for field in policy.FIELDS if options.get(field) is not None}
        for field, allowed in policy.FIELDS.items():
            if allowed is None and field in values:
                values[field] = values[field] == "yes"
            elif values.get(field) == NONE:
                values[field] = None
        row = pool_named(name)
        if values:
            with refusals_are_sentences():
                row = policy.set_policy(actor=None, pool=name, now=clock.now(), **values)
        if block_sizes is not None:
            with refusals_are_sentences():
                row = inventory.set_block_sizes(actor=None, pool=name, sizes=block_sizes, now=clock.now())
        sizes = ",".join(map(str, row.block_sizes)) or NONE
        self.stdout.write(f"{'block_sizes':<20} {sizes}")
        for field in policy.FIELDS:
            value = getattr(row, field)
            shown = ("yes" if value else "no") if isinstance(value, bool) else value
            shown = NONE if shown is None else shown
            self.stdout.write(f"{field:<20} {shown}")


def _sizes(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, or that there are none."""
    return () if text == NONE else tuple(int(one) for one in text.split(","))


def _limit(text: str) -> int | str:
    """A whole number, or that there is no limit."""
    return NONE if text == NONE else int(text)
