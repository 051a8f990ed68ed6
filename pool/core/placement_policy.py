"""How a pool is placed: what it is usually asked for and what follows from it, kept for later decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pool.core.fleet_cards import Inventory
from pool.core.mig import Profile
from pool.core.mix import Form, Mix, learn
from pool.core.placement_room import Use
from pool.core.shares import shareable_mib
from pool.core.usual import Model
from pool.core.worth import Worth
from pool.core.worth_mig import SliceWorth

#: Costs are compared in steps of this many GPUs, so that rounding never decides between equal places.
STEP = 1e-6
#: How long bookings usually last, in microseconds.
LASTING = 8 * 3600 * 10**6
#: What a change of mode costs: more than anything that placement could win by it.
MODE_CHANGE = 4.0
#: What a gap that nobody will fill costs, in GPUs: so much of the usual booking is lost.
GAP = 0.1

_FORMS = {Use.WHOLE: (Form.WHOLE, Form.CPU), Use.SHARE: (Form.SHARE, Form.CPU)}


@dataclass(frozen=True, slots=True, order=True)
class Why:
    """Why a candidate stands where it does among others: what it costs, in thousandths of a GPU.

    `loss`: what others can no longer use; `pressure`: that asks bound to its model need it;
    `gaps`: time before and after it that is too short for others; `mode`: changing
    a GPU's mode. `stays`: it is where its owner is already.
    """

    loss: int = 0
    pressure: int = 0
    gaps: int = 0
    mode: int = 0
    stays: bool = False

    @property
    def cost(self) -> int:
        return self.loss + self.pressure + self.gaps + self.mode


NO_COST = Why()


class Policy:
    """One for each mix of a pool; it may be used by several threads."""

    def __init__(self, mix: Mix, lasting: int = LASTING) -> None:
        self.mix = mix
        self.lasting = lasting
        self._worth: dict[tuple[Use, tuple[Model, ...]], Worth] = {}
        self._steps: dict[tuple[str, int, tuple[Profile, ...]], Callable[[int], int]] = {}
        self._slices: dict[tuple[str, int, tuple[Profile, ...]], SliceWorth] = {}

    def worth(self, use: Use, models: Sequence[Model]) -> Worth:
        """Of GPUs that are given for this use: only what can come to them counts."""
        key = (use, tuple(models))
        if key not in self._worth:
            self._worth[key] = Worth(self._part(use), models)
        return self._worth[key]

    def slices(self, model: str, grid: int, profiles: tuple[Profile, ...]) -> SliceWorth:
        key = (model, grid, profiles)
        if key not in self._slices:
            self._slices[key] = SliceWorth(self.mix, model, grid, profiles)
        return self._slices[key]

    def steps(self, model: str, grid: int, profiles: tuple[Profile, ...]) -> Callable[[int], int]:
        """What one mask of free slices is worth, in whole numbers of STEP."""
        key = (model, grid, profiles)
        if key not in self._steps:
            worth = self.slices(*key)

            @lru_cache(maxsize=1 << 13)
            def steps(free: int) -> int:
                return round(float(worth.of(np.array([free]))[0]) / STEP)

            self._steps[key] = steps
        return self._steps[key]

    def _part(self, use: Use) -> Mix:
        forms = _FORMS.get(use)
        kinds = [
            (kind, weight)
            for kind, weight in zip(self.mix.kinds, self.mix.weights, strict=True)
            if forms is None or kind.form in forms
        ]
        total = sum(weight for kind, weight in kinds if kind.gpus)
        if not total:
            return self.mix
        return Mix(
            tuple(kind for kind, _ in kinds),
            tuple(weight / total for _, weight in kinds),
            self.mix.parameters,
        )


@lru_cache(maxsize=1)
def prior() -> Policy:
    """The policy of a pool of which nothing is known yet."""
    return Policy(learn(()))


def models_of(known: Inventory) -> tuple[Model, ...]:
    """The GPU models of a fleet, in the order of `known.models`."""
    numbers = np.bincount(known.model, minlength=len(known.models))
    memory = np.zeros(len(known.models), dtype=np.int64)
    memory[known.model] = known.memory
    return tuple(
        Model(name, int(gpus), shareable_mib(int(mib)) or None)
        for name, gpus, mib in zip(known.models, numbers, memory, strict=True)
    )
