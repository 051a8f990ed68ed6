"""MIG geometry: which profiles a GPU model offers, and which layouts are valid.

The catalogue (catalogue.json) holds public facts about 13 models; what a
driver reports replaces them (`merged`). Spans are counted in memory slices of
a grid that has 4, 8 or 12 of them: read, never assumed. Which GPU gets a slice
is decided in placement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pool.core import wire

#: Bounds outside of which a reported figure is nonsense.
MAX_GRID = 64
MAX_MEMORY_MIB = 4 * 1024 * 1024
MAX_SM = 4096

_NAME = re.compile(r"(\d{1,2})g\.\d{1,5}gb((?:[+-][a-z.]{1,12}){0,3})", re.ASCII)


class Media(StrEnum):
    """What a profile has of the video, JPEG and optical-flow engines."""

    #: What comes with its compute slices.
    DEFAULT = "default"
    #: `+me`: the media extensions; one instance per GPU.
    EXT = "ext"
    #: `+me.all`: every media engine; prevents all other profiles but `-me`.
    ALL = "all"
    #: `-me`: none.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of GPU instance. `size` and `starts` are memory slices.

    None means that no source has the figure. `profile_id` is what the driver's
    create call takes, `nvml_enum` what its profile query takes (None: unknown).
    The same id means different things on different models.
    """

    name: str
    profile_id: int
    nvml_enum: int | None
    compute_slices: int
    size: int
    memory_mib: int | None
    sm: int | None
    max_instances: int
    media: Media
    gfx: bool
    starts: tuple[int, ...]
    decoders: int | None = None
    encoders: int | None = None
    copy_engines: int | None = None
    jpeg: int | None = None
    ofa: int | None = None
    #: high, medium, low, names-only (see the catalogue), or reported.
    confidence: str = "reported"
    #: Memory that other drivers gave for the same profile.
    memory_other: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model as the catalogue knows it. `sources` are keys of `sources()`."""

    name: str
    arch: str
    nvml_names: tuple[str, ...]
    pci_device_ids: tuple[int, ...]
    total_memory_mib: int | None
    grid: int
    compute_slices: int
    sm_total: int | None
    min_driver: str | None
    #: "reset": changing MIG mode resets the GPU and outlives a reboot (Ampere);
    #: "immediate": no reset, and the mode ends with the loaded driver.
    mode_change: str
    profiles: tuple[Profile, ...]
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def profile(self, name: str) -> Profile | None:
        """The profile of that name on this model, if there is one."""
        return next((p for p in self.profiles if p.name == name), None)

    def by_id(self, profile_id: int) -> Profile | None:
        """The profile of that driver's id on this model, if there is one."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)


@dataclass(frozen=True, slots=True)
class Slice:
    """An instance of `profile` whose first memory slice is `start`."""

    profile: Profile
    start: int

    @property
    def end(self) -> int:
        return self.start + self.profile.size


@cache
def _catalogue() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_bytes())
    return data


@cache
def models() -> Mapping[str, Model]:
    """Every model of the catalogue by name."""
    return MappingProxyType({name: _model(name, raw) for name, raw in _catalogue()["models"].items()})


def sources() -> Mapping[str, str]:
    """Where the catalogue's facts come from: short name -> publication."""
    return MappingProxyType(_catalogue()["sources"])


@cache
def profile_names() -> frozenset[str]:
    """Every profile name that some model of the catalogue has."""
    return frozenset(p.name for m in models().values() for p in m.profiles)


def _model(name: str, raw: dict[str, Any]) -> Model:
    return Model(
        name=name,
        arch=raw["arch"],
        nvml_names=tuple(raw["nvml_names"]),
        pci_device_ids=tuple(int(text, 16) for text in raw["pci_device_ids"]),
        total_memory_mib=raw["total_memory_mib"],
        grid=raw["grid"],
        compute_slices=raw["compute_slices"],
        sm_total=raw["sm_total"],
        min_driver=raw["min_driver"],
        mode_change=raw["mode_change"],
        profiles=tuple(_profile(p) for p in raw["profiles"]),
        aliases=tuple(raw["aliases"]),
        sources=tuple(raw["sources"]),
    )


def _profile(raw: dict[str, Any]) -> Profile:
    return Profile(
        name=raw["name"],
        profile_id=raw["id"],
        nvml_enum=raw["nvml"],
        compute_slices=raw["compute_slices"],
        size=raw["size"],
        memory_mib=raw["memory_mib"],
        sm=raw["sm"],
        max_instances=raw["max"],
        media=Media(raw["media"]),
        gfx=raw["gfx"],
        starts=tuple(raw["starts"]),
        decoders=raw["decoders"],
        encoders=raw["encoders"],
        copy_engines=raw["copy_engines"],
        jpeg=raw["jpeg"],
        ofa=raw["ofa"],
        confidence=raw["confidence"],
        memory_other=tuple(raw.get("memory_other", ())),
    )


def identify(nvml_name: str, pci_device_id: int | None, memory_mib: object) -> Model | None:
    """The catalogue's model of a GPU, by PCI device id, else by NVML name.

    A total memory more than 10 % off means another variant: then None. A GPU
    that is not in the catalogue is still usable as the driver reports it.
    """
    name = _plain(nvml_name)
    memory = _whole(memory_mib, 1, MAX_MEMORY_MIB)
    everything = list(models().values())
    by_pci = [m for m in everything if pci_device_id in m.pci_device_ids]
    by_name = [m for m in everything if name in map(_plain, m.nvml_names)]
    return next((m for m in [*by_pci, *by_name] if _plausible(m, memory)), None)


def _plain(nvml_name: str) -> str:
    # Drivers before R470 print no vendor.
    return nvml_name.strip().casefold().removeprefix("nvidia ")


def _plausible(model: Model, memory_mib: int | None) -> bool:
    total = model.total_memory_mib
    return total is None or memory_mib is None or abs(memory_mib - total) * 10 <= total


def takes_media(profile: Profile) -> bool:
    """Whether it is the one instance of its GPU with media extensions (`+me`, `+me.all`)."""
    return profile.media in (Media.EXT, Media.ALL)


def media_group(profile: Profile) -> int | None:
    """Instances of different groups exclude one another: 1 all, 0 default and ext, None none."""
    return _GROUP[profile.media]


_GROUP = {Media.ALL: 1, Media.EXT: 0, Media.DEFAULT: 0, Media.NONE: None}


def media_clash(one: Media, other: Media) -> bool:
    """Whether two instances cannot be on one GPU because of the media engines.

    `+me` at most once; `+me.all` beside nothing but `-me` (nvml.h:
    "prevents allocation of all but _NO_ME profiles").
    """
    if Media.NONE in (one, other):
        return False
    return Media.ALL in (one, other) or one is other is Media.EXT


def conflict(layout: Sequence[Slice]) -> str | None:
    """Why these slices cannot be on one GPU at once; None when they can.

    no_such_placement, overlap, max_instances (of one profile) or media.
    """
    if any(s.start not in s.profile.starts for s in layout):
        return "no_such_placement"
    ordered = sorted(layout, key=lambda s: s.start)
    if any(a.end > b.start for a, b in pairwise(ordered)):
        return "overlap"
    ids = [s.profile.profile_id for s in layout]
    if any(ids.count(s.profile.profile_id) > s.profile.max_instances for s in layout):
        return "max_instances"
    media = [s.profile.media for s in layout]
    if any(media_clash(a, b) for i, a in enumerate(media) for b in media[i + 1 :]):
        return "media"
    return None


def room(profile: Profile, taken: Sequence[Slice]) -> tuple[int, ...]:
    """The starts at which one more instance of `profile` fits beside `taken`."""
    return tuple(s for s in profile.starts if conflict([*taken, Slice(profile, s)]) is None)


def most(profile: Profile) -> int:
    """How many instances of `profile` one empty GPU holds."""
    count, free_from = 0, 0
    # All have one size, so taking the earliest end each time is optimal.
    for start in sorted(profile.starts):
        if start >= free_from:
            count, free_from = count + 1, start + profile.size
    return min(count, profile.max_instances, 1 if takes_media(profile) else count)


def grid_of(profiles: Sequence[Profile]) -> int | None:
    """The memory slices that these profiles reach; None without profiles."""
    return max((s + p.size for p in profiles for s in p.starts), default=None)


def smallest(
    profiles: Sequence[Profile], memory_mib: int | None, compute_slices: int | None
) -> Profile | None:
    """The smallest profile with at least that much; None when none is known to have it.

    Ordered by size, compute slices, memory, name. Profiles with media
    extensions, without media or with graphics are taken only by name. Unknown
    memory never satisfies a minimum.
    """
    fitting = [
        p
        for p in profiles
        if p.media is Media.DEFAULT
        and not p.gfx
        and (memory_mib is None or (p.memory_mib is not None and p.memory_mib >= memory_mib))
        and (compute_slices is None or p.compute_slices >= compute_slices)
    ]
    return min(fitting, key=_smallness, default=None)


def _smallness(p: Profile) -> tuple[int, int, int, str]:
    return (p.size, p.compute_slices, p.memory_mib or MAX_MEMORY_MIB, p.name)


def merged(model: Model | None, offers: Sequence[wire.Offer], grid: int | None = None) -> tuple[Profile, ...]:
    """The profiles of one GPU: what its driver offers, in the driver's order.

    A reported value replaces the catalogue's; one that makes no sense (negative
    memory, size 0, a start outside the grid, a bool) counts as not reported. A
    figure stays None only where both are silent. An offer that cannot be placed
    or named even with the catalogue's help is left out. Without any offer the
    catalogue's profiles hold. `grid` is the reported number of memory slices.
    """
    if not offers:
        return model.profiles if model else ()
    limit = _whole(grid, 1, MAX_GRID) or (model.grid if model else MAX_GRID)
    found: dict[int, Profile] = {}
    for offer in offers:
        profile = _merge(model.by_id(offer.profile_id) if model else None, offer, limit)
        if profile is not None:
            found.setdefault(profile.profile_id, profile)
    return tuple(found.values())


def _merge(base: Profile | None, offer: wire.Offer, grid: int) -> Profile | None:
    name = _name(offer.name) or (base.name if base else None)
    size = _whole(offer.size, 1, grid) or (base.size if base else None)
    if name is None or size is None or size > grid:
        return None
    starts = tuple(sorted({s for s in offer.starts if 0 <= s <= grid - size}))
    if not starts and base is not None and base.size == size:
        starts = base.starts
    slices = _whole(offer.compute_slices, 1, MAX_GRID) or (base.compute_slices if base else _compute(name))
    if not starts or not slices:
        return None
    return Profile(
        name=name,
        profile_id=offer.profile_id,
        nvml_enum=base.nvml_enum if base else None,
        compute_slices=slices,
        size=size,
        memory_mib=_whole(offer.memory_mib, 1, MAX_MEMORY_MIB) or (base.memory_mib if base else None),
        sm=_whole(offer.sm, 1, MAX_SM) or (base.sm if base else None),
        # Where nobody says how many, the offered placements are the limit.
        max_instances=_whole(offer.max_instances, 1, MAX_GRID)
        or (base.max_instances if base else len(starts)),
        media=_media(name),
        gfx="+gfx" in name,
        starts=starts,
        decoders=base.decoders if base else None,
        encoders=base.encoders if base else None,
        copy_engines=base.copy_engines if base else None,
        jpeg=base.jpeg if base else None,
        ofa=base.ofa if base else None,
        confidence="reported",
    )


def _name(raw: object) -> str | None:
    """`1g.10gb+me` out of a driver's `MIG 1g.10gb+me`; None when it is no profile name."""
    if not isinstance(raw, str):
        return None
    name = raw.strip().removeprefix("MIG ")
    return name if _NAME.fullmatch(name) else None


def _compute(name: str) -> int:
    """The compute slices in a name: 3 of `3g.40gb` (0 when it has none)."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _media(name: str) -> Media:
    if "+me.all" in name:
        return Media.ALL
    if "+me" in name:
        return Media.EXT
    return Media.NONE if "-me" in name else Media.DEFAULT


def _whole(value: object, low: int, high: int) -> int | None:
    """`value` when it is a whole number within the bounds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not low <= value <= high or value != int(value):
        return None
    return int(value)
