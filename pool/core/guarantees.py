"""Guarantees that hold: whether every team's unused guarantee still finds a place, all of them at once.

A placement that is within its own guarantee, or cannot be taken back, is legal only if at every
instant of its period the unused guarantees of all other teams still have a simultaneous placement
in their units. What may be taken back (Takeable) counts as free. Whose guarantees are unused is
decided in standing; who has to leave, in reclaim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.core.fleet import Bools, Fleet, Ints
from pool.core.period import Period
from pool.core.placement_search import Pick

#: In what a guarantee has to be obtainable; the codes in `Claims.unit`.
UNITS: tuple[str, ...] = ("slots", "gpu", "node")
#: The number of "any model" in `Claims.model`.
ANY = -1


@dataclass(frozen=True, slots=True)
class Claim:
    """What one team's guarantee leaves unused over a time, in milli; `model` None is any.

    `unit`: slots are any slices or shares; gpu a GPU with nothing on it that stays; node
    `unit_size` such GPUs of one model on one node. What is no whole unit is claimed in the
    next smaller one. Claims add up: of a team and its parent each names only its own part.
    """

    team: int
    model: str | None
    milli: int
    period: Period
    unit: str = "slots"
    unit_size: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claims in columns: `model` is a number in Fleet.models or ANY, `unit` one in UNITS; microseconds."""

    team: Ints
    model: Ints
    unit: Ints
    size: Ints
    milli: Ints
    since: Ints
    until: Ints

    @classmethod
    def of(cls, fleet: Fleet, claims: Iterable[Claim]) -> Claims:
        """These; one for a model of which the pool has no GPU is kept out, because nothing could serve it."""
        raise NotImplementedError

    def but(self, team: int) -> Claims:
        """Those of all other teams."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Takeable:
    """When rows may be taken back: `which` are numbers in `fleet.on`, `since` to `until` in microseconds."""

    which: Ints
    since: Ints
    until: Ints

    @classmethod
    def none(cls) -> Takeable:
        raise NotImplementedError


class Guarantees:
    """The unused guarantees of others against what stays on the GPUs over one period."""

    def __init__(
        self, fleet: Fleet, period: Period, now: datetime, claims: Claims, takeable: Takeable
    ) -> None:
        """`claims`: of all teams but the one that books."""
        raise NotImplementedError

    def allow(self, picks: Sequence[Pick]) -> bool:
        """Whether these picks, over all of the period, leave every claim that has a place its place.

        A claim that has none even without them (GPUs have failed) is no reason to refuse: what is
        lacking must not grow. Never says yes wrongly; exact but for node groups of sizes that do not
        divide one another, where a search is given up after a while.
        """
        raise NotImplementedError

    def open_to(self, size: int | None) -> Bools:
        """[places] where one piece of `size` slices (None: the whole GPU) would be allowed. For `field(barred=~...)`."""
        raise NotImplementedError
