"""Chooses the parameters of a mix by playing: arrivals drawn from the mix fill a small copy of the pool.

Off the decision path: seconds to minutes. Deterministic for one seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pool.core.mix import Mix
from pool.core.worth import Model, Nodes


def choose(mix: Mix, nodes: Nodes, models: Sequence[Model], seed: int = 0, effort: int = 1) -> Mix:
    """`mix` with the parameters that left the fewest asks of it unserved; `nodes` is the pool when empty."""
    raise NotImplementedError
