"""How to connect to what a reservation holds, as its page shows it: lines to copy, and what they keep.

What is said, and what keeps holders apart, is in pool.core.connect.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pool.core import connect as core
from portal.web import words

if TYPE_CHECKING:
    from pool.core.wire import Access
    from pool.queries.reservations import AllocationView


@dataclass(frozen=True, slots=True)
class Command:
    """A line to copy; `id` is unique on the page."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Way:
    """One thing that a program can use: a slice, a share, or all whole GPUs of the node.

    Not `limited`: nothing keeps it to its share. `denied` variables must not be set. `channel` is the
    file of its IMEX channel.
    """

    title: str
    isolation: str
    limited: bool
    shell: Command
    docker: Command
    denied: tuple[str, ...]
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Connect:
    """How to reach what it has on one node; not `enforced`: others are not kept off."""

    node: str
    access: str
    enforced: bool
    ways: tuple[Way, ...]
    alone: bool


def connect(allocations: Sequence[AllocationView]) -> list[Connect]:
    """Lines by node, once the node has reported it ready.

    A process sees one slice or share only, so each has lines of its own; whole
    GPUs go together.
    """
    by_node: dict[str, list[AllocationView]] = defaultdict(list)
    for one in allocations:
        if one.part is not None:
            by_node[one.node].append(one)
    return [_connect(number, node, ready) for number, (node, ready) in enumerate(sorted(by_node.items()))]


def _connect(number: int, node: str, ready: Sequence[AllocationView]) -> Connect:
    parts = [one.part for one in ready if one.part is not None]
    found = core.connect(parts, cast("Access", ready[0].access), ready[0].run)
    views = {str(one.id): one for one in ready}
    ways = tuple(_way(f"{number}-{place}", each, views) for place, each in enumerate(found))
    alone = len(ways) > 1
    return Connect(node, ready[0].access, all(each.enforced for each in found), ways, alone)


def _way(key: str, found: core.Connect, views: dict[str, AllocationView]) -> Way:
    lines = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.environment)
    return Way(
        title=_title(views[found.allocations[0]]),
        isolation=found.isolation.value,
        limited=found.limited,
        shell=Command(f"shell-{key}", "", lines),
        docker=Command(f"docker-{key}", "", found.docker),
        denied=found.denied,
        channel=found.channel,
    )


def _title(one: AllocationView) -> str:
    """Which slice or share it is; whole GPUs go without saying."""
    if one.share is not None:
        return f"{words.share(one.share.memory_mib, one.share.guaranteed, one.share.limit)}, GPU {one.gpu}"
    return f"{one.profile}, GPU {one.gpu}" if one.profile else ""
