"""manage.py gpu_set NODE: what a node's GPUs are used for, and whether they are managed."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pool.management.shell import refusals_are_sentences
from pool.models import Gpu
from pool.queries import clock
from pool.queries.inventory import preview_manage
from pool.services import inventory


class Command(BaseCommand):
    help = "Set the use of a node's GPUs, and manage or only observe them. Without options: show a preview."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--gpu", help="indices such as 0-3 or 0,2 (default: all)")
        parser.add_argument("--use", choices=Gpu.Use.values)
        parser.add_argument("--sharing", choices=Gpu.Sharing.values, help="how shares are kept apart")
        parser.add_argument(
            "--excluded", action="store_true", help="the node's other manager leaves them alone"
        )
        parser.add_argument("--included", action="store_true", help="it gives them out again")
        parser.add_argument("--manage", action="store_true", help="let the portal carve them")
        parser.add_argument("--observe", action="store_true", help="only look at them")

    def handle(self, *, node: str, gpu: str | None, use: str | None, **flags: Any) -> None:
        rows = _rows(node, gpu)
        uuids = [row.uuid for row in rows]
        if flags["manage"] and flags["observe"]:
            raise CommandError("Choose --manage or --observe.")
        if flags["excluded"] and flags["included"]:
            raise CommandError("Choose --excluded or --included.")
        with refusals_are_sentences():
            if use:
                sharing = flags["sharing"] or ""
                inventory.set_use(actor=None, gpus=uuids, use=use, sharing=sharing, now=clock.now())
            _manage(rows, flags)
        for row in _rows(node, gpu):
            self.stdout.write(_line(row))


def _manage(rows: list[Gpu], flags: dict[str, Any]) -> None:
    """As said; whoever only says `--excluded` or `--included` leaves managed what is."""
    excluded = True if flags["excluded"] else False if flags["included"] else None
    if flags["manage"] or flags["observe"]:
        wanted = {flags["manage"]: [row.uuid for row in rows]}
    elif excluded is not None:
        wanted = {managed: [r.uuid for r in rows if r.managed == managed] for managed in (True, False)}
    else:
        return
    for managed, uuids in wanted.items():
        inventory.set_managed(actor=None, gpus=uuids, managed=managed, excluded=excluded, now=clock.now())


def _rows(node: str, picked: str | None) -> list[Gpu]:
    rows = Gpu.objects.filter(node__name=node, retired_at=None).select_related("node", "state")
    if picked is not None:
        rows = rows.filter(index__in=_indices(picked))
    found = list(rows.order_by("index"))
    if not found:
        raise CommandError(f"No GPU of {node} has been reported under these indices.")
    return found


def _indices(text: str) -> list[int]:
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    except ValueError:
        raise CommandError(f"{text} names no indices; write them like 0-3 or 0,2.") from None
    return found


def _line(row: Gpu) -> str:
    use = f"{row.use} ({row.sharing})" if row.sharing else row.use
    head = f"{row}  {row.model}  {use}  {'managed' if row.managed else 'observed'}"
    if row.managed:
        return head
    would = preview_manage(row)
    if would.against:
        return f"{head}  cannot be managed: {would.against}"
    counts = f"create {len(would.would_create)}, destroy {len(would.would_destroy)}"
    mode = ", change its mode" if would.mode_change else ""
    return f"{head}  managing would {counts}{mode}; {len(would.foreign)} foreign instances stay"
