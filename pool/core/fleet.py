"""All of a pool in columns: its GPUs, their nodes, and what is on them as rectangles in time.

A `Fleet` never changes: `updated` gives the next one, which shares what stayed as
it was. What is free over a period is in fleet_window; which GPU is taken is
decided in placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pool.core.mig import Profile
from pool.core.period import Period
from pool.core.placement_room import GpuView
from pool.core.shapes import Sharing

if TYPE_CHECKING:
    from uuid import UUID

    from pool.core.fleet_window import Window

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The end of what has none, and the start of what was always there, in microseconds.
NEVER = 2**63 - 1
ALWAYS = -(2**63)

#: One thing on a GPU. Times are microseconds since 1970 (`micros`), half-open. `mask` is its span.
#: `profile` -1: not an instance; `media` is a code of MEDIA; `memory` and `compute` are what a share
#: takes (MiB, percent; memory 0: no share) and `limit` its most; `account` is a number for whose MPS
#: server it needs (`Fleet.accounts`; 0: anybody's). `cpu` and `ram` are of the node. `reservation` is
#: two halves of its id; (0, 0) is a blocker. `klass` is a code of CLASSES; `moved` says whether it may
#: still go elsewhere: it has not been on the GPU, and its reservation is scheduled.
ROW = np.dtype(
    [
        ("gpu", "i8"),  # the GPU's id
        ("start", "i8"),
        ("end", "i8"),
        ("mask", "i8"),
        ("profile", "i4"),
        ("media", "i1"),
        ("klass", "i1"),
        ("moved", "?"),
        ("memory", "i4"),
        ("compute", "i2"),
        ("limit", "i2"),
        ("account", "i8"),
        ("cpu", "i4"),
        ("ram", "i4"),
        ("owner", "i8"),
        ("team", "i8"),
        ("reservation", "i8", (2,)),
    ]
)
#: What the code in `media` means: a mig.Media, or (0) that it takes part in no media rule.
MEDIA: tuple[str, ...] = ("", "default", "ext", "all", "none")
CLASSES: tuple[str, ...] = ("", "online", "interactive", "batch")


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node as placement knows it. `cpu_milli` and `memory_mib` None: not known. `imex`: as reported."""

    id: int
    name: str
    block: str = ""
    cpu_milli: int | None = None
    memory_mib: int | None = None
    imex: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU without what is on it. `why` is what makes it unusable, "" nothing (see GpuView).

    `mig_now`: the mode in which it was last seen, `mig_capable` what it can (None: not known).
    `domain` names its NVLink domain: cluster and clique, or its node where the cluster
    is all zero or unknown. `links` are (UUID of a GPU, or "" for a switch; number of NVLinks).
    `use` is a word of placement.Use.
    """

    id: int
    uuid: str
    node: NodeCard
    index: int
    model: str
    memory_mib: int | None
    use: str
    grid: int
    profiles: tuple[Profile, ...]
    why: str = ""
    sharing: Sharing | None = None
    mig_now: bool | None = None
    mig_capable: bool | None = None
    domain: str = ""
    numa: int | None = None
    links: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Fleet:
    """The GPUs of a pool by their place (0..n-1, in the order of node name, index, id), and what is on them.

    Columns over the places: `id`, `node` and `model` (places in `nodes`, `models`), `domain`,
    `block`, `geometry` (places in `domains`, `blocks`, `geometries`), `memory` (MiB, 0: not known),
    `grid`, `full` (the mask of the whole grid), `use` (places in USES), `sharing` (places
    in SHARINGS, -1: none), `usable`. `change` is the pool's number when it was read.
    """

    change: int
    cards: tuple[Card, ...]
    nodes: tuple[NodeCard, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]
    blocks: tuple[str, ...]
    geometries: tuple[tuple[int, tuple[Profile, ...]], ...]
    accounts: Mapping[int, str]
    most_shares: int
    one_user: bool
    id: Ints
    node: Ints
    model: Ints
    domain: Ints
    block: Ints
    geometry: Ints
    memory: Ints
    grid: Ints
    full: Ints
    use: Ints
    sharing: Ints
    usable: Bools

    def place(self, gpu_id: int) -> int | None:
        """The place of a GPU; None when it is not in the pool."""
        raise NotImplementedError

    def window(
        self, period: Period, now: datetime, *, without: UUID | None = None, clean: bool = False
    ) -> Window:
        """What is free over all of `period`, on every GPU at once (fleet_window.Window).

        `without` leaves out one reservation. `clean`: what is over at `now` but still
        holds is in the way, too.
        """
        raise NotImplementedError

    def rows(self, places: Ints | None = None) -> NDArray[np.void]:
        """What is on these GPUs (None: all), as ROW in the order of their places."""
        raise NotImplementedError

    def view(
        self,
        gpu_id: int,
        now: datetime,
        period: Period | None = None,
        *,
        without: UUID | None = None,
        clean: bool = False,
    ) -> GpuView:
        """One GPU for exact checks, busy with what overlaps `period` (None: with everything)."""
        raise NotImplementedError

    def updated(self, cards: Iterable[Card], rows: NDArray[np.void], gone: Iterable[int] = ()) -> Fleet:
        """The fleet in which the GPUs of `cards` are as they say, with these rows and no others."""
        raise NotImplementedError


def of_views(views: Sequence[GpuView], now: datetime) -> Fleet:
    """The fleet of these views. Their reservations are not known."""
    raise NotImplementedError


def micros(instant: datetime | None) -> int:
    """Microseconds since 1970; None is `NEVER`."""
    raise NotImplementedError
