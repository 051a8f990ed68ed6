"""Who holds what of a GPU, for labels, and for the files by which a dcgm-exporter labels its own series.

A share's holder is not its GPU's: a figure of the whole card is nobody's then.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.gpu import Gpu, Inventory
from agents.plan import span_of
from agents.record import GpuRecord, Record
from pool.core.wire import Held, Share, Stay

log = logging.getLogger("agents.exporter")

#: dcgm-exporter's names of job mapping files: a GPU's index, or index and GPU instance id.
_FILE = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Holder:
    allocation: str
    reservation: str
    team: str
    share: Share | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {"reservation": self.reservation, "team": self.team}


@dataclass(frozen=True, slots=True)
class Holders:
    """Of one GPU: by GPU instance id; of the whole of it; of its shares."""

    instances: Mapping[int, Holder]
    whole: Holder | None = None
    shares: tuple[Holder, ...] = ()


NOBODY = Holders({})


def holders(gpu: Gpu, record: GpuRecord, held: Collection[str], stays: Mapping[str, Stay]) -> Holders:
    """`held` are the allocations in force on this GPU, `stays` what the portal told of them."""
    if gpu.lost or record.wanted is None:
        return NOBODY
    layout = {one.allocation: one for one in record.wanted.layout.held if one.allocation in held}
    instances = {}
    for one in gpu.instances or ():
        made = record.owns(span_of(one))
        if made is not None and made.allocation in layout:
            instances[one.gi] = _holder(layout[made.allocation], stays)
    plain = [_holder(one, stays) for one in layout.values() if one.profile_id is None]
    whole = next((one for one in plain if one.share is None), None)
    return Holders(instances, whole, tuple(one for one in plain if one.share is not None))


def _holder(held: Held, stays: Mapping[str, Stay]) -> Holder:
    """What the layout says; the stay's word where an older portal's layout says nothing."""
    stay = stays.get(held.allocation)
    return Holder(
        held.allocation,
        held.reservation or (stay.reservation if stay else ""),
        held.team or (stay.team if stay else ""),
        held.share,
    )


def of_all(
    inventory: Inventory, record: Record, held: Mapping[str, tuple[str, ...]], stays: tuple[Stay, ...]
) -> dict[str, Holders]:
    """The holders of each GPU, by its UUID."""
    told = {stay.allocation: stay for stay in stays}
    return {
        gpu.uuid: holders(gpu, record.gpus.get(gpu.uuid, GpuRecord()), held.get(gpu.uuid, ()), told)
        for gpu in inventory.gpus
    }


class JobFiles:
    """The folder for DCGM_HPC_JOB_MAPPING_DIR: one file for each GPU or instance that is held.

    A line of a file is a reservation. What nobody holds has no file: an empty one makes
    older dcgm-exporters drop the GPU's series.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] | None = None  # None: what is in the folder is not known
        self._fault = ""

    def write(self, inventory: Inventory, all_holders: Mapping[str, Holders]) -> None:
        """Bring the files to the holders; touches the disk only when they have changed. Never raises."""
        wanted = {
            name: content
            for gpu in inventory.gpus
            for name, content in _jobs(gpu, all_holders.get(gpu.uuid, NOBODY))
        }
        if wanted == self._written:
            return
        fault = ""
        try:
            self._bring(wanted)
        except OSError as error:
            fault = str(error)
        if fault and fault != self._fault:
            log.warning("The job mapping files in %s cannot be written: %s", self._folder, fault)
        self._fault = fault
        self._written = None if fault else wanted

    def _bring(self, wanted: Mapping[str, str]) -> None:
        if not wanted and not self._folder.exists():
            return
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for entry in list(self._folder.iterdir()):
            if _FILE.fullmatch(entry.name) and entry.name not in wanted:
                entry.unlink(missing_ok=True)
        for name, content in wanted.items():
            if self._written is None or self._written.get(name) != content:
                _replace(self._folder / name, content)


def _jobs(gpu: Gpu, found: Holders) -> Iterator[tuple[str, str]]:
    for gi, one in found.instances.items():
        if one.reservation:
            yield f"{gpu.index}.{gi}", f"{one.reservation}\n"
    plain = [found.whole] if found.whole else list(found.shares)
    names = dict.fromkeys(one.reservation for one in plain if one.reservation)
    if names:
        yield str(gpu.index), "".join(f"{name}\n" for name in names)


def _replace(path: Path, content: str) -> None:
    """Whole, since dcgm-exporter may read at any moment; readable by it, whatever its account."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(content)
    beside.chmod(0o644)
    beside.replace(path)
