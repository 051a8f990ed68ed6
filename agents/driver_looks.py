"""What the driver's answers are put together to: whole GPUs, readings with their sources, refusals.

Functions on handles and values, without a state of their own (agents.driver has it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agents import nvml, nvml_health, nvml_mig
from agents.dcgm import Dcgm
from agents.gpu import DriverRefusal, Gpu, Instance, InstanceReadings, Readings
from agents.nvml_gpm import Activity
from pool.core.wire import Link, Offer, Process

_CODES = {
    nvml.NOT_SUPPORTED: "not_supported",
    nvml.NO_PERMISSION: "no_permission",
    nvml.GPU_IS_LOST: "gpu_is_lost",
    nvml.RESET_REQUIRED: "reset_required",
    nvml.IN_USE: "in_use",
    nvml.INSUFFICIENT_RESOURCES: "insufficient_resources",
}
_MIB, _MB = 1024 * 1024, 1_000_000


class Geometry:
    """Profiles and offers of each GPU: they stay the same while it is in one mode under one driver, and
    asking for them is most of a look."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[Any, ...], tuple[Offer, ...]]] = {}

    def of(self, device: Any, uuid: str) -> tuple[tuple[Any, ...], tuple[Offer, ...]]:
        """Raises pynvml's errors."""
        kept = self._kept.get(uuid)
        if kept is None:
            profiles = nvml_mig.profiles(device)
            kept = profiles, nvml_mig.offers(device, profiles)
            if kept[1]:
                self._kept[uuid] = kept
        return kept

    def forget(self, uuid: str | None = None) -> None:
        """Of one GPU, or of all."""
        # Copied at once: another thread may look at a GPU meanwhile.
        kept = list(self._kept.items())
        self._kept = {} if uuid is None else {its: one for its, one in kept if its != uuid}


def complete_or_lost(
    device: Any, gpu: Gpu, geometry: Geometry, handles: Mapping[str, Any], uuids: Mapping[str, str]
) -> Gpu:
    """The GPU with all that can be read of it and of its wiring; `lost` when it stops answering."""
    try:
        whole = complete(device, gpu, geometry)
        links = _wiring(device, whole, handles, uuids)
        return replace(whole, health=replace(whole.health, links=links))
    except nvml.Error as error:
        raise_without_driver(error)
        return replace(gpu, lost=True)


def complete(device: Any, gpu: Gpu, geometry: Geometry) -> Gpu:
    """All but its wiring."""
    capable, mig, pending = _mode(device)
    known = nvml.optional(geometry.of, device, gpu.uuid) if capable else None
    offers = known[1] if known else ()
    fabric = nvml_health.fabric(device)
    return replace(
        gpu,
        mig_capable=capable,
        mig=mig,
        mig_pending=pending,
        grid=max((max(offer.starts) + offer.size for offer in offers), default=None),
        offers=offers,
        instances=instances(device, gpu.uuid, geometry) if mig else (None if capable is None else ()),
        processes=nvml.running(device),
        fabric_cluster=fabric.cluster,
        fabric_clique=fabric.clique,
        health=nvml_health.health(device, fabric, None),
    )


def _mode(device: Any) -> tuple[bool | None, bool | None, bool | None]:
    """Whether it can do MIG at all, whether it does, whether it will after a reset."""
    try:
        return True, *nvml.mig_mode(device)
    except nvml.Error as error:
        nvml.raise_if_gone(error)
        return (False if error.value == nvml.NOT_SUPPORTED else None), None, None


def _wiring(
    device: Any, gpu: Gpu, handles: Mapping[str, Any], uuids: Mapping[str, str]
) -> tuple[Link, ...] | None:
    """In MIG mode a GPU reaches no other, so a driver that then names no links has not denied them."""
    links = nvml_health.links(device, uuids)
    if gpu.mig:
        return links or None
    others = {uuid: other for uuid, other in handles.items() if uuid != gpu.uuid}
    return None if links is None else (*links, *nvml_health.peers(device, others))


def by_bus_id(gpus: Iterable[Gpu]) -> dict[str, str]:
    """UUIDs by PCI bus id, as the far ends of NVLinks are named."""
    return {gpu.pci_bus_id.upper(): gpu.uuid for gpu in gpus if gpu.pci_bus_id}


def instances(device: Any, uuid: str, geometry: Geometry) -> tuple[Instance, ...] | None:
    """None when they cannot be read, also when they change faster than one can look."""
    for _ in range(3):
        try:
            return nvml_mig.instances(device, geometry.of(device, uuid)[0])
        except nvml.Error as error:
            nvml.raise_if_gone(error)
            if error.value not in (nvml.INVALID_ARGUMENT, nvml.NOT_FOUND):
                return None
    return None


def with_activity(values: Readings, activity: Activity | None) -> Readings:
    """Readings with what GPM measured of the whole GPU."""
    if activity is None:
        return values
    nvlink = [rate for rate in (activity.nvlink_tx, activity.nvlink_rx) if rate is not None]
    return replace(
        values,
        activity_pct=activity.engines,
        tensor_pct=activity.tensor,
        memory_activity_pct=activity.memory,
        pcie_tx_bytes_s=None if activity.pcie_tx is None else activity.pcie_tx * _MIB,
        pcie_rx_bytes_s=None if activity.pcie_rx is None else activity.pcie_rx * _MIB,
        nvlink_mb_s=round(sum(nvlink) * _MIB / _MB, 3) if nvlink else None,
        source="gpm",
    )


def with_instance_activity(values: InstanceReadings, activity: Activity | None) -> InstanceReadings:
    """The same for one GPU instance."""
    if activity is None:
        return values
    return replace(values, activity_pct=activity.engines, memory_activity_pct=activity.memory, source="gpm")


def with_dcgm(values: dict[str, Readings], dcgm: Dcgm) -> dict[str, Readings]:
    """Fill in from dcgm-exporter what has no source yet; it is asked only if something has none."""
    if all(_measured(one) and all(map(_measured, one.instances.values())) for one in values.values()):
        return values
    said = dcgm.activity()
    if not said:
        return values
    return {uuid: _filled(uuid, one, said) for uuid, one in values.items()}


def _measured(values: Readings | InstanceReadings) -> bool:
    return values.source != "nvml"


def _filled(
    uuid: str, values: Readings, said: Mapping[tuple[str, int | None], tuple[float | None, float | None]]
) -> Readings:
    filled = {
        gi: one if _measured(one) or (uuid, gi) not in said else replace(one, **_activity(said[uuid, gi]))
        for gi, one in values.instances.items()
    }
    values = replace(values, instances=filled)
    if _measured(values) or (uuid, None) not in said:
        return values
    return replace(values, **_activity(said[uuid, None]))


def _activity(pair: tuple[float | None, float | None]) -> dict[str, Any]:
    return {"activity_pct": pair[0], "memory_activity_pct": pair[1], "source": "dcgm"}


def refusal(number: int, detail: str, holders: tuple[Process, ...] = ()) -> DriverRefusal:
    """The driver's number as a refusal with a code of ours."""
    return DriverRefusal(_CODES.get(number, "driver"), number, detail, holders)


def raise_without_driver(error: Any) -> None:
    """One GPU's trouble is its own; without the driver there is nothing to look at."""
    if error.value in nvml.NO_DRIVER:
        raise error


@contextmanager
def refusals() -> Iterator[None]:
    """Errors of pynvml leave the driver's modules only as `DriverRefusal`."""
    try:
        yield
    except nvml.Error as error:
        raise refusal(error.value, str(error)) from error
