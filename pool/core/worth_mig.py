"""What the free memory slices of MIG GPUs are worth to the asks that a pool usually gets, and what taking some costs.

Masks of free slices (bit 0 is slice 0), arrays throughout, a row a GPU of one
geometry. Nothing here says what is allowed: media engines, instance limits and
everything but room is placement's. Whole GPUs and shares are in worth.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pool.core.mig import Media, Profile, smallest
from pool.core.mix import Form, Kind, Mix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: `until` of what has no end.
FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What each GPU has free while an ask would last, cut where something else there begins or ends.

    Flat, in the order of `row` (the GPU, 0..), each row at least once: `free` masks,
    and `weight`, how much the stretch counts (those of a row sum to the same for all).
    """

    row: Ints
    free: Ints
    weight: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What is busy: on the GPU `row` the slices `mask` over [`begin`, `until`), times as whole numbers."""

    row: Ints
    mask: Ints
    begin: Ints
    until: Ints


def stretches(whole: Ints, taken: Taken, start: int, end: int, lasting: float) -> Stretches:
    """The stretches of [start, end) on GPUs whose masks are `whole` [rows] when nothing is taken.

    `lasting`: how long asks of this pool usually last, in the same unit. What is known
    of a later time counts less, because by then others will have come and gone.
    `end` FOREVER: without end.
    """
    raise NotImplementedError


class SliceWorth:
    """The worth of free slices of one geometry to one mix. Build once; calls are cheap.

    All losses of one mix can be compared and added, also with those of `worth.Worth`:
    a GPU that is wholly free, in a pool that is asked only for slices, is worth 1.
    """

    def __init__(self, mix: Mix, model: str, grid: int, profiles: Sequence[Profile]) -> None:
        raise NotImplementedError

    def of(self, free: Ints) -> Floats:
        """[...] what these free slices are worth."""
        raise NotImplementedError

    def loss(self, profile: Profile, at: Stretches) -> Floats:
        """[rows, starts of the profile, ascending] what is lost; inf where it is not free over all of it."""
        raise NotImplementedError
