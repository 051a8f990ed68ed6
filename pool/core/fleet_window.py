"""What is free of a whole fleet over one period: masks, ledgers, node resources, in columns over its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pool.core.fleet import Bools, Fleet, Ints


@dataclass(frozen=True, eq=False)
class Window:
    """A period on all GPUs of `fleet`, as microseconds `start` to `end`. Columns are over its places.

    `rows` are what overlaps the period (fleet.ROW), in the order of the places, and `at` the place of each.
    """

    fleet: Fleet
    start: int
    end: int
    rows: NDArray[np.void]
    at: Ints

    @property
    def free(self) -> Ints:
        """The memory slices that nothing touches in the period: masks. Shares take the whole grid."""
        raise NotImplementedError

    @property
    def empty(self) -> Bools:
        """Where nothing at all is in the period."""
        raise NotImplementedError

    @property
    def shares_only(self) -> Bools:
        """Where nothing but shares is (or nothing at all)."""
        raise NotImplementedError

    @property
    def share_peaks(self) -> tuple[Ints, Ints, Ints]:
        """What the ledgers hold at their fullest: memory in MiB, compute in percent, tenants. Exact."""
        raise NotImplementedError

    @property
    def account(self) -> Ints:
        """Whose MPS server is there (0: nobody's), -1 where there are several."""
        raise NotImplementedError

    @property
    def media(self) -> Ints:
        """The media codes that are there, as bits (1 << code of fleet.MEDIA)."""
        raise NotImplementedError

    @property
    def node_free(self) -> tuple[Ints, Ints]:
        """Per node: cpu (thousandths) and memory (MiB) free at every instant; fleet.NEVER: not known."""
        raise NotImplementedError

    def instances(self, profile_id: int) -> Ints:
        """How many instances of this driver's profile id are there at the fullest instant. Exact."""
        raise NotImplementedError
