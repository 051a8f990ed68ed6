"""manage.py demo_nodes: once the demo's agents have reported, set what their GPUs are for and manage them.

What was ever managed is left as it is, so a second start changes nothing. Then the first bookings are made.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management import demo_work
from pool.management.commands.demo_seed import ALSO_LEADS, NODES, POOL
from pool.management.shell import refusals_are_sentences
from pool.models import Gpu, Pool, User
from pool.queries import clock
from pool.services import inventory

#: These are offered whole; all others but one as slices.
WHOLE = {("dgx-h100-01", index) for index in range(4, 8)} | {("gb200-01", index) for index in range(4)}

#: This one is given in shares, kept apart by the strongest means that its node has.
SHARED = ("rtx-01", 1)


class Command(BaseCommand):
    help = "Wait for the first reports of the demo's nodes, then manage their GPUs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the reports")

    def handle(self, *, timeout: float, **_: Any) -> None:
        until = time.monotonic() + timeout
        while missing := _missing():
            if time.monotonic() > until:
                raise CommandError(f"No report yet of {', '.join(missing)}.")
            time.sleep(0.2)
        fresh = list(
            Gpu.objects.select_related("node")
            .filter(node__name__in=NODES, managed=False, retired_at=None, generation=0)
            .order_by("node__name", "index")
        )
        whole = [gpu.uuid for gpu in fresh if (gpu.node.name, gpu.index) in WHOLE]
        shared = {gpu.uuid: kind for gpu in fresh if (kind := _sharing(gpu))}
        sliced = [gpu.uuid for gpu in fresh if gpu.uuid not in (*whole, *shared)]
        kind = next(iter(shared.values()), "")
        uses = ((whole, Gpu.Use.WHOLE, ""), (sliced, Gpu.Use.MIG, ""), (list(shared), Gpu.Use.SHARE, kind))
        with refusals_are_sentences():
            for uuids, use, sharing in uses:
                if uuids:
                    inventory.set_use(actor=None, gpus=uuids, use=use, sharing=sharing, now=clock.now())
                    inventory.set_managed(actor=None, gpus=uuids, managed=True, now=clock.now())
            _first_bookings()
        counts = f"{len(sliced)} GPUs for slices, {len(whole)} whole ones and {len(shared)} for shares"
        self.stdout.write(f"{counts} are managed.")


def _first_bookings() -> None:
    """Somebody borrows, and waits for more; only where the demo's people are."""
    name = next(name for name, team in ALSO_LEADS.items() if team == demo_work.BORROWER)
    lead = User.objects.filter(username=name).first()
    if lead is not None:
        demo_work.borrow_and_wait(Pool.objects.get(name=POOL), lead, clock.now())


def _sharing(gpu: Gpu) -> str:
    """How shares of this GPU shall be kept apart; "" for those that are not given in shares."""
    if (gpu.node.name, gpu.index) != SHARED:
        return ""
    return next((kind for kind in Gpu.Sharing.values if kind in gpu.node.sharing_offered), "")


def _missing() -> list[str]:
    counts: dict[str, int] = dict.fromkeys(NODES, 0)
    for name in Gpu.objects.filter(node__name__in=NODES).values_list("node__name", flat=True):
        counts[name] += 1
    return [name for name, count in counts.items() if count < NODES[name]]
