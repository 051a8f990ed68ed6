"""What a pool is asked for: the usual kinds of asks, how often each comes, and what is learnt from them.

Pure data. What free capacity is worth to a mix is in worth.py (nodes) and
worth_mig.py (slices); how the parameters are chosen is in selfplay.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

#: A whole GPU, in the thousandths in which parts are counted.
WHOLE = 1000


class Form(StrEnum):
    """In which form a kind takes its GPUs."""

    CPU = "cpu"
    SHARE = "share"
    WHOLE = "whole"
    MIG = "mig"


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One usual ask, as far as placement cares.

    `gpus` GPUs (or slices) of one node; 0 for `Form.CPU`. A share takes
    `memory_milli` of a GPU's memory, or `memory_mib` of it where that is set, and
    `compute_milli` of its compute. A slice has its `profile`, or is the smallest one
    with `memory_mib` and `compute_slices`. `models` () is any model. Each takes
    `cpu_milli` and `ram_mib` of its node altogether; 0 is nothing, or not known.
    """

    form: Form = Form.WHOLE
    gpus: int = 1
    memory_milli: int = WHOLE
    compute_milli: int = 0
    memory_mib: int = 0
    profile: str = ""
    compute_slices: int = 0
    models: tuple[str, ...] = ()
    cpu_milli: int = 0
    ram_mib: int = 0

    def milli_on(self, memory_mib: int | None) -> int:
        """What it takes of the memory of one GPU that has `memory_mib`, in thousandths, rounded up.

        More than `WHOLE`: the GPU is too small.
        """
        if self.form is Form.SHARE and self.memory_mib and memory_mib:
            return -(-WHOLE * self.memory_mib // memory_mib)
        return self.memory_milli


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a mix is turned into worth. `selfplay.choose` chooses them; these stand until it has.

    `gamma`: kinds weigh as often as they come times their size to this power.
    `alpha`: and times the GPUs of one node that they take to this power.
    `slack`: free cpu counts for so many times what a kind usually takes of it.
    `balance`: what the smaller of free GPU and free cpu, in the mix's proportion, is worth.
    `pressure`: the price of taking a model that bound asks need; `fade`: at which
    fullness of the pool (0..1) it has gone.
    """

    gamma: float = -2.0
    alpha: float = 1.2
    slack: float = 1.5
    balance: float = 0.3
    pressure: float = 0.5
    fade: float = 1.0


@dataclass(frozen=True, slots=True)
class SliceParameters:
    """How a mix is turned into the worth of MIG slices. `selfplay_mig.choose_slices` chooses them.

    `power`: of the part of a kind's places that are left. `horizon`: after so many times
    what bookings usually last, what is known of the future counts 1/e. `weights`: of kinds
    by profile name; any other kind weighs what it takes of the GPU to the power `size`,
    and `nested` times that where another kind has all its places and more.
    """

    power: float = 0.8
    horizon: float = 0.7
    size: float = -0.5
    nested: float = 0.0
    weights: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds with their weights (which sum to 1) and the parameters chosen for them."""

    kinds: tuple[Kind, ...]
    weights: tuple[float, ...]
    parameters: Parameters = field(default_factory=Parameters)
    slices: SliceParameters = field(default_factory=SliceParameters)

    def as_json(self) -> dict[str, Any]:
        kinds = [
            {**_set(kind), "weight": weight} for kind, weight in zip(self.kinds, self.weights, strict=True)
        ]
        return {"kinds": kinds, "parameters": asdict(self.parameters), "slices": asdict(self.slices)}


def from_json(raw: Mapping[str, Any]) -> Mix:
    """The mix that `Mix.as_json` wrote; fields that are no longer known are dropped."""
    weights = tuple(float(one["weight"]) for one in raw["kinds"])
    return Mix(
        tuple(_kind(one) for one in raw["kinds"]),
        weights,
        Parameters(**_floats(Parameters, raw.get("parameters", {}))),
        _slices(raw.get("slices", {})),
    )


def learn(
    asked: Iterable[Kind],
    prior: Mapping[Kind, float] | None = None,
    parameters: Parameters | None = None,
    most: int = 4096,
) -> Mix:
    """The mix of what was asked (also of what was refused), with the prior's kinds counted in.

    The prior counts as many asks as its weights sum to, so it loses its say as asks
    come in; {} is none. Only the `most` frequent kinds are kept. Independent of order.
    """
    counts: Counter[Kind] = Counter()
    for kind, weight in (PRIOR if prior is None else prior).items():
        counts[kind] += weight  # type: ignore[assignment]
    counts.update(asked)
    kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    total = sum(count for _, count in kept)
    if not total:
        raise ValueError("a mix needs at least one kind")
    kept.sort()
    return Mix(
        tuple(kind for kind, _ in kept),
        tuple(count / total for _, count in kept),
        parameters or Parameters(),
    )


def _set(kind: Kind) -> dict[str, Any]:
    """The fields of a kind that are not as they are by default."""
    plain = Kind()
    values = {f.name: getattr(kind, f.name) for f in fields(Kind)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def _kind(raw: Mapping[str, Any]) -> Kind:
    known = {f.name for f in fields(Kind)}
    values = {name: value for name, value in raw.items() if name in known}
    if "form" in values:
        values["form"] = Form(values["form"])
    if "models" in values:
        values["models"] = tuple(values["models"])
    return Kind(**values)


def _floats(of: type[Parameters] | type[SliceParameters], raw: Mapping[str, Any]) -> dict[str, float]:
    known = {f.name for f in fields(of)} - {"weights"}
    return {name: float(value) for name, value in raw.items() if name in known}


def _slices(raw: Mapping[str, Any]) -> SliceParameters:
    weights = tuple((str(name), float(weight)) for name, weight in raw.get("weights", ()))
    return SliceParameters(**_floats(SliceParameters, raw), weights=weights)


#: What a pool is taken to be asked for before anybody has asked: all usual sizes about equally often.
PRIOR: Mapping[Kind, float] = {
    **{
        Kind(Form.SHARE, 1, memory_milli=milli, compute_milli=milli): 2.0
        for milli in (100, 200, 250, 330, 500, 750)
    },
    **{Kind(Form.WHOLE, gpus): weight for gpus, weight in ((1, 8.0), (2, 2.0), (4, 2.0), (8, 2.0))},
    **{Kind(Form.MIG, compute_slices=slices): 3.0 for slices in (1, 2, 3, 4, 7)},
}
